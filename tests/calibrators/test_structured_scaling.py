"""Structured matrix and vector scaling: the minimisers of the published losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax

from kcal import StructuredMatrixScaling, StructuredVectorScaling, TemperatureScaling


def published_loss(scaled: Any, labels: Any, matrix: Any, bias: Any, penalty: float) -> float:
    """Return mean log-loss + (K·‖b‖² + K·‖diag‖² + K(K − 1)·‖off‖²)·penalty/n, the matrix being I plus the change.

    The logits are scaled by the temperature of temperature scaling.
    """
    n, k = scaled.shape
    change = matrix - np.eye(k)
    diagonal = np.diag(change)
    log_probs = log_softmax(scaled @ matrix.T + bias, axis=1)
    loss = -log_probs[np.arange(n), labels].mean()
    others = (change**2).sum() - (diagonal**2).sum()
    return float(loss + penalty / n * (k * (bias**2).sum() + k * (diagonal**2).sum() + k * (k - 1) * others))


@pytest.mark.parametrize("penalty", [0.05, 1.0])
def test_the_solution_minimises_the_published_loss(problem: Any, penalty: float) -> None:
    logits, labels = log_softmax(problem.logits, axis=1)[:80], problem.labels[:80]
    fitted = StructuredMatrixScaling(penalty=penalty).fit(logits, labels)
    temperature = TemperatureScaling().fit(logits, labels).temperature_
    mine = published_loss(logits / temperature, labels, fitted.weights_ * temperature, fitted.bias_, penalty)

    def loss(flat: Any) -> float:
        return published_loss(logits / temperature, labels, np.eye(3) + flat[:9].reshape(3, 3), flat[9:], penalty)

    slow = minimize(loss, np.zeros(12), method="BFGS", options={"gtol": 1e-7})
    assert mine <= slow.fun + 1e-8
    np.testing.assert_allclose(fitted.bias_, slow.x[9:], atol=1e-3)
    np.testing.assert_allclose(fitted.weights_ * temperature - np.eye(3), slow.x[:9].reshape(3, 3), atol=1e-3)


@pytest.mark.parametrize("penalty", [0.05, 1.0])
def test_the_vector_minimises_the_published_loss_among_diagonal_matrices(problem: Any, penalty: float) -> None:
    logits, labels = log_softmax(problem.logits, axis=1)[:80], problem.labels[:80]
    fitted = StructuredVectorScaling(penalty=penalty).fit(logits, labels)
    temperature = TemperatureScaling().fit(logits, labels).temperature_

    def loss(flat: Any) -> float:
        return published_loss(logits / temperature, labels, np.diag(flat[:3]), flat[3:], penalty)

    slow = minimize(loss, np.r_[np.ones(3), np.zeros(3)], method="BFGS", options={"gtol": 1e-7})
    assert loss(np.r_[fitted.weights_ * temperature, fitted.bias_]) <= slow.fun + 1e-8
    np.testing.assert_allclose(fitted.bias_, slow.x[3:], atol=1e-3)
    np.testing.assert_allclose(fitted.weights_ * temperature, slow.x[:3], atol=1e-3)


@pytest.mark.filterwarnings("ignore::kcal.errors.MissingClassWarning")
def test_many_classes_and_few_samples_leave_temperature_scaling() -> None:
    generator = np.random.default_rng(0)
    logits = 2.0 * generator.normal(size=(120, 40))
    labels = (logits / 2 + generator.gumbel(size=logits.shape)).argmax(axis=1)
    fitted = StructuredMatrixScaling().fit(logits, labels, classes=range(40))
    change = fitted.weights_ * TemperatureScaling().fit(logits, labels, classes=range(40)).temperature_ - np.eye(40)
    others = change[~np.eye(40, dtype=bool)]
    assert np.abs(others).max() < 0.02
    assert np.abs(others).max() < np.abs(np.diag(change)).max() / 4


def test_it_recovers_a_matrix_as_samples_grow() -> None:
    generator = np.random.default_rng(0)
    logits = log_softmax(generator.normal(scale=2, size=(60_000, 3)), axis=1)
    truth = log_softmax(logits @ np.array([[0.5, 0.3, 0], [0, 0.8, -0.2], [0.1, 0, 1.2]]).T + [0.5, 0, -0.5], axis=1)
    labels = (truth + generator.gumbel(size=truth.shape)).argmax(axis=1)
    errors = [
        np.abs(StructuredMatrixScaling().fit(logits[:n], labels[:n]).predict_proba(logits) - np.exp(truth)).mean()
        for n in (600, 60_000)
    ]
    assert errors[1] < 0.004
    assert errors[1] < errors[0] / 4
