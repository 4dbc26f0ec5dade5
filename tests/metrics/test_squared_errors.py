"""Debiased and marginal squared errors, top-label errors and Murphy's decomposition, against loops and by hand."""

import numpy as np
import pytest
from known_predictions import draw_labels

from kcal.metrics import (
    debiased_squared_calibration_error,
    expected_calibration_error,
    marginal_calibration_error,
    murphy_decomposition,
    top_label_calibration_error,
)


def problem(seed, n=90, k=3, digits=None):
    generator = np.random.default_rng(seed)
    probs = generator.dirichlet(np.ones(k), n)
    if digits is not None:
        probs = probs.round(digits) + 1e-3
        probs /= probs.sum(axis=1, keepdims=True)
    return probs, generator.integers(k, size=n)


@pytest.mark.parametrize("of", ["confidence", 1])
def test_debiased_error_equals_a_direct_loop(of):
    probs, labels = problem(1)
    p = probs.max(axis=1) if of == "confidence" else probs[:, 1]
    y = (probs.argmax(axis=1) == labels) if of == "confidence" else labels == 1
    expected = 0.0
    for b in range(10):
        inside = np.argsort(p)[9 * b : 9 * b + 9]
        residuals = y[inside] - p[inside]
        expected += 9 / 90 * (residuals.mean() ** 2 - residuals.var(ddof=1) / 9)
    assert debiased_squared_calibration_error(probs, labels, bins=10, of=of) == pytest.approx(expected, rel=1e-10)


def test_debiased_error_of_calibrated_predictions_is_0_on_average():
    generator = np.random.default_rng(2)
    debiased, plain = [], []
    for _ in range(300):
        probs = generator.dirichlet(np.ones(3), 200)
        labels = draw_labels(probs, generator)
        debiased.append(debiased_squared_calibration_error(probs, labels, bins=10))
        plain.append(murphy_decomposition(probs, labels, bins=10, of="confidence").reliability)
    error = np.std(debiased) / 300**0.5
    assert abs(np.mean(debiased)) < 3 * error
    assert np.mean(plain) > 10 * error


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("adaptive", [True, False])
def test_top_label_error_is_a_loop_over_top_classes(adaptive, weighted):
    probs, labels = problem(8, n=157)
    weights = np.random.default_rng(9).gamma(1.0, size=157) if weighted else np.ones(157)
    top, total = probs.argmax(axis=1), 0.0
    for k in range(probs.shape[1]):
        rows = top == k
        options = {"bins": 6, "adaptive": adaptive, "sample_weight": weights[rows]}
        total += weights[rows].sum() / weights.sum() * expected_calibration_error(probs[rows], labels[rows], **options)
    found = top_label_calibration_error(probs, labels, bins=6, adaptive=adaptive, sample_weight=weights)
    assert found == pytest.approx(total, abs=1e-12)


def test_bins_of_one_sample_say_nothing():
    assert np.isnan(debiased_squared_calibration_error([[0.4, 0.6]], [0]))
    probs, labels = problem(3, n=20)
    fewer = debiased_squared_calibration_error(probs, labels, bins=10)  # of two samples each
    assert debiased_squared_calibration_error(probs, labels, bins=20) == fewer
    assert np.isnan(debiased_squared_calibration_error([[0.1, 0.9], [0.3, 0.7]], [0, 1], bins=20, adaptive=False))


def test_marginal_error_is_the_root_of_the_mean_over_classes():
    probs, labels = problem(4)
    for debiased in (True, False):
        squares = [
            debiased_squared_calibration_error(probs, labels, bins=9, of=k)
            if debiased
            else murphy_decomposition(probs, labels, bins=9, of=k).reliability
            for k in range(3)
        ]
        found = marginal_calibration_error(probs, labels, bins=9, debiased=debiased)
        assert found == pytest.approx(max(np.mean(squares), 0) ** 0.5, rel=1e-12)
    calm = np.full((40, 2), 0.5)
    assert marginal_calibration_error(calm, np.arange(40) % 2, bins=1) == 0.0  # the estimate is negative


@pytest.mark.parametrize("adaptive", [True, False])
def test_murphys_parts_equal_a_direct_loop_and_sum_to_the_brier_score(adaptive):
    probs, labels = problem(5)
    p, y = probs[:, 0], labels == 0
    bins = np.array_split(np.argsort(p), 9) if adaptive else [np.flatnonzero(np.ceil(p * 9) == b + 1) for b in range(9)]
    reliability = sum(len(rows) / 90 * (p[rows].mean() - y[rows].mean()) ** 2 for rows in bins if len(rows))
    resolution = sum(len(rows) / 90 * (y[rows].mean() - y.mean()) ** 2 for rows in bins if len(rows))
    found = murphy_decomposition(probs, labels, bins=9, adaptive=adaptive, of=0)
    assert found.reliability == pytest.approx(reliability, rel=1e-10)
    assert found.resolution == pytest.approx(resolution, rel=1e-10)
    assert found.uncertainty == pytest.approx(y.mean() * (1 - y.mean()))
    assert found.brier == pytest.approx(np.mean((p - y) ** 2))
    hidden = sum(
        len(rows) / 90 * (p[rows].var() - 2 * np.mean((p[rows] - p[rows].mean()) * (y[rows] - y[rows].mean())))
        for rows in bins
        if len(rows)
    )
    assert found.within_bins == pytest.approx(hidden, abs=1e-12)
