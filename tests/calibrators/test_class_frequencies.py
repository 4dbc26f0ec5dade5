"""Class frequencies from counts: chance is taken out of them, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammaln
from scipy.stats import dirichlet_multinomial

from kcal.calibrators.class_frequencies import LEAST, MOST, likely_frequencies, log_evidence


def strength_of(counts: np.ndarray) -> float:
    """Return the a in π_k ∝ n_k + a, read off two classes."""
    most, least = counts.argmax(), counts.argmin()
    ratio = likely_frequencies(counts)[most] / likely_frequencies(counts)[least]
    return float((counts[most] - ratio * counts[least]) / (ratio - 1))


@pytest.mark.parametrize("strength", [0.5, 3.0, 200.0])
def test_the_evidence_is_the_likelihood_of_the_dirichlet_multinomial(strength):
    counts = np.array([7, 0, 3, 12])
    ways = gammaln(counts.sum() + 1) - gammaln(counts + 1).sum()  # in which samples can come
    expected = dirichlet_multinomial.logpmf(counts, np.full(4, strength), counts.sum()) - ways
    assert log_evidence(counts, strength) == pytest.approx(expected, rel=1e-10)


def test_the_strength_is_the_best_of_a_grid():
    counts = np.random.default_rng(0).multinomial(4000, np.random.default_rng(1).dirichlet(np.full(40, 6.0)))
    grid = np.exp(np.linspace(np.log(LEAST), np.log(MOST), 4001))
    best = grid[np.argmax([log_evidence(counts, strength) for strength in grid])]
    assert 3 < best < 12
    assert strength_of(counts) == pytest.approx(best, rel=0.005)


def test_counts_that_differ_by_chance_alone_make_equal_frequencies():
    counts = np.random.default_rng(2).multinomial(2500, np.full(150, 1 / 150))
    np.testing.assert_allclose(likely_frequencies(counts), 1 / 150, rtol=0.02)
    assert np.ptp(counts) > 10


def test_counts_that_differ_much_stay():
    counts = np.array([5000, 700, 2500, 300])
    np.testing.assert_allclose(likely_frequencies(counts), counts / counts.sum(), rtol=0.01)


def test_drawn_frequencies_are_met_better_than_by_counting():
    generator, errors = np.random.default_rng(3), []
    for _ in range(30):
        true = generator.dirichlet(np.full(100, 5.0))
        counts = generator.multinomial(1000, true)
        errors.append([np.square(found - true).sum() for found in (likely_frequencies(counts), counts / counts.sum())])
    shrunk, counted = np.mean(errors, axis=0)
    assert shrunk < 0.75 * counted  # 2/3 for a known strength: 1000/(1000 + 500)


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=30).filter(lambda counts: sum(counts) > 0))
def test_frequencies_are_in_the_order_of_counts_above_zero_and_no_further_apart(counts):
    seen = np.array(counts)
    found = likely_frequencies(seen)
    assert found.sum() == pytest.approx(1.0)
    assert (found > 0).all()
    assert (np.diff(found[np.argsort(seen)]) >= -1e-15).all()
    assert np.ptp(found) <= np.ptp(seen / seen.sum()) + 1e-12
