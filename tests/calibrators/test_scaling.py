"""Vector, matrix and ensemble temperature scaling: minimisers of their losses, near one temperature with few data."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from kcal import EnsembleTemperatureScaling, MatrixScaling, TemperatureScaling, VectorScaling
from kcal.errors import InvalidInputError, MissingClassWarning


def plain_loss(logits: Any, labels: Any, weights: Any, bias: Any) -> float:
    scores = logits * weights if np.ndim(weights) == 1 else logits @ weights.T
    return -float(log_softmax(scores + bias, axis=1)[np.arange(len(labels)), labels].sum())


def penalised_loss(logits: Any, labels: Any, weights: Any, bias: Any, penalty: float, temperature: float) -> float:
    """Return the documented loss, written out; the temperature is that of temperature scaling."""
    n_classes = logits.shape[1]
    steepness = 1 / temperature
    size = np.sqrt((logits**2).mean())
    if np.ndim(weights) == 1:
        pull = (((weights - steepness) * size) ** 2).sum() + (bias**2).sum()
    else:
        pull = n_classes * ((((weights - steepness * np.eye(n_classes)) * size) ** 2).sum() + (bias**2).sum())
    return plain_loss(logits, labels, weights, bias) + penalty / 2 * pull


@pytest.mark.parametrize("penalty", [0.3, 1.0])
@pytest.mark.parametrize("kind", [VectorScaling, MatrixScaling])
def test_the_solution_minimises_the_documented_loss(problem: Any, kind: Any, penalty: float) -> None:
    logits, labels = log_softmax(problem.logits, axis=1)[:60], problem.labels[:60]
    fitted = kind(penalty=penalty).fit(logits, labels)
    shape = fitted.weights_.shape
    temperature = TemperatureScaling().fit(logits, labels).temperature_

    def loss(flat: Any) -> float:
        return penalised_loss(logits, labels, flat[:-3].reshape(shape), flat[-3:], penalty, temperature)

    slow = minimize(loss, np.zeros(np.prod(shape) + 3), method="BFGS", options={"gtol": 1e-4})
    assert loss(np.r_[fitted.weights_.ravel(), fitted.bias_]) <= slow.fun + 1e-6
    np.testing.assert_allclose(fitted.bias_, slow.x[-3:], atol=2e-3)


@pytest.mark.parametrize("kind", [VectorScaling, MatrixScaling])
def test_it_recovers_the_truth_as_samples_grow(kind: Any) -> None:
    generator = np.random.default_rng(0)
    logits = log_softmax(generator.normal(scale=2, size=(60_000, 3)), axis=1)
    weights = np.diag([0.5, 0.8, 1.2])
    if kind is MatrixScaling:
        weights = weights + np.array([[0, 0.3, 0], [0, 0, -0.2], [0.1, 0, 0]])
    bias = np.array([0.5, 0.0, -0.5])
    truth = log_softmax(logits @ weights.T + bias, axis=1)
    labels = (truth + generator.gumbel(size=truth.shape)).argmax(axis=1)
    errors = []
    for n in (600, 60_000):
        found = kind().fit(logits[:n], labels[:n]).predict_log_proba(logits[:2000])
        errors.append((np.exp(truth[:2000]) * (truth[:2000] - found)).sum(axis=1).mean())
    assert errors[1] < 5e-4
    assert errors[1] < errors[0] / 10  # the divergence falls as 1/n


@pytest.mark.parametrize("kind", [VectorScaling, MatrixScaling])
def test_a_strong_penalty_is_temperature_scaling(problem: Any, kind: Any) -> None:
    found = kind(penalty=1e9).fit(problem.logits, problem.labels).predict_proba(problem.test_logits)
    plain = TemperatureScaling().fit(problem.logits, problem.labels).predict_proba(problem.test_logits)
    np.testing.assert_allclose(found, plain, atol=1e-5)


@pytest.mark.parametrize("kind", [VectorScaling, MatrixScaling])
def test_the_bias_learns(problem: Any, kind: Any) -> None:
    shifted = problem.logits + np.array([0.0, 6.0, 0.0])
    bias = kind().fit(shifted, problem.labels).bias_
    assert bias[1] < min(bias[0], bias[2]) - 0.5


@pytest.mark.parametrize("kind", [VectorScaling, MatrixScaling])
def test_few_samples_of_many_classes_do_little_harm(kind: Any) -> None:
    generator = np.random.default_rng(0)
    truth = generator.normal(scale=2.5, size=(2_600, 60))
    labels = (truth + generator.gumbel(size=truth.shape)).argmax(axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingClassWarning)
        found = kind().fit(2 * truth[:600], labels[:600]).predict_log_proba(2 * truth[600:])
    plain = TemperatureScaling().fit(2 * truth[:600], labels[:600]).predict_log_proba(2 * truth[600:])
    rows = np.arange(2_000)
    assert -found[rows, labels[600:]].mean() < 1.03 * -plain[rows, labels[600:]].mean()


def test_separable_data_give_valid_rows_and_invalid_penalties_raise() -> None:
    logits, labels = 5 * np.eye(3)[[0, 1, 2] * 4], [0, 1, 2] * 4
    for kind in (VectorScaling, MatrixScaling):
        found = kind().fit(logits, labels).predict_proba(logits)
        np.testing.assert_allclose(found.sum(axis=1), 1)
        with pytest.raises(InvalidInputError, match="penalty must be"):
            kind(penalty=-1).fit(logits, labels)


# Ensemble temperature scaling


@pytest.mark.parametrize("seed", range(4))
def test_no_weights_of_a_fine_grid_are_better(seed: int) -> None:
    generator = np.random.default_rng(seed)
    logits = generator.normal(scale=2, size=(150, 3))
    noisy = np.where(generator.random(150) < 0.2, 0, 1)[:, None] * logits * generator.uniform(0.5, 1.5)
    labels, weights = (noisy + generator.gumbel(size=(150, 3))).argmax(axis=1), generator.uniform(size=150)
    fitted = EnsembleTemperatureScaling().fit(logits, labels, sample_weight=weights)
    parts = np.stack([softmax(logits / fitted.temperature_, axis=1), softmax(logits, axis=1), np.full((150, 3), 1 / 3)])
    own = parts[:, np.arange(150), labels]

    def loss(shares: Any) -> Any:
        return -(weights @ np.log(shares @ own)) / weights.sum()

    assert fitted.weights_.sum() == pytest.approx(1)
    grid = [np.array([i, j, 200 - i - j]) / 200 for i in range(201) for j in range(201 - i)]
    assert loss(fitted.weights_) <= min(loss(shares) for shares in grid) + 1e-9
    np.testing.assert_allclose(fitted.predict_proba(logits), np.tensordot(fitted.weights_, parts, 1), atol=1e-9)


def test_ensemble_recovers_temperature_free_noise_as_samples_grow() -> None:
    """A quarter of the labels are drawn evenly; the rest follow the logits: shares (·, ·, 1/4) in the limit."""
    generator = np.random.default_rng(0)
    logits = generator.normal(scale=3, size=(100_000, 4))
    truth = 0.75 * softmax(logits, axis=1) + 0.25 / 4
    labels = (np.cumsum(truth, axis=1) < generator.uniform(size=(len(logits), 1))).sum(axis=1)
    found = EnsembleTemperatureScaling().fit(logits, labels).predict_proba(logits[:2000])
    plain = TemperatureScaling().fit(logits, labels).predict_proba(logits[:2000])
    error = np.abs(found - truth[:2000]).mean()
    assert error < min(0.01, np.abs(plain - truth[:2000]).mean() / 2)
