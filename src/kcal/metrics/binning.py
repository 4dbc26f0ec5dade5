"""Predictions of one event sorted into bins, and what was observed in each; knows no classes.

Both kinds of bins are cut from the sorted predictions:

- equal count ("adaptive"): with n predictions in B bins, each holds n // B, the last n mod B one more;
- equal width ("static"): bin b holds the predictions in (b/B, (b+1)/B]; 0 is in the first, 1 in the last.

Equal predictions on both sides of a cut share their outcomes evenly: each counts their mean outcome.
The frequency of a bin is then what it would be on average if ties were broken at random, and every value
is a function of the predictions and outcomes alone: the order of the rows cannot change it,
not even by rounding.

With weights, equal-count bins become bins of equal weight; a sample (or several tied ones) on a cut is shared
between its two sides in proportion.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kcal.metrics.predictions import Floats
from kcal.metrics.wilson import wilson_interval


@dataclass(frozen=True, eq=False)
class ReliabilityBins:
    """How often an event was observed, beside how often it was predicted, in bins of the prediction.

    Attributes
    ----------
    counts
        Samples in each bin, (bins,).
    mean_prediction
        Mean of the predictions in each bin, (bins,); nan in an empty one.
    observed_frequency
        Share of the samples of each bin in which the event occurred, (bins,); nan in an empty one.
    edges
        Where the bins end, (bins + 1,). Equal-width bins are closed on the right. Equal-count bins begin
        at the smallest prediction, end at the largest and meet halfway between neighbours;
        nan if there are no samples.
    of
        The event: "confidence" (the top class is right) or the index of a class.
    adaptive
        Whether the bins hold equal counts; otherwise they have equal widths.
    weights
        Weight of the samples in each bin, (bins,), where samples were weighted.
    squared_weights
        Sum of their squared weights.
    """

    counts: NDArray[np.intp]
    mean_prediction: NDArray[np.float64]
    observed_frequency: NDArray[np.float64]
    edges: NDArray[np.float64]
    of: Literal["confidence"] | int
    adaptive: bool
    weights: NDArray[np.float64] | None = None
    squared_weights: NDArray[np.float64] | None = None

    @property
    def effective_counts(self) -> NDArray[np.float64]:
        """How many samples of equal weight say as much as those of each bin: (Σw)² / Σw², the count without weights."""
        if self.weights is None or self.squared_weights is None:
            return self.counts.astype(np.float64)
        squares = np.where(self.squared_weights > 0, self.squared_weights, 1.0)
        return np.asarray(self.weights**2 / squares)

    def frequency_bands(self, confidence: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the lower and upper ends, (bins,) each, of Wilson's interval of every observed frequency.

        Weighted samples count as many as they are worth (`effective_counts`). nan in an empty bin.
        """
        return wilson_interval(self.observed_frequency, self.effective_counts, confidence)

    @property
    def total(self) -> int:
        """Number of samples in all bins."""
        return int(self.counts.sum())

    @property
    def gap(self) -> NDArray[np.float64]:
        """Observed frequency minus mean prediction: negative where the predictions are too high."""
        return self.observed_frequency - self.mean_prediction

    @property
    def calibration_error(self) -> float:
        """Mean size of the gap, Σ_b (n_b / n)·|gap_b|; nan if there are no samples."""
        return self.mean_of(np.abs(self.gap))

    @property
    def overconfidence(self) -> float:
        """The part of the calibration error from bins whose predictions are too high."""
        return self.mean_of(np.maximum(-self.gap, 0.0))

    @property
    def underconfidence(self) -> float:
        """The part of the calibration error from bins whose predictions are too low."""
        return self.mean_of(np.maximum(self.gap, 0.0))

    @property
    def signed_error(self) -> float:
        """Mean gap: observed frequency minus mean prediction over all samples; negative if they are too high."""
        return self.mean_of(self.gap)

    @property
    def gap_shares(self) -> NDArray[np.float64]:
        """(n_b / n)·gap_b of each bin, (bins,), 0 in an empty one: their absolute values sum to the error."""
        masses = self.counts if self.weights is None else self.weights
        return np.asarray(np.nan_to_num(masses * self.gap) / max(float(masses.sum()), np.finfo(np.float64).tiny))

    def mean_of(self, values: NDArray[np.float64]) -> float:
        """Return the mean over all samples of one value a bin; nan if there are none."""
        masses = self.counts if self.weights is None else self.weights
        if not masses.any():
            return float("nan")
        return float(np.nansum(masses * values) / masses.sum())

    def __str__(self) -> str:
        event = "the top class" if self.of == "confidence" else f"class {self.of}"
        rows = [
            f"{low:6.4f} to {high:6.4f}  {count:>9,}  {mean:10.4f}  {observed:8.4f}"
            for low, high, count, mean, observed in zip(
                self.edges[:-1],
                self.edges[1:],
                self.counts,
                self.mean_prediction,
                self.observed_frequency,
                strict=True,
            )
            if count
        ]
        heading = f"{'bin':<16}  {'samples':>9}  {'prediction':>10}  {'observed':>8}"
        summary = f"Reliability of {event}: {self.total:,} samples, calibration error {self.calibration_error:.4f}"
        return "\n".join([summary, heading, *rows])


@dataclass(frozen=True, eq=False)
class SortedPredictions:
    """The predictions of one event in ascending order, and those among them where it occurred."""

    values: Floats  # (n,)
    positives: Floats  # (n_positive,)

    @property
    def is_empty(self) -> bool:
        """Whether nothing counts."""
        return len(self.values) == 0

    def bin(self, *, bins: int, adaptive: bool, of: Literal["confidence"] | int) -> ReliabilityBins:
        """Cut the predictions into equal-count (adaptive) or equal-width bins."""
        return bin_sorted(self, bins=bins, adaptive=adaptive, of=of)


def sort_predictions(values: Floats, positives: Floats, *, threshold: float = 0.0) -> SortedPredictions:
    """Sort the predictions that reach the threshold.

    Only values are sorted, no indices: equal ones cannot be told apart, so no order of ties remains.
    """
    if threshold > 0:
        values, positives = values[values >= threshold], positives[positives >= threshold]
    return SortedPredictions(np.sort(values), np.sort(positives))


def bin_sorted(
    predictions: SortedPredictions, *, bins: int, adaptive: bool, of: Literal["confidence"] | int
) -> ReliabilityBins:
    """Cut sorted predictions into equal-count (adaptive) or equal-width bins."""
    values = predictions.values
    if adaptive:
        cuts = equal_count_cuts(values.shape[0], bins)  # (bins + 1,)
        edges = edges_between(values, cuts)
    else:
        edges = equal_width_edges(bins)
        cuts = equal_width_cuts(values, edges)
    counts = np.diff(cuts)
    filled = counts > 0
    mean_prediction = np.full(bins, np.nan)
    observed_frequency = np.full(bins, np.nan)
    if values.shape[0]:
        sums = np.add.reduceat(values, cuts[:-1][filled], dtype=np.float64)
        mean_prediction[filled] = sums / counts[filled]
        occurred = np.diff(_positives_below(predictions, cuts))
        observed_frequency[filled] = occurred[filled] / counts[filled]
    return ReliabilityBins(counts, mean_prediction, observed_frequency, edges, of, adaptive)


def equal_width_edges(bins: int) -> NDArray[np.float64]:
    """Return k/bins, correctly rounded, so that 0.15 is the edge 3/20; linspace is not."""
    return np.asarray(np.arange(bins + 1) / bins)


def equal_count_cuts(n: int, bins: int) -> NDArray[np.intp]:
    """Ranks at which n sorted predictions are cut; the last n mod bins bins hold one more."""
    sizes = np.full(bins, n // bins, dtype=np.intp)
    sizes[bins - n % bins :] += 1
    return np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(sizes)])


def equal_width_cuts(values: Floats, edges: NDArray[np.float64]) -> NDArray[np.intp]:
    """Ranks at which sorted predictions pass the inner edges, compared in the predictions' precision."""
    inner = np.searchsorted(values, edges[1:-1].astype(values.dtype), side="right")
    return np.concatenate([[0], inner, [values.shape[0]]]).astype(np.intp)


def edges_between(values: Floats, cuts: NDArray[np.intp]) -> NDArray[np.float64]:
    """Halfway between the predictions on both sides of each cut; the outermost ones at both ends."""
    if values.shape[0] == 0:
        return np.full(cuts.shape[0], np.nan)
    below = values[np.maximum(cuts - 1, 0)].astype(np.float64)
    above = values[np.minimum(cuts, values.shape[0] - 1)].astype(np.float64)
    return np.asarray((below + above) / 2)


def _positives_below(predictions: SortedPredictions, cuts: NDArray[np.intp]) -> NDArray[np.float64]:
    """Count the positives of lower rank than each cut; a cut through ties takes its share of theirs."""
    values, positives = predictions.values, predictions.positives
    at_cut = values[np.minimum(cuts, values.shape[0] - 1)]
    first_tied = np.searchsorted(values, at_cut, side="left")
    past_tied = np.searchsorted(values, at_cut, side="right")
    lower = np.searchsorted(positives, at_cut, side="left")
    tied = np.searchsorted(positives, at_cut, side="right") - lower
    return np.asarray(lower + tied * (cuts - first_tied) / (past_tied - first_tied))
