"""The kernel calibration error against a double loop, by hand, and its test under the null and off it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_predictions import draw_labels, random_predictions

from kcal.metrics import kernel_calibration_error

steady = settings(deadline=None, max_examples=40)  # a slow run is not a failure

ESTIMATORS = ["unbiased-quadratic", "unbiased-linear", "biased"]


def distance_slow(p, q, kernel):
    if kernel == "total-variation":
        return sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(p, q, strict=True)))


def products_slow(probs, labels, kernel, bandwidth):
    n, k = probs.shape
    h = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            inner = sum(((labels[i] == c) - probs[i, c]) * ((labels[j] == c) - probs[j, c]) for c in range(k))
            h[i, j] = math.exp(-distance_slow(probs[i], probs[j], kernel) / bandwidth) * inner
    return h


def estimate_slow(h, estimator):
    n = len(h)
    if estimator == "biased":
        pairs = [(i, j) for i in range(n) for j in range(n)]
    elif estimator == "unbiased-quadratic":
        pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    else:
        pairs = [(2 * i, 2 * i + 1) for i in range(n // 2)]
    return np.mean([h[pair] for pair in pairs])


@steady
@given(
    data=random_predictions(min_size=2),
    estimator=st.sampled_from(ESTIMATORS),
    kernel=st.sampled_from(["total-variation", "euclidean"]),
    bandwidth=st.sampled_from([None, 0.1, 2.0]),
)
def test_estimates_equal_the_double_loop(data, estimator, kernel, bandwidth):
    probs, labels = data
    result = kernel_calibration_error(
        probs, labels, estimator=estimator, kernel=kernel, bandwidth=bandwidth, resamples=0
    )
    n = len(labels)
    median = np.median([distance_slow(probs[i], probs[j], kernel) for i in range(n) for j in range(i)])
    assert result.bandwidth == pytest.approx(median if bandwidth is None else bandwidth)
    h = products_slow(probs, labels, kernel, result.bandwidth)
    assert result.value == pytest.approx(estimate_slow(h, estimator), abs=1e-12)


@pytest.mark.parametrize("estimator", ["unbiased-quadratic", "biased"])
def test_bootstrap_equals_the_double_loop(estimator):
    generator = np.random.default_rng(3)
    probs = generator.dirichlet(np.ones(3), size=12)
    labels = draw_labels(probs, generator)
    result = kernel_calibration_error(probs, labels, estimator=estimator, resamples=50, seed=5)
    order = np.lexsort((labels, *probs.T))
    h = products_slow(probs[order], labels[order], "total-variation", result.bandwidth)
    if estimator != "biased":
        np.fill_diagonal(h, 0)
    draws = np.random.default_rng(5)
    larger = 0
    for _ in range(50):
        drawn = list(draws.integers(0, 12, 12))
        w = [drawn.count(i) - 1 for i in range(12)]
        larger += sum(w[i] * w[j] * h[i, j] for i in range(12) for j in range(12)) >= h.sum()
    assert result.p_value == pytest.approx((1 + larger) / 51)
    assert 0 < larger < 50


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_calibrated_predictions_are_rejected_as_often_as_the_level_says(estimator, weighted):
    generator = np.random.default_rng(0)
    p_values, values, repetitions = [], [], 300
    for _ in range(repetitions):
        probs = generator.dirichlet(np.full(3, 0.5), size=100)
        options = {"sample_weight": 0.1 + 3 * generator.random(100)} if weighted else {}
        labels = draw_labels(probs, generator)
        result = kernel_calibration_error(probs, labels, estimator=estimator, resamples=99, **options)
        p_values.append(result.p_value)
        values.append(result.value)
    for level in (0.05, 0.2, 0.5, 0.8):
        rejected = np.mean(np.array(p_values) <= level)
        assert abs(rejected - level) < 3.5 * math.sqrt(level * (1 - level) / repetitions), level
    standard_error = np.std(values) / math.sqrt(repetitions)
    if estimator == "biased":
        assert np.mean(values) > 10 * standard_error
        assert min(values) >= 0
    else:
        assert abs(np.mean(values)) < 3.5 * standard_error


@pytest.mark.parametrize(
    ("estimator", "n"), [("unbiased-quadratic", 200), ("biased", 200), ("unbiased-linear", 20_000)]
)
def test_overconfident_predictions_are_found(estimator, n):
    generator = np.random.default_rng(1)
    found = 0
    for _ in range(20):
        probs = generator.dirichlet(np.ones(3), size=n)
        sharp = probs**3 / (probs**3).sum(axis=1, keepdims=True)
        labels = draw_labels(probs, generator)
        result = kernel_calibration_error(sharp, labels, estimator=estimator, bandwidth=0.5, resamples=99)
        found += result.p_value <= 0.05
    assert found >= 19


def test_normal_test_of_the_linear_estimator_by_hand():
    # Equal rows: k = 1. Residuals ±(.5, −.5): h = .5 for equal labels, −.5 for different ones.
    probs, labels = np.full((8, 2), 0.5), np.array([0, 0, 1, 1, 0, 1, 1, 1])
    result = kernel_calibration_error(probs, labels, estimator="unbiased-linear")
    assert result.value == pytest.approx(0.25)  # of .5, .5, −.5, .5, with standard error .5/√4
    assert result.p_value == pytest.approx(0.5 * math.erfc(1 / math.sqrt(2)))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_certain_predictions_have_extreme_p_values(estimator):
    probs = np.tile(np.eye(2), (10, 1))
    labels = np.tile([0, 1], 10)
    right = kernel_calibration_error(probs, labels, estimator=estimator)
    assert (right.value, right.p_value) == (0, 1)
    wrong = kernel_calibration_error(probs[::2], labels[::2] + 1, estimator=estimator)
    assert wrong.value == pytest.approx(2)  # equal rows: k = 1, and |(−1, 1)|² = 2
    assert wrong.p_value < 0.01
    assert wrong.bandwidth == 1, "equal rows have no distance"


@pytest.mark.parametrize("estimator", ["unbiased-quadratic", "biased"])
def test_many_rows_in_blocks_equal_one_dense_matrix(estimator):
    """More rows than a block has, and than the median of all pairs is computed of."""
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.ones(3), size=2100)
    labels = generator.integers(0, 3, size=2100)
    result = kernel_calibration_error(probs, labels, estimator=estimator, resamples=0)
    distances = 0.5 * np.abs(probs[:, None] - probs).sum(axis=2)
    assert result.bandwidth == pytest.approx(np.median(distances[np.triu_indices(2100, 1)]), rel=0.01)
    residuals = np.eye(3)[labels] - probs
    h = np.exp(-distances / result.bandwidth) * (residuals @ residuals.T)
    expected = h.mean() if estimator == "biased" else (h.sum() - np.trace(h)) / (2100 * 2099)
    assert result.value == pytest.approx(expected, rel=1e-9)
