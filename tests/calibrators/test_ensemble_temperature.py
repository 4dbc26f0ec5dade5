"""Ensemble temperature scaling: the best mixture, which keeps the order of the classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kcal.calibrators.scaling.ensemble_temperature import fit_mixture

from kcal import EnsembleTemperatureScaling, TemperatureScaling


def softmax(logits: Any) -> Any:
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("seed", range(6))
def test_no_weights_of_a_fine_grid_are_better(seed: int) -> None:
    generator = np.random.default_rng(seed)
    densities = generator.beta(0.6, 1.5, size=(150, 3)) * generator.uniform(0.2, 1, size=3)
    importance = generator.uniform(size=150)

    def loss(shares: Any) -> Any:
        return -(importance @ np.log(np.maximum(densities @ shares, 1e-300))) / importance.sum()

    found = fit_mixture(densities, importance)
    assert found.sum() == pytest.approx(1)
    grid = [np.array([i, j, 200 - i - j]) / 200 for i in range(201) for j in range(201 - i)]
    assert loss(found) <= min(loss(shares) for shares in grid) + 1e-9


def test_it_recovers_temperature_free_noise_as_samples_grow() -> None:
    """A quarter of the labels are drawn evenly; the rest follow the logits: shares (·, ·, 1/4) in the limit."""
    generator = np.random.default_rng(0)
    logits = generator.normal(scale=3, size=(100_000, 4))
    truth = 0.75 * softmax(logits) + 0.25 / 4
    labels = (np.cumsum(truth, axis=1) < generator.uniform(size=(len(logits), 1))).sum(axis=1)
    errors = []
    for n in (1_000, 100_000):
        fitted = EnsembleTemperatureScaling().fit(logits[:n], labels[:n])
        errors.append(np.abs(fitted.predict_proba(logits[:2000]) - truth[:2000]).mean())
    plain = TemperatureScaling().fit(logits, labels).predict_proba(logits[:2000])
    assert errors[1] < 0.01
    assert errors[1] < np.abs(plain - truth[:2000]).mean() / 2


def test_the_order_of_the_classes_never_changes(problem: Any) -> None:
    fitted = EnsembleTemperatureScaling().fit(problem.logits, problem.labels)
    rows = np.concatenate([problem.test_logits, np.zeros((1, 3)), [[1.0, 1.0, 0.0]]])
    found = fitted.predict_proba(rows)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert (((rows[:, a] - rows[:, b]) * (found[:, a] - found[:, b])) >= 0).all()
        assert (found[rows[:, a] == rows[:, b]][:, a] == found[rows[:, a] == rows[:, b]][:, b]).all()


def test_its_loss_is_at_most_that_of_temperature_scaling(problem: Any) -> None:
    rows = np.arange(len(problem.labels))
    losses = [
        -method.fit(problem.logits, problem.labels).predict_log_proba(problem.logits)[rows, problem.labels].mean()
        for method in (EnsembleTemperatureScaling(), TemperatureScaling())
    ]
    assert losses[0] <= losses[1] + 1e-9
