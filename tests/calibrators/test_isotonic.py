"""Isotonic regression ascends, is never 0 or 1, and equals pooling by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcal import IsotonicCalibration
from one_class_problems import two_columns
from pooled_network import pooled


def slow_isotonic(scores: Any, targets: Any, weights: Any) -> Any:
    """Return the ascending fit at each score by the max-min formula over blocks of distinct scores."""
    values = np.unique(scores)
    mass = np.array([weights[scores == v].sum() for v in values])
    sums = np.array([(weights * targets)[scores == v].sum() for v in values])
    n = len(values)
    fit = [
        max(min(sums[a : b + 1].sum() / mass[a : b + 1].sum() for b in range(i, n)) for a in range(i + 1))
        for i in range(n)
    ]
    return values, np.array(fit)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 40))
def test_it_equals_the_max_min_formula_with_two_samples_more(seed: int, n: int) -> None:
    generator = np.random.default_rng(seed)
    scores = generator.integers(-6, 7, n) / 2.0
    labels = generator.integers(0, 2, n)
    labels[:2] = [0, 1]
    fitted = IsotonicCalibration(maps="class").fit(two_columns(scores), labels)
    values, expected = slow_isotonic(
        np.concatenate([scores, [scores.min(), scores.max()]]), np.concatenate([labels, [1.0, 0.0]]), np.ones(n + 2)
    )
    np.testing.assert_allclose(np.interp(values, fitted.knots_[1], fitted.values_[1]), expected, atol=1e-9)


@pytest.mark.filterwarnings("ignore::kcal.errors.LeakageWarning")
def test_separable_scores_stay_away_from_zero_and_one() -> None:
    scores = np.concatenate([np.linspace(-3, -1, 50), np.linspace(1, 3, 50)])
    fitted = IsotonicCalibration(maps="class").fit(two_columns(scores), np.repeat([0, 1], 50))
    np.testing.assert_allclose(fitted.values_[1][[0, -1]], [1 / 51, 50 / 51])
    new = two_columns(np.array([-1e4, 1e4]))
    expected = pooled(np.array([[50, 1], [1, 50]]) / 51, new, two_columns(scores), np.repeat([0, 1], 50))
    np.testing.assert_allclose(fitted.predict_proba(new), expected, atol=1e-12)


def test_it_recovers_a_monotone_warp_as_samples_grow() -> None:
    generator = np.random.default_rng(0)
    scores = generator.normal(scale=2, size=50_000)
    truth = 0.05 + 0.9 / (1 + np.exp(-(scores**3) / 4))
    labels = (generator.uniform(size=len(scores)) < truth).astype(np.int64)
    errors = []
    for n in (500, 50_000):
        fitted = IsotonicCalibration(maps="class").fit(two_columns(scores[:n]), labels[:n])
        errors.append(np.abs(fitted.predict_proba(two_columns(scores[:2000]))[:, 1] - truth[:2000]).mean())
    assert errors[1] < 0.015
    assert errors[1] < errors[0] / 3  # the rate is the cube root of n: 100^(1/3) = 4.6
