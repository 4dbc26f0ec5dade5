"""Reduced simulations of the lemmas and of theorem 1 agree with exact values, and fail where the theory says so."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from experiments.theory import consistency, optimal_rate, pointwise
from experiments.theory.bumps import GaussianBump
from experiments.theory.fits import Slope, fit_slope, line_slopes, resampled
from experiments.theory.tail import log_tail


def silent(_: str) -> None:
    """Report nothing."""


def test_errors_fall_for_admissible_bandwidths_only() -> None:
    bump, generator = GaussianBump(2), np.random.default_rng(0)
    sizes = (100, 6_400)
    medians = np.array(
        [
            np.median(consistency.relative_errors(bump, m, consistency.bandwidths(m, 2), 200, generator), axis=1)
            for m in sizes
        ]
    )
    ratios = dict(zip(consistency.SHRINKAGES, medians[1] / medians[0], strict=True))
    assert ratios[0.25] < 0.4
    assert ratios[0.5] < 0.5
    assert ratios[1.25] > 1.2
    assert ratios[-0.25] > 1.2
    assert medians[1][consistency.SHRINKAGES.index(0.0)] == pytest.approx(abs(bump.bias(0.35)) / bump.density, rel=0.15)


def test_exact_errors_at_the_edges_do_not_fall() -> None:
    for d in (1, 2, 4):
        bump = GaussianBump(d)
        for shrinkage, falls in ((-0.25, False), (0.0, False), (0.25, True), (0.75, True), (1.0, False), (1.25, False)):
            errors = [bump.mean_squared_error(0.35 * (m / 100) ** (-shrinkage / d), m) for m in (10**12, 4 * 10**12)]
            assert (errors[1] < 0.95 * errors[0]) == falls, (d, shrinkage)


def test_the_minimum_of_an_exact_curve_is_found() -> None:
    for case in optimal_rate.CASES:
        best, error = case.bump.best_bandwidth(1_000_000)
        curve = [case.bump.mean_squared_error(best * factor, 1_000_000) for factor in optimal_rate.FACTORS]
        shift, least = optimal_rate.minimum(np.array([curve]))[0]
        assert shift == pytest.approx(0, abs=3e-3)
        assert least == pytest.approx(np.log(error), abs=2e-3)


def test_exact_slopes_tend_to_those_of_the_theory() -> None:
    for case in optimal_rate.CASES:
        d = case.bump.dimension
        assert optimal_rate.local_slope(case.bump, 1e18) == pytest.approx(-4 / (d + 4), abs=1e-3)
        widths = [np.log(case.bump.best_bandwidth(int(m))[0]) for m in (1e17, 1e19)]
        assert (widths[1] - widths[0]) / np.log(100) == pytest.approx(-1 / (d + 4), abs=1e-3)


def test_measured_slopes_agree_with_the_exact_ones() -> None:
    sizes = [int(local / optimal_rate.SHARE) for local in (500, 2_000, 8_000)]
    rates = optimal_rate.measure(optimal_rate.CASES[0], sizes, (400, 200, 100), [0], silent)
    for slope, exact in zip(rates.slopes, rates.exact_slopes, strict=True):
        assert 0 < slope.error < 0.1
        assert abs(slope.value - exact) < 3 * slope.error
    np.testing.assert_allclose(rates.errors, rates.exact[:, 1], rtol=0.35)


def test_exceedances_vanish_below_two_and_grow_above() -> None:
    generator = np.random.default_rng(5)
    (first, n_first), (last, n_last) = (pointwise.largest_errors(m, 400, generator) for m in (50, 1_600))
    assert n_first.mean() == pytest.approx(50, rel=0.1)
    shares = {}
    for exponent in (0.5, 1.0, 2.5):
        constant = np.median(first * n_first ** (exponent / 6))
        shares[exponent] = (last > constant * n_last ** (-exponent / 6)).mean()
    assert shares[0.5] < 0.1
    assert shares[1.0] < 0.25
    assert shares[2.5] > 0.58
    assert pointwise.difference_from_kcal(generator) < 1e-9


def test_true_probabilities_are_frequencies_near_the_query() -> None:
    generator = np.random.default_rng(3)
    points, labels, _ = pointwise.draw(400_000, 1, generator)
    near = ((points - pointwise.QUERY) ** 2).sum(axis=1) < 0.1**2
    shares = np.bincount(labels[near], minlength=3) / near.sum()
    np.testing.assert_allclose(shares, pointwise.true_probs(pointwise.QUERY), atol=4 * (0.25 / near.sum()) ** 0.5)


def test_binomial_tails_are_exact() -> None:
    for n, probability, deviation in ((40, 0.5, 0.1), (75, 0.3, 0.2), (500, 0.5, 0.25)):
        above = binom.sf(np.ceil(n * (probability + deviation) - 1e-9) - 1, n, probability)
        below = binom.cdf(np.floor(n * (probability - deviation) + 1e-9), n, probability)
        assert log_tail(n, probability, deviation) == pytest.approx(np.log(above + below), rel=1e-9)


def test_slopes_and_standard_errors_of_a_known_line() -> None:
    generator, x = np.random.default_rng(4), np.log([1.0, 2.0, 4.0, 8.0])
    truth = np.exp(1.0 - 0.5 * x)
    draws = [value * generator.gamma(50, 1 / 50, (400, 1)) for value in truth]
    estimates, samples = resampled(draws, np.log, generator)
    slope = fit_slope(x, estimates[0], samples[0], -0.5)
    deviation = (1 / 50 / 400 / ((x - x.mean()) ** 2).sum()) ** 0.5  # each log mean has the variance 1/50/400
    assert slope.error == pytest.approx(deviation, rel=0.2)
    assert slope.distance < 3
    assert line_slopes(x, np.log(truth)) == pytest.approx(-0.5)
    assert Slope(1.0, 0.1, 0.9).distance == pytest.approx(1.0)
