"""The canonical calibration error against a direct loop over cells and by hand."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import kcal.metrics.predictions
from kcal.errors import InvalidInputError
from kcal.metrics.calibration import canonical_calibration_error, canonical_cells

steady = settings(deadline=None, max_examples=50)  # a slow run is no failure


@st.composite
def counts(draw):
    """Draw whole numbers: their shares are often equal, often on an edge, and exactly 0 or 1."""
    n, k = draw(st.integers(1, 40)), draw(st.integers(2, 5))
    whole = draw(arrays(np.int64, (n, k), elements=st.integers(0, 4)))
    whole[whole.sum(axis=1) == 0] = 1
    labels = draw(arrays(np.int64, n, elements=st.integers(0, k - 1)))
    return whole, labels


def shares(whole):
    return whole / whole.sum(axis=1, keepdims=True)


def canonical_error_slow(whole, labels, bins):
    cells = {}
    for row, label in zip(whole.tolist(), labels.tolist(), strict=True):
        exact = [Fraction(entry, sum(row)) for entry in row]
        cell = tuple(min(math.floor(p * bins), bins - 1) for p in exact)
        cells.setdefault(cell, []).append((exact, label))
    error = Fraction(0)
    for rows in cells.values():
        for k in range(whole.shape[1]):
            mean = sum(p[k] for p, _ in rows) / len(rows)
            frequency = Fraction(sum(label == k for _, label in rows), len(rows))
            error += Fraction(len(rows), len(whole)) * abs(mean - frequency) / 2
    return float(error)


@steady
@given(data=counts(), bins=st.integers(1, 12))
def test_the_error_equals_the_loop_over_cells(data, bins):
    whole, labels = data
    expected = canonical_error_slow(whole, labels, bins)
    assert canonical_calibration_error(shares(whole), labels, bins=bins) == pytest.approx(expected, abs=1e-12)
    single = shares(whole).astype(np.float32)
    assert canonical_calibration_error(single, labels, bins=bins) == pytest.approx(expected, abs=1e-5)


@steady
@given(data=counts(), bins=st.integers(1, 12), weighted=st.booleans())
def test_the_cells_sum_up_to_the_error(data, bins, weighted):
    whole, labels = data
    weights = 1.0 + np.arange(len(labels)) % 3 if weighted else None
    cells = canonical_cells(shares(whole), labels, bins=bins, sample_weight=weights)
    error = canonical_calibration_error(shares(whole), labels, bins=bins, sample_weight=weights)
    assert cells.calibration_error == pytest.approx(error, abs=1e-12)
    assert cells.counts.sum() == len(labels)
    np.testing.assert_allclose(cells.mean_prediction.sum(axis=1), 1)
    np.testing.assert_allclose(cells.observed_frequency.sum(axis=1), 1)
    assert f"{len(cells.counts):,} cells" in str(cells)


def test_two_cells_by_hand():
    # Two bins. (.6, .3, .1) and (.8, .1, .1) share the cell (1, 0, 0): mean (.7, .2, .1) against (.5, 0, .5):
    # half of .2 + .2 + .4 is .4. (.4, .3, .3) is alone: against (0, 1, 0), half of .4 + .7 + .3 is .7.
    probs = np.array([[0.6, 0.3, 0.1], [0.8, 0.1, 0.1], [0.4, 0.3, 0.3]])
    assert canonical_calibration_error(probs, [0, 2, 1], bins=2) == pytest.approx(2 / 3 * 0.4 + 1 / 3 * 0.7)


def test_cells_are_closed_on_the_left_and_one_is_in_the_last():
    # .5 begins the upper bin, so (.5, .5) is alone; (1, 0) and (.75, .25) are together.
    probs = np.array([[0.5, 0.5], [1.0, 0.0], [0.75, 0.25]])
    assert canonical_calibration_error(probs, [0, 0, 1], bins=2) == pytest.approx((0.5 + 2 * 0.375) / 3)


def test_one_bin_compares_the_mean_with_the_class_frequencies():
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.ones(4), size=60)
    labels = generator.integers(0, 4, size=60)
    expected = np.abs(probs.mean(axis=0) - np.bincount(labels, minlength=4) / 60).sum() / 2
    assert canonical_calibration_error(probs, labels, bins=1) == pytest.approx(expected)


@steady
@given(data=counts(), seed=st.integers(0, 1000))
def test_permuting_rows_or_classes_does_not_change_the_error(data, seed):
    probs, labels = shares(data[0]), data[1]
    generator = np.random.default_rng(seed)
    rows, classes = generator.permutation(len(labels)), generator.permutation(probs.shape[1])
    before = canonical_calibration_error(probs, labels)
    assert canonical_calibration_error(probs[rows], labels[rows]) == pytest.approx(before, abs=1e-12)
    assert canonical_calibration_error(probs[:, classes], np.argsort(classes)[labels]) == pytest.approx(
        before, abs=1e-12
    )


@steady
@given(data=counts(), bins=st.integers(1, 300))
def test_the_error_lies_between_zero_and_the_mean_distance_from_the_truth(data, bins):
    probs, labels = shares(data[0]), data[1]
    alone = np.mean(1 - probs[np.arange(len(labels)), labels])
    assert 0 <= canonical_calibration_error(probs, labels, bins=bins) <= alone + 1e-12


def test_certain_predictions_cost_nothing_when_right_and_everything_when_wrong():
    assert canonical_calibration_error(np.eye(3), [0, 1, 2]) == 0
    assert canonical_calibration_error(np.eye(3), [1, 2, 0]) == 1


def test_one_sample_costs_its_distance_from_the_truth():
    assert canonical_calibration_error([[0.7, 0.3]], [0]) == pytest.approx(0.3)


def test_blocks_give_the_same_value_as_one_block(monkeypatch):
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.ones(7), size=50)
    labels = generator.integers(0, 7, size=50)
    whole = canonical_calibration_error(probs, labels, bins=3)
    monkeypatch.setattr(kcal.metrics.predictions, "BLOCK_ENTRIES", 120)
    assert canonical_calibration_error(probs, labels, bins=3) == pytest.approx(whole)


def test_a_thousand_classes_and_as_many_bins_need_no_grid():
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.full(1000, 0.01), size=30)
    labels = generator.integers(0, 1000, size=30)
    alone = np.mean(1 - probs[np.arange(30), labels])  # so many cells that no two samples share one
    assert canonical_calibration_error(probs, labels, bins=1000) == pytest.approx(alone)
    repeated, again = np.repeat(probs[:2], 5, axis=0), np.repeat(labels[:2], 5)
    assert canonical_calibration_error(repeated, again) == pytest.approx(np.mean(1 - probs[[0, 1], labels[:2]]))


@pytest.mark.parametrize("bins", [0, 2.5, None])
def test_bins_that_are_no_count_are_refused(bins):
    with pytest.raises(InvalidInputError, match="bins must be an integer from 1 to 100,000; got"):
        canonical_calibration_error([[0.5, 0.5]], [0], bins=bins)
