"""The torus is sampled, smoothed and estimated exactly; calibration errors are averages over level sets."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.theory import levels, uniform
from experiments.theory.torus import CENTRES, PRIORS, Torus, errors_of, level_set_errors

CASES = [Torus(1, 1.0), Torus(1, 0.5), Torus(2, 0.5)]


@pytest.mark.parametrize("torus", CASES, ids=str)
def test_samples_have_the_density(torus: Torus) -> None:
    points, labels = torus.draw(40_000, np.random.default_rng(0))
    assert points.min() >= 0
    assert points.max() < 1
    edges = np.linspace(0, 1, 9)
    middles = (np.arange(8_000)[:, None] + 0.5) / 8_000
    for k in range(2):
        counts = np.histogram(points[labels == k, 0], edges)[0]
        marginal = 1 + 0.8 * (1 + torus.order) / torus.dimension * torus.profile(middles - CENTRES[k])[:, 0]
        assert marginal.mean() == pytest.approx(1, abs=1e-3)
        expected = marginal.reshape(8, -1).mean(axis=1) * counts.sum() / 8
        assert ((counts - expected) ** 2 / expected).sum() < 24.3  # 0.999 quantile of χ² with 7 degrees of freedom
    assert labels.mean() == pytest.approx(PRIORS[1], abs=0.01)


@pytest.mark.parametrize("torus", CASES, ids=str)
def test_densities_are_bounded_away_from_zero_and_of_their_order(torus: Torus) -> None:
    queries = torus.grid(0.1, 40)
    assert (torus.joint(queries) / PRIORS).min() == pytest.approx(0.2)
    steps = np.array([1e-4, 1e-6])
    rise = torus.profile(steps) - torus.profile(np.zeros(2))
    assert np.log(rise[0] / rise[1]) / np.log(100) == pytest.approx(torus.order)


def test_smoothing_is_the_convolution_with_wrapped_kernels() -> None:
    torus, bandwidth = Torus(1, 0.5), 0.07
    offsets = (np.arange(-60_000, 60_000) + 0.5) / 120_000 * 0.98
    weights = np.exp(-(offsets**2) / (2 * bandwidth**2))
    for position in (0.0, 0.13, 0.5):
        expected = (weights * torus.profile(position + offsets)).sum() / weights.sum()
        assert torus.profile(np.array([position]), bandwidth)[0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("bandwidth", [0.05, 0.3])
def test_estimates_wrap_around(bandwidth: float) -> None:
    torus = Torus(2, 1.0)
    points, labels = torus.draw(60, np.random.default_rng(1))
    queries = np.array([[0.01, 0.99], [0.5, 0.0]])
    sums = np.zeros((2, 2))
    for i in range(-4, 5):
        for j in range(-4, 5):
            squares = ((queries[:, None] - points - np.array([i, j])) ** 2).sum(axis=2)
            kernel = np.exp(-squares / (2 * bandwidth**2))
            sums += np.stack([kernel[:, labels == k].sum(axis=1) for k in range(2)], axis=1)
    expected = sums / sums.sum(axis=1, keepdims=True)
    for by_kcal in (False, True):
        found = torus.estimate(points, labels, queries, bandwidth, by_kcal=by_kcal)
        np.testing.assert_allclose(found, expected, atol=1e-7)


def test_calibration_errors_are_at_most_the_sup_error_and_zero_for_class_frequencies() -> None:
    generator = np.random.default_rng(2)
    true, density = generator.random(500), generator.random(500)
    for estimated in (generator.random(500), true**2, np.clip(true + 0.1, 0, 1)):
        errors = errors_of(estimated, true, density)
        assert 0 < errors.worst_bin <= errors.sup + 1e-12
        assert 0 < errors.worst_wide_bin <= errors.sup + 1e-12
    frequencies = np.full(500, (true * density).sum() / density.sum())
    errors = errors_of(frequencies, true, density)
    assert errors.worst_bin < 1e-12
    assert errors.worst_wide_bin < 1e-12
    assert errors.sup > 0.4


def test_a_level_set_averages_its_points() -> None:
    n = 4_000
    z = np.arange(n) / n
    estimated = 0.5 + 0.4 * np.sin(2 * np.pi * z)  # every level has two points, with equal slopes
    true, density = estimated + 0.1 * np.cos(2 * np.pi * z), np.ones(n)  # errors of opposite signs
    chosen = np.array([0.3, 0.5, 0.8])
    averages, largest = level_set_errors(estimated, true, density, chosen)
    np.testing.assert_allclose(averages, 0, atol=1e-5)
    np.testing.assert_allclose(largest, 0.1 * np.sqrt(1 - ((chosen - 0.5) / 0.4) ** 2), atol=1e-4)
    doubled = np.where(np.cos(2 * np.pi * z) > 0, 3.0, 1.0)  # the first point counts three times
    averages, _ = level_set_errors(estimated, true, doubled, chosen)
    np.testing.assert_allclose(averages, largest / 2, atol=1e-4)


def test_the_quality_of_the_truth_is_perfect() -> None:
    true = np.array([0.2, 0.6, 0.9, 0.4])
    found = levels.quality(true, true, np.ones(4))
    assert found.sup == found.worst_bin == found.worst_wide_bin == 0
    assert found.excess_loss == pytest.approx(0)
    assert found.accuracy == pytest.approx((0.8 + 0.6 + 0.9 + 0.6) / 4)


def test_the_sup_error_falls_and_the_calibration_error_is_below() -> None:
    case = uniform.Case(Torus(1, 1.0), (250, 2_000), 12, 200)
    found = uniform.measure(case, [0], lambda _: None)
    assert found.never_above
    assert found.sup[1] < 0.8 * found.sup[0]
    assert (found.worst_bin < found.sup).all()
    assert abs(found.slope.value - found.slope.target) < 3 * found.slope.error
    assert uniform.difference_from_kcal(0) < 1e-9
