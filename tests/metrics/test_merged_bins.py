"""Neighbouring bins merged until each has enough samples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcal.errors import InvalidInputError
from kcal.metrics import reliability


def drawn(n_samples, seed):
    generator = np.random.default_rng(seed)
    probs = generator.dirichlet(np.full(3, 0.5), size=n_samples)
    return probs, generator.integers(0, 3, size=n_samples), generator.exponential(size=n_samples)


@settings(max_examples=60, deadline=None)
@given(
    n_samples=st.integers(1, 200),
    minimum_count=st.integers(0, 60),
    bins=st.integers(1, 30),
    adaptive=st.booleans(),
    weighted=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_merging_keeps_sums_and_leaves_no_small_bin(n_samples, minimum_count, bins, adaptive, weighted, seed):
    probs, labels, weights = drawn(n_samples, seed)
    extra = {"sample_weight": weights} if weighted else {}
    whole = reliability(probs, labels, bins=bins, adaptive=adaptive, of=1, **extra)
    merged = reliability(probs, labels, bins=bins, adaptive=adaptive, of=1, minimum_count=minimum_count, **extra)
    filled = merged.counts[merged.counts > 0]
    assert (filled >= minimum_count).all() or len(filled) == 1
    assert merged.total == whole.total
    for name in ("mean_prediction", "observed_frequency"):
        assert merged.mean_of(getattr(merged, name)) == pytest.approx(whole.mean_of(getattr(whole, name)))
    assert merged.calibration_error <= whole.calibration_error + 1e-12
    assert len(merged.edges) == len(merged.counts) + 1
    assert set(merged.edges) <= set(whole.edges)
    assert merged.effective_counts.sum() <= whole.total + 1e-6


def test_bins_merge_from_the_left_and_the_rest_joins_the_last():
    counts = [0, 3, 0, 20, 0, 0, 30, 4, 0, 2, 0]
    values = np.repeat((np.arange(11) + 0.5) / 11, counts)
    merged = reliability(np.column_stack([1 - values, values]), np.ones(len(values), int), of=1, bins=11,
                         adaptive=False, minimum_count=15)  # fmt: skip
    assert merged.counts.tolist() == [0, 23, 0, 0, 36, 0]
    assert merged.edges * 11 == pytest.approx([0, 1, 4, 5, 6, 10, 11])
    assert merged.mean_prediction[1] == pytest.approx((3 * 1.5 + 20 * 3.5) / 23 / 11)


def test_few_samples_stay_one_bin_and_none_stay_none():
    probs, labels, _ = drawn(5, 0)
    few = reliability(probs, labels, adaptive=False, minimum_count=50)
    assert few.counts[few.counts > 0].tolist() == [5]
    assert reliability(probs, labels, of=0, threshold=1.0, minimum_count=50).total == 0


@pytest.mark.parametrize("minimum_count", [-1, 1.5, None, "x"])
def test_a_count_that_is_none_is_refused(minimum_count):
    probs, labels, _ = drawn(5, 0)
    with pytest.raises(InvalidInputError, match="minimum_count must be an integer"):
        reliability(probs, labels, minimum_count=minimum_count)
