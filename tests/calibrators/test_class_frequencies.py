"""Class frequencies from counts: differences that sampling explains are removed, and no others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammaln
from scipy.stats import dirichlet_multinomial

from kcal.calibrators.blend.class_frequencies import (
    MAX_STRENGTH,
    MIN_STRENGTH,
    likely_frequencies,
    likely_strength,
    log_marginal_likelihood,
    shrunk_counts,
)


@pytest.mark.parametrize("strength", [0.5, 3.0, 200.0])
def test_the_evidence_is_the_likelihood_of_the_dirichlet_multinomial(strength):
    counts = np.array([7, 0, 3, 12])
    ways = gammaln(counts.sum() + 1) - gammaln(counts + 1).sum()  # in which samples can come
    expected = dirichlet_multinomial.logpmf(counts, np.full(4, strength), counts.sum()) - ways
    assert log_marginal_likelihood(counts, strength) == pytest.approx(expected, rel=1e-10)


def test_the_strength_is_the_best_of_a_grid():
    counts = np.random.default_rng(0).multinomial(4000, np.random.default_rng(1).dirichlet(np.full(40, 6.0)))
    grid = np.exp(np.linspace(np.log(MIN_STRENGTH), np.log(MAX_STRENGTH), 4001))
    best = grid[np.argmax([log_marginal_likelihood(counts, strength) for strength in grid])]
    assert 3 < best < 12
    assert likely_strength(counts) == pytest.approx(best, rel=0.005)


def test_counts_that_differ_by_chance_alone_make_equal_frequencies():
    counts = np.random.default_rng(2).multinomial(2500, np.full(150, 1 / 150))
    found = likely_frequencies(counts)
    assert np.ptp(counts) > 10
    assert (np.abs(150 * found - 1) < 0.02).mean() > 0.9  # but for the few that chance would move so far but rarely
    assert np.ptp(found) < 0.4 * np.ptp(counts / counts.sum())


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


def test_a_rare_class_among_many_alike_stays_rare():
    counts = np.r_[np.full(99, 50), 5]
    found = likely_frequencies(counts)
    assert found[-1] == pytest.approx((np.sqrt(5) + 1) ** 2 / 50 / 100, rel=0.02)
    np.testing.assert_allclose(found[:-1], found[0])
    absent = likely_frequencies(np.r_[np.full(99, 50), 0])
    assert absent[-1] == pytest.approx(1 / (99 * 49.5), rel=0.01)


@given(
    st.lists(st.just(0.0) | st.floats(1e-290, 1e6), min_size=2, max_size=30).filter(lambda counts: sum(counts) > 0),
    st.floats(MIN_STRENGTH, MAX_STRENGTH),
)
def test_counts_move_towards_their_mean_and_no_further_than_chance(counts, strength):
    seen = np.array(counts)
    moved, mean = shrunk_counts(seen, strength), seen.mean()
    slack = 1e-9 * seen.sum()
    assert (np.minimum(seen, mean) - slack <= moved).all()
    assert (moved <= np.maximum(seen, mean) + slack).all()
    assert (np.abs(np.sqrt(moved) - np.sqrt(seen)) <= 1 + 1e-6).all()
    found = likely_frequencies(seen, strength)
    assert found.sum() == pytest.approx(1.0)
    assert (found > 0).all()
    assert (np.diff(found[np.argsort(seen)]) >= -1e-15).all()
    np.testing.assert_allclose(likely_frequencies(np.stack([seen, seen + 1]), strength)[0], found)


@pytest.mark.parametrize("counts", [[0.0, 5e-324], [5e-324, 5e-324, 0.0], [1e-310, 1.0]])
@pytest.mark.parametrize("strength", [MIN_STRENGTH, 1.0, MAX_STRENGTH, None])
def test_counts_too_faint_to_be_divided_give_frequencies_too(counts, strength):
    found = likely_frequencies(np.array(counts), strength)
    assert found.sum() == pytest.approx(1.0)
    assert (found > 0).all()
