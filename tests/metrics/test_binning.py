"""Bins of one event: which samples they hold, ties, edges, merging, and how they print."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcal.errors import InvalidInputError
from kcal.metrics import reliability

steady = settings(deadline=None, max_examples=50)  # a slow run is not a failure


def binned(values, occurred, **options):
    """Bins of the probability of the second of two classes."""
    values = np.asarray(values)
    return reliability(np.column_stack([1 - values, values]), np.asarray(occurred, dtype=int), of=1, **options)


@st.composite
def events(draw):
    """Draw predictions on a coarse grid: ties, exact edges, zeros and ones are common."""
    pairs = draw(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=60))
    return np.array([value / 20 for value, _ in pairs]), np.array([outcome for _, outcome in pairs])


@steady
@given(event=events(), bins=st.integers(1, 25), adaptive=st.booleans(), seed=st.integers(0, 1000))
def test_bins_hold_every_sample_and_the_order_of_rows_is_exact(event, bins, adaptive, seed):
    values, occurred = event
    result = binned(values, occurred, bins=bins, adaptive=adaptive)
    assert result.total == len(values)
    assert np.nansum(result.counts * result.observed_frequency) == pytest.approx(occurred.sum())
    assert np.nansum(result.counts * result.mean_prediction) == pytest.approx(values.sum())
    assert (np.diff(result.edges) >= 0).all()
    if adaptive:
        assert set(np.diff(result.counts)) <= {0, 1}  # the larger bins come last
    else:
        places = np.maximum(np.ceil(np.round(values * bins, 9)) - 1, 0).astype(int)
        assert result.counts.tolist() == np.bincount(places, minlength=bins).tolist()
    order = np.random.default_rng(seed).permutation(len(values))
    again = binned(values[order], occurred[order], bins=bins, adaptive=adaptive)
    for name in ("counts", "mean_prediction", "observed_frequency", "edges"):
        np.testing.assert_array_equal(getattr(again, name), getattr(result, name))


def test_ties_across_a_cut_share_their_outcomes():
    result = binned(np.full(4, 0.5), [1, 0, 0, 0], bins=2, adaptive=True)
    assert result.counts.tolist() == [2, 2]
    assert result.observed_frequency.tolist() == [0.25, 0.25]
    assert result.edges.tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_edge_belongs_to_the_bin_on_its_left_in_either_precision(dtype):
    for bins in (1, 3, 7, 20, 49, 100):
        values = np.array([i / bins for i in range(1, bins + 1)], dtype=dtype)
        assert binned(values, values > 2, bins=bins, adaptive=False).counts.tolist() == [1] * bins


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f8"])
def test_negative_zero_and_byte_order_do_not_matter(dtype):
    probs = np.array([[-0.0, 1.0], [0.25, 0.75], [1.0, -0.0]], dtype=dtype)
    result = reliability(probs, [1, 0, 0], of=0, bins=3, adaptive=True)
    assert result.mean_prediction.tolist() == [0.0, 0.25, 1.0]
    assert result.observed_frequency.tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("adaptive", [True, False])
def test_threshold_keeps_predictions_that_equal_it(adaptive):
    values = np.array([0.1, 0.05, 0.3], dtype=np.float32)
    kept = binned(values, [1, 1, 0], bins=1, threshold=0.1, adaptive=adaptive)
    assert (kept.total, kept.observed_frequency[0]) == (2, 0.5)
    nothing = binned(values, [1, 1, 0], bins=3, threshold=0.9, adaptive=adaptive)
    assert nothing.counts.tolist() == [0, 0, 0]
    assert np.isnan(nothing.calibration_error)
    assert "0 samples" in str(nothing)


@steady
@given(
    event=events(),
    minimum_count=st.integers(0, 60),
    bins=st.integers(1, 30),
    adaptive=st.booleans(),
    weighted=st.booleans(),
)
def test_merging_keeps_sums_and_leaves_no_small_bin(event, minimum_count, bins, adaptive, weighted):
    weights = 0.5 + np.arange(len(event[0])) % 3 if weighted else None
    whole = binned(*event, bins=bins, adaptive=adaptive, sample_weight=weights)
    merged = whole.merged(minimum_count)
    filled = merged.counts[merged.counts > 0]
    assert (filled >= minimum_count).all() or len(filled) == 1
    assert merged.total == whole.total
    for name in ("mean_prediction", "observed_frequency"):
        assert merged.mean_of(getattr(merged, name)) == pytest.approx(whole.mean_of(getattr(whole, name)))
    assert merged.calibration_error <= whole.calibration_error + 1e-12
    assert len(merged.edges) == len(merged.counts) + 1
    assert set(merged.edges) <= set(whole.edges)


def test_bins_merge_from_the_left_and_the_rest_joins_the_last():
    values = np.repeat((np.arange(11) + 0.5) / 11, [0, 3, 0, 20, 0, 0, 30, 4, 0, 2, 0])
    merged = binned(values, values > 0, bins=11, adaptive=False, minimum_count=15)
    assert merged.counts.tolist() == [0, 23, 0, 0, 36, 0]
    assert merged.edges * 11 == pytest.approx([0, 1, 4, 5, 6, 10, 11])
    assert merged.mean_prediction[1] == pytest.approx((3 * 1.5 + 20 * 3.5) / 23 / 11)


@pytest.mark.parametrize(
    ("name", "value"),
    [("bins", 0), ("bins", 2.5), ("of", 2), ("of", "cat"), ("threshold", 1.1), ("threshold", "median"),
     ("minimum_count", -1), ("adaptive", "yes")],
)  # fmt: skip
def test_invalid_options_are_named(name, value):
    with pytest.raises(InvalidInputError, match=f"^{name} must"):
        reliability([[0.5, 0.5]], [0], **{name: value})
