"""Sample weights: a weight counts as repetition where that is what it means, and as a slow loop says elsewhere."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid

from kcal.metrics import (
    accuracy_rejection,
    accuracy_rejection_area,
    debiased_squared_calibration_error,
    kde_calibration_error,
    kernel_calibration_error,
    reliability,
)

steady = settings(deadline=None, derandomize=True, max_examples=50)


def problem(seed, n=120, k=3, digits=1):
    generator = np.random.default_rng(seed)
    probs = generator.dirichlet(np.ones(k), n).round(digits)  # many ties
    probs[:, 0] += 1 - probs.sum(axis=1)
    probs = np.abs(probs) / np.abs(probs).sum(axis=1, keepdims=True)
    return probs, generator.integers(k, size=n), generator.integers(0, 4, size=n)


@steady
@given(seed=st.integers(0, 10_000), bins=st.sampled_from([1, 2, 5, 10]), adaptive=st.booleans())
def test_bins_of_whole_weights_equal_those_of_repeated_rows(seed, bins, adaptive):
    probs, labels, weights = problem(seed, n=60)
    weights[0] += -weights.sum() % bins  # so that the repeated rows, too, fall into bins of exactly equal weight
    again = np.repeat(probs, weights, axis=0), np.repeat(labels, weights)
    for of in ("confidence", 0):
        weighted = reliability(probs, labels, bins=bins, adaptive=adaptive, of=of, sample_weight=weights)
        repeated = reliability(*again, bins=bins, adaptive=adaptive, of=of)
        mean_weight = weights[weights > 0].mean()
        np.testing.assert_allclose(weighted.weights * mean_weight, repeated.counts, atol=1e-9)
        np.testing.assert_allclose(weighted.mean_prediction, repeated.mean_prediction, atol=1e-9)
        np.testing.assert_allclose(weighted.observed_frequency, repeated.observed_frequency, atol=1e-9)
        assert weighted.calibration_error == pytest.approx(repeated.calibration_error, abs=1e-9)


def kernel_biased(probs, labels, sample_weight=None):
    return kernel_calibration_error(
        probs, labels, estimator="biased", bandwidth=0.3, resamples=0, sample_weight=sample_weight
    ).value


def kernel_quadratic(probs, labels, sample_weight=None):
    return kernel_calibration_error(probs, labels, bandwidth=0.3, resamples=0, sample_weight=sample_weight).value


def kernel_linear(probs, labels, sample_weight=None):
    return kernel_calibration_error(
        probs, labels, estimator="unbiased-linear", bandwidth=0.3, sample_weight=sample_weight
    ).value


def test_curve_of_whole_weights_is_that_of_repeated_rows():
    probs, labels, weights = problem(10)
    weighted = accuracy_rejection(probs, labels, sample_weight=weights)
    repeated = accuracy_rejection(np.repeat(probs, weights, axis=0), np.repeat(labels, weights))
    for name in ("rejected", "accuracies", "thresholds"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(repeated, name), atol=1e-12)


def test_weighted_area_is_a_loop_over_the_samples_that_are_rejected():
    probs, labels, _ = problem(11, n=40, digits=9)  # no ties
    weights = np.random.default_rng(12).random(40)
    confidence, right = probs.max(axis=1), probs.argmax(axis=1) == labels
    area = 0.0
    for i in range(40):
        kept = confidence >= confidence[i]
        area += weights[i] * np.average(right[kept], weights=weights[kept]) / weights.sum()
    assert accuracy_rejection_area(probs, labels, sample_weight=weights) == pytest.approx(area, abs=1e-12)


def test_weighted_kernel_errors_are_double_loops():
    probs, labels, _ = problem(13, n=41)
    weights = np.random.default_rng(14).random(41)
    residuals = np.eye(3)[labels] - probs
    sums = dict.fromkeys(["all", "distinct", "linear"], 0.0)
    masses = dict.fromkeys(sums, 0.0)
    for i, j in product(range(41), repeat=2):
        h = np.exp(-0.5 * np.abs(probs[i] - probs[j]).sum() / 0.3) * (residuals[i] @ residuals[j])
        for name, counts in (("all", True), ("distinct", i != j), ("linear", i % 2 == 0 and j == i + 1)):
            sums[name] += counts * weights[i] * weights[j] * h
            masses[name] += counts * weights[i] * weights[j]
    for name, metric in (("all", kernel_biased), ("distinct", kernel_quadratic), ("linear", kernel_linear)):
        assert metric(probs, labels, sample_weight=weights) == pytest.approx(sums[name] / masses[name], abs=1e-12)


def test_weighted_debiased_error_is_a_loop_over_equal_width_bins():
    probs, labels, _ = problem(16, n=200, digits=3)
    weights = np.random.default_rng(17).random(200)
    values, right = probs.max(axis=1), probs.argmax(axis=1) == labels
    total, mass = 0.0, 0.0
    for b in range(5):
        inside = (values > b / 5) & (values <= (b + 1) / 5)
        if inside.sum() < 2:
            continue
        w, r = weights[inside], right[inside] - values[inside]
        gap = np.average(r, weights=w)
        spread = np.sum(w * (r - gap) ** 2) / (w.sum() - np.sum(w**2) / w.sum())
        total += w.sum() * (gap**2 - spread * np.sum(w**2) / w.sum() ** 2)
        mass += w.sum()
    measured = debiased_squared_calibration_error(probs, labels, bins=5, adaptive=False, sample_weight=weights)
    assert measured == pytest.approx(total / mass, abs=1e-12)


def test_weighted_kde_error_is_an_integral_of_kernel_sums():
    probs, labels, _ = problem(19, n=60, digits=3)
    weights = np.random.default_rng(20).random(60)
    values, right = probs[:, 1], labels == 1
    at = np.linspace(0, 1, 4001)
    half_width = 3 * 0.05
    images = np.stack([values, -values, 2 - values])  # reflected at both ends
    heights = 35 / 32 / half_width * np.clip(1 - ((at[:, None, None] - images) / half_width) ** 2, 0, None) ** 3
    kernel = heights.sum(axis=1) * weights / weights.sum()  # (points, n)
    expected = trapezoid(np.abs(kernel @ right - at * kernel.sum(axis=1)), at)
    measured = kde_calibration_error(probs, labels, of=1, bandwidth=0.05, sample_weight=weights)
    assert measured == pytest.approx(expected, abs=2e-5)
