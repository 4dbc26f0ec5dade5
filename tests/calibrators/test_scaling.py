"""Vector, matrix, structured and ensemble scaling: minimisers of their losses, near one temperature with few data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from kcal import (
    EnsembleTemperatureScaling,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
)

LINEAR = (VectorScaling, MatrixScaling, StructuredVectorScaling, StructuredMatrixScaling)


def penalised_loss(kind: Any, logits: Any, labels: Any, weights: Any, bias: Any, temperature: float) -> float:
    """Return the documented loss of penalty 1, summed over samples; W is a vector or a matrix.

    The temperature is that of temperature scaling.
    """
    n, k = logits.shape
    matrix = np.diag(weights) if np.ndim(weights) == 1 else weights
    loss = -float(log_softmax(logits @ matrix.T + bias, axis=1)[np.arange(n), labels].sum())
    change = matrix - np.eye(k) / temperature
    diagonal, others = (np.diag(change) ** 2).sum(), (change**2).sum() - (np.diag(change) ** 2).sum()
    if kind in (VectorScaling, MatrixScaling):
        factor = 1 if kind is VectorScaling else k
        return loss + factor / 2 * float((logits**2).mean() * (diagonal + others) + (bias**2).sum())
    return loss + float(k * (bias**2).sum() + temperature**2 * (k * diagonal + k * (k - 1) * others))


@pytest.mark.parametrize("kind", LINEAR)
def test_the_solution_minimises_the_documented_loss(problem: Any, kind: Any) -> None:
    logits, labels = log_softmax(problem.logits, axis=1)[:80], problem.labels[:80]
    fitted = kind().fit(logits, labels)
    shape, temperature = fitted.weights_.shape, TemperatureScaling().fit(logits, labels).temperature_

    def loss(flat: Any) -> float:
        return penalised_loss(kind, logits, labels, flat[:-3].reshape(shape), flat[-3:], temperature)

    found = np.r_[fitted.weights_.ravel(), fitted.bias_]
    slow = minimize(loss, np.zeros(len(found)), method="BFGS", options={"gtol": 1e-5})
    assert loss(found) <= slow.fun + 1e-8
    np.testing.assert_allclose(found, slow.x, atol=2e-3)


@pytest.mark.parametrize("kind", LINEAR)
def test_a_strong_penalty_is_temperature_scaling(problem: Any, kind: Any) -> None:
    found = kind(penalty=1e9).fit(problem.logits, problem.labels).predict_proba(problem.test_logits)
    plain = TemperatureScaling().fit(problem.logits, problem.labels).predict_proba(problem.test_logits)
    np.testing.assert_allclose(found, plain, atol=1e-5)


@pytest.mark.filterwarnings("ignore::kcal.errors.MissingClassWarning")
@pytest.mark.parametrize("kind", LINEAR)
def test_few_samples_of_many_classes_do_little_harm(kind: Any) -> None:
    generator = np.random.default_rng(0)
    truth = generator.normal(scale=2.5, size=(2_600, 60))
    labels = (truth + generator.gumbel(size=truth.shape)).argmax(axis=1)
    found, plain = (
        method().fit(2 * truth[:600], labels[:600]).predict_log_proba(2 * truth[600:])
        for method in (kind, TemperatureScaling)
    )
    rows = np.arange(2_000)
    assert -found[rows, labels[600:]].mean() < 1.03 * -plain[rows, labels[600:]].mean()


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
