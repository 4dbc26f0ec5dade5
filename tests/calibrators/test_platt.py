"""Platt scaling is the minimiser of its loss, and finite where the classes separate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from kcal import PlattScaling
from one_class_problems import draw, two_columns
from pooled_network import pooled


def test_the_curve_minimises_the_plain_loss_with_platts_targets() -> None:
    scores = np.random.default_rng(0).normal(scale=2, size=200)
    labels = draw(0.5 * scores - 1)
    positives = labels.sum()
    targets = np.where(labels == 1, (positives + 1) / (positives + 2), 1 / (200 - positives + 2))

    def loss(ac: Any) -> float:
        p = 1 / (1 + np.exp(-(ac[0] * scores + ac[1])))
        return float(-(targets * np.log(p) + (1 - targets) * np.log(1 - p)).sum())

    slow = minimize(loss, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000})
    fitted = PlattScaling(maps="class").fit(two_columns(scores), labels)
    np.testing.assert_allclose(fitted.coefficients_[1], slow.x, atol=1e-5)


def test_it_recovers_the_curve_as_samples_grow() -> None:
    scores = np.random.default_rng(0).normal(scale=2, size=200_000)
    labels = draw(0.5 * scores - 1, seed=1)
    errors = [
        np.abs(PlattScaling(maps="class").fit(two_columns(scores[:n]), labels[:n]).coefficients_[1] - [0.5, -1]).max()
        for n in (2_000, 200_000)
    ]
    assert errors[1] < 0.02


@pytest.mark.filterwarnings("ignore::kcal.errors.LeakageWarning")
def test_separable_and_saturated_scores_have_a_finite_curve() -> None:
    for size in (1.0, 1e4):
        scores = np.repeat([-size, size], 50)
        fitted = PlattScaling(maps="class").fit(two_columns(scores), np.repeat([0, 1], 50))
        targets = np.repeat([[51 / 52, 1 / 52], [1 / 52, 51 / 52]], 50, axis=0)
        expected = pooled(targets, two_columns(scores), two_columns(scores), np.repeat([0, 1], 50))
        np.testing.assert_allclose(fitted.predict_proba(two_columns(scores)), expected, atol=1e-5)
