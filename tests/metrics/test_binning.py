"""Bins against a slow loop that knows only the definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcal.metrics import ReliabilityBins
from kcal.metrics.binning import sort_predictions
from kcal.metrics.predictions import Binning

steady = settings(deadline=None, max_examples=50)  # a slow run is no failure

# A coarse grid makes ties, exact edges, zeros and ones common.
PREDICTIONS = st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=60)
BINS = st.integers(1, 25)


def bin_pairs(pairs, *, bins, adaptive):
    values = np.array([value / 20 for value, _ in pairs])
    outcomes = np.array([outcome for _, outcome in pairs])
    return sort_predictions(values, values[outcomes]).bin(Binning(bins, adaptive), of="confidence")


def equal_count_slow(pairs, bins):
    """Give every sample the mean outcome of its ties, sort, deal out n // bins each, one more at the end."""
    mean_outcome = {}
    for value, _ in pairs:
        tied = [outcome for other, outcome in pairs if other == value]
        mean_outcome[value] = sum(tied) / len(tied)
    ordered = sorted(value for value, _ in pairs)
    start, rows = 0, []
    for b in range(bins):
        size = len(pairs) // bins + (1 if b >= bins - len(pairs) % bins else 0)
        members = ordered[start : start + size]
        start += size
        rows.append((size, [v / 20 for v in members], [mean_outcome[v] for v in members]))
    return rows


def equal_width_slow(pairs, bins):
    """Put each sample in the bin (b/B, (b+1)/B] that holds it; 0 in the first."""
    rows = []
    for b in range(bins):
        members = [
            (v / 20, outcome) for v, outcome in pairs if (b / bins < v / 20 <= (b + 1) / bins) or (b == 0 and v == 0)
        ]
        rows.append((len(members), [v for v, _ in members], [outcome for _, outcome in members]))
    return rows


@steady
@given(pairs=PREDICTIONS, bins=BINS, adaptive=st.booleans())
def test_bins_equal_the_slow_loop(pairs, bins, adaptive):
    result = bin_pairs(pairs, bins=bins, adaptive=adaptive)
    rows = (equal_count_slow if adaptive else equal_width_slow)(pairs, bins)
    assert result.counts.tolist() == [count for count, _, _ in rows]
    error = 0.0
    for b, (count, values, outcomes) in enumerate(rows):
        if count == 0:
            assert np.isnan(result.mean_prediction[b])
            assert np.isnan(result.observed_frequency[b])
            continue
        assert result.mean_prediction[b] == pytest.approx(np.mean(values))
        assert result.observed_frequency[b] == pytest.approx(np.mean(outcomes), abs=1e-12)
        error += count / len(pairs) * abs(np.mean(values) - np.mean(outcomes))
    assert result.calibration_error == pytest.approx(error, abs=1e-12)


@steady
@given(pairs=PREDICTIONS, bins=BINS, adaptive=st.booleans(), seed=st.integers(0, 1000))
def test_the_order_of_the_rows_changes_not_one_bit(pairs, bins, adaptive, seed):
    shuffled = [pairs[i] for i in np.random.default_rng(seed).permutation(len(pairs))]
    first = bin_pairs(pairs, bins=bins, adaptive=adaptive)
    second = bin_pairs(shuffled, bins=bins, adaptive=adaptive)
    for name in ("counts", "mean_prediction", "observed_frequency", "edges"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


@steady
@given(pairs=PREDICTIONS, bins=BINS)
def test_equal_count_bins_differ_by_at_most_one_and_the_larger_come_last(pairs, bins):
    counts = bin_pairs(pairs, bins=bins, adaptive=True).counts
    assert counts.max() - counts.min() <= 1
    assert (np.diff(counts) >= 0).all()
    assert counts.sum() == len(pairs)


@steady
@given(pairs=PREDICTIONS, bins=BINS, adaptive=st.booleans())
def test_no_outcome_is_lost_and_edges_enclose_the_predictions(pairs, bins, adaptive):
    result = bin_pairs(pairs, bins=bins, adaptive=adaptive)
    assert np.nansum(result.counts * result.observed_frequency) == pytest.approx(sum(o for _, o in pairs))
    assert (np.diff(result.edges) >= 0).all()
    filled = result.counts > 0
    assert (result.mean_prediction[filled] >= result.edges[:-1][filled] - 1e-12).all()
    assert (result.mean_prediction[filled] <= result.edges[1:][filled] + 1e-12).all()


def test_ties_across_a_cut_share_their_outcomes():
    # Four equal predictions, one positive, two bins: half a positive in each.
    values = np.full(4, 0.5)
    result = sort_predictions(values, values[:1]).bin(Binning(2, True), of=0)
    assert result.counts.tolist() == [2, 2]
    assert result.observed_frequency.tolist() == [0.25, 0.25]
    assert result.edges.tolist() == [0.5, 0.5, 0.5]


def test_equal_width_bins_are_closed_on_the_right_and_hold_zero_and_one():
    values = np.array([0.0, 0.05, 0.15, 0.150001, 0.55, 1.0])
    result = sort_predictions(values, values[-1:]).bin(Binning(20, False), of=0)
    expected = np.zeros(20, dtype=int)
    expected[[0, 2, 3, 10, 19]] = [2, 1, 1, 1, 1]
    assert result.counts.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_edge_belongs_to_the_bin_on_its_left_in_either_precision(dtype):
    for bins in range(1, 101):
        values = np.array([i / bins for i in range(1, bins + 1)], dtype=dtype)
        result = sort_predictions(values, values).bin(Binning(bins, False), of=0)
        assert result.counts.tolist() == [1] * bins


def test_rounding_above_one_stays_in_the_last_bin():
    values = np.array([1.0000001])
    result = sort_predictions(values, values).bin(Binning(4, False), of=0)
    assert result.counts.tolist() == [0, 0, 0, 1]


def test_fewer_samples_than_bins_leave_the_first_bins_empty():
    values = np.array([0.2, 0.8])
    result = sort_predictions(values, values[1:]).bin(Binning(5, True), of=0)
    assert result.counts.tolist() == [0, 0, 0, 1, 1]
    assert result.calibration_error == pytest.approx(0.2)


def test_the_threshold_keeps_predictions_that_equal_it():
    values = np.array([0.1, 0.05, 0.3], dtype=np.float32)
    kept = sort_predictions(values, values[:2], threshold=0.1)
    np.testing.assert_array_equal(kept.values, np.float32([0.1, 0.3]))
    np.testing.assert_array_equal(kept.positives, np.float32([0.1]))


@pytest.mark.parametrize("adaptive", [True, False])
def test_no_samples_give_empty_bins_and_no_error(adaptive):
    nothing = np.array([])
    result = sort_predictions(nothing, nothing).bin(Binning(3, adaptive), of=1)
    assert result.counts.tolist() == [0, 0, 0]
    assert result.total == 0
    assert np.isnan(result.calibration_error)
    assert "0 samples" in str(result)


def test_the_gap_is_negative_where_predictions_are_too_high():
    values = np.array([0.9, 0.9])
    result = sort_predictions(values, values[:1]).bin(Binning(1, False), of=0)
    assert result.gap.tolist() == pytest.approx([-0.4])


def test_bins_print_as_a_table_without_the_empty_ones():
    bins = ReliabilityBins(
        counts=np.array([0, 1200]),
        mean_prediction=np.array([np.nan, 0.75]),
        observed_frequency=np.array([np.nan, 0.5]),
        edges=np.array([0, 0.5, 1]),
        of=3,
        adaptive=False,
        weights=np.array([0, 1200], dtype=float),
        effective_counts=np.array([0, 1200], dtype=float),
    )
    assert str(bins).splitlines() == [
        "Reliability of class 3: 1,200 samples, calibration error 0.2500",
        "bin                 samples  prediction  observed",
        "0.5000 to 1.0000      1,200      0.7500    0.5000",
    ]
