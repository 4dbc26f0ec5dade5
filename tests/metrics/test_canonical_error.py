"""The canonical calibration error against a direct loop over cells and by hand."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kcal.metrics import canonical_calibration_error, canonical_cells

steady = settings(deadline=None, max_examples=50)  # a slow run is not a failure


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
def test_error_equals_the_loop_over_cells(data, bins):
    whole, labels = data
    expected = canonical_error_slow(whole, labels, bins)
    assert canonical_calibration_error(shares(whole), labels, bins=bins) == pytest.approx(expected, abs=1e-12)
    single = shares(whole).astype(np.float32)
    assert canonical_calibration_error(single, labels, bins=bins) == pytest.approx(expected, abs=1e-5)


@steady
@given(data=counts(), bins=st.integers(1, 12), weighted=st.booleans())
def test_cells_sum_up_to_the_error(data, bins, weighted):
    whole, labels = data
    weights = 1.0 + np.arange(len(labels)) % 3 if weighted else None
    cells = canonical_cells(shares(whole), labels, bins=bins, sample_weight=weights)
    error = canonical_calibration_error(shares(whole), labels, bins=bins, sample_weight=weights)
    assert cells.calibration_error == pytest.approx(error, abs=1e-12)
    assert cells.counts.sum() == len(labels)
    np.testing.assert_allclose(cells.mean_prediction.sum(axis=1), 1)
    np.testing.assert_allclose(cells.observed_frequency.sum(axis=1), 1)
    assert f"{len(cells.counts):,} cells" in str(cells)


def test_thousand_classes_and_as_many_bins_need_no_grid():
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.full(1000, 0.01), size=30)
    labels = generator.integers(0, 1000, size=30)
    alone = np.mean(1 - probs[np.arange(30), labels])  # so many cells that no two samples share one
    assert canonical_calibration_error(probs, labels, bins=1000) == pytest.approx(alone)
    repeated, again = np.repeat(probs[:2], 5, axis=0), np.repeat(labels[:2], 5)
    assert canonical_calibration_error(repeated, again) == pytest.approx(np.mean(1 - probs[[0, 1], labels[:2]]))
