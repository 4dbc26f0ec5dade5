"""Bins of the sorted predictions of one event.

There are two kinds of bins:

- equal count ("adaptive"): with n predictions in B bins, each holds n // B, the last n mod B one more;
- equal width ("static"): bin b holds the predictions in (b/B, (b+1)/B]; 0 is in the first, 1 in the last.

Equal predictions on both sides of a cut share their outcomes evenly: each counts their mean outcome. The frequency of a
bin is then its expectation if ties were broken at random, and every value is a function of the predictions and outcomes
alone: the order of the rows cannot change it, not even by rounding.

With weights, equal-count bins become bins of equal weight; a sample (or several tied ones) on a cut is shared
between its two sides in proportion. Without weights, two sorts without indices are several times as fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from kcal.metrics.predictions import Binning, Event, Floats, Predictions, blocks
from kcal.metrics.resampling import wilson_interval
from kcal.validation import check_integer, check_number

Array = NDArray[np.float64]

TINY = np.finfo(np.float64).tiny
ROUNDING = 1e-12
"""Relative rounding error of a sum of weights."""
MAX_SAMPLES = 10**12


@dataclass(frozen=True, eq=False)
class ReliabilityBins:
    """Observed frequency and mean prediction of one event, in bins of the prediction; nan in an empty bin.

    Equal-width bins are closed on the right. Equal-count bins begin at the smallest prediction, end at the largest and
    meet halfway between neighbours; their edges are nan if there are no samples.
    """

    counts: NDArray[np.intp]  # (bins,), samples in each bin
    mean_prediction: NDArray[np.float64]  # (bins,)
    observed_frequency: NDArray[np.float64]  # (bins,), fraction of the samples in which the event occurred
    edges: NDArray[np.float64]  # (bins + 1,)
    of: Event  # "confidence" (the top class is right) or the index of a class
    adaptive: bool  # whether the bins hold equal counts; otherwise they have equal widths
    weights: NDArray[np.float64]  # (bins,), sums of weights; the counts if samples are not weighted
    effective_counts: NDArray[np.float64]  # (bins,), (Σw)² / Σw²: samples of equal weight with the same variance

    def frequency_bands(self, confidence: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the lower and upper ends, (bins,) each, of Wilson's interval of every observed frequency.

        Weighted samples enter by `effective_counts`. nan in an empty bin.
        """
        check_number(confidence, "confidence", minimum=0, maximum=1, exclusive=True)
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
        """Mean absolute gap, Σ_b (n_b / n)·|gap_b|; nan if there are no samples."""
        return self.mean_of(np.abs(self.gap))

    @property
    def overconfidence(self) -> float:
        """The part of the calibration error from bins whose predictions are too high."""
        return self.mean_of(np.maximum(-self.gap, 0.0))

    @property
    def underconfidence(self) -> float:
        """The part of the calibration error from bins whose predictions are too low."""
        return self.mean_of(np.maximum(self.gap, 0.0))

    def mean_of(self, values: NDArray[np.float64]) -> float:
        """Return the mean over all samples of one value per bin; nan if there are none."""
        if not self.weights.any():
            return float("nan")
        return float(np.nansum(self.weights * values) / self.weights.sum())

    def merged(self, minimum_count: int) -> ReliabilityBins:
        """Merge neighbouring bins from the left until each has at least this many samples; the rest joins the last one.

        Empty bins between merged ones stay. A single bin may have fewer samples: all there are.
        """
        check_integer(minimum_count, "minimum_count", minimum=0, maximum=MAX_SAMPLES)
        starts = _starts_of_merged(self.counts, minimum_count)
        if len(starts) == len(self.counts):
            return self
        counts, mass = (np.add.reduceat(values, starts) for values in (self.counts, self.weights))
        divisor = np.where(mass > 0, mass, np.nan)
        prediction, frequency = (
            np.add.reduceat(np.nan_to_num(self.weights * values), starts) / divisor
            for values in (self.mean_prediction, self.observed_frequency)
        )
        squares = np.add.reduceat(self.weights**2 / np.fmax(self.effective_counts, TINY), starts)
        edges = self.edges[[*starts, len(self.counts)]]
        effective = mass**2 / np.fmax(squares, TINY)
        return ReliabilityBins(counts, prediction, frequency, edges, self.of, self.adaptive, mass, effective)

    def __str__(self) -> str:
        event = "the top class" if self.of == "confidence" else f"class {self.of}"
        columns = (self.edges[:-1], self.edges[1:], self.counts, self.mean_prediction, self.observed_frequency)
        rows = [
            f"{low:6.4f} to {high:6.4f}  {count:>9,}  {mean:10.4f}  {observed:8.4f}"
            for low, high, count, mean, observed in zip(*columns, strict=True)
            if count
        ]
        heading = f"{'bin':<16}  {'samples':>9}  {'prediction':>10}  {'observed':>8}"
        summary = f"Reliability of {event}: {self.total:,} samples, calibration error {self.calibration_error:.4f}"
        return "\n".join([summary, heading, *rows])


def _starts_of_merged(counts: NDArray[np.intp], minimum_count: int) -> list[int]:
    """Return the first bin of each merged bin."""
    starts: list[int] = []
    n_complete, open_count = 0, 0  # bins up to the last one with enough samples; samples of one that takes neighbours
    end = int(np.max(np.flatnonzero(counts), initial=-1)) + 1
    for place, count in enumerate(counts[:end].tolist()):
        if open_count == 0:
            starts.append(place)
        open_count += count
        if count and open_count >= minimum_count:
            n_complete, open_count = len(starts), 0
    if open_count and n_complete:  # too few at the end
        del starts[n_complete:]
    return [*starts, *range(end, len(counts))]


@dataclass(frozen=True, eq=False)
class SortedPredictions:
    """The predictions of one event in ascending order, and those of samples in which it occurred."""

    values: Floats  # (n,)
    positives: Floats  # (n_positive,)

    def bin(self, binning: Binning, *, of: Event) -> ReliabilityBins:
        """Cut the predictions into equal-count (adaptive) or equal-width bins."""
        cuts, edges = _cuts_and_edges(self.values, binning)  # (bins + 1,) each
        counts = np.diff(cuts)
        filled = counts > 0
        mean_prediction, observed_frequency = np.full((2, binning.bins), np.nan)
        if filled.any():
            sums = np.add.reduceat(self.values, cuts[:-1][filled], dtype=np.float64)
            mean_prediction[filled] = sums / counts[filled]
            observed_frequency[filled] = np.diff(self._positives_below(cuts))[filled] / counts[filled]
        mass = counts.astype(np.float64)
        return ReliabilityBins(counts, mean_prediction, observed_frequency, edges, of, binning.adaptive, mass, mass)

    def _positives_below(self, cuts: NDArray[np.intp]) -> Array:
        """Count the positives of lower rank than each cut; a cut through ties takes its fraction of theirs."""
        at_cut = self.values[np.minimum(cuts, len(self.values) - 1)]
        first_tied = np.searchsorted(self.values, at_cut, side="left")
        past_tied = np.searchsorted(self.values, at_cut, side="right")
        lower = np.searchsorted(self.positives, at_cut, side="left")
        tied = np.searchsorted(self.positives, at_cut, side="right") - lower
        return np.asarray(lower + tied * (cuts - first_tied) / (past_tied - first_tied))


@dataclass(frozen=True, eq=False)
class WeightedPredictions:
    """The predictions of one event in ascending order, with outcomes and weights."""

    values: Floats  # (n,)
    occurred: NDArray[np.bool_]  # (n,)
    weights: Array  # (n,)
    order: NDArray[np.intp]  # (n,), the rows they come from

    @property
    def residuals(self) -> Array:
        """Outcome minus prediction, (n,)."""
        return np.asarray(self.occurred - self.values.astype(np.float64))

    def bin(self, binning: Binning, *, of: Event, memberships: csr_array | None = None) -> ReliabilityBins:
        """Cut the predictions into bins of equal weight (adaptive) or of equal width."""
        cuts, edges = _cuts_and_edges(self.values, binning)
        if binning.adaptive:
            inner_weights = self._weights_below_cuts(binning.bins)[1:-1] * (1 + ROUNDING)
            cuts[1:-1] = np.searchsorted(np.cumsum(self.weights), inner_weights, side="right")  # samples wholly below
            edges = _edges_between(self.values, cuts)
        memberships = self.memberships(binning) if memberships is None else memberships
        factors = np.stack([np.ones_like(self.weights), self.values, self.occurred, self.weights], axis=1)  # (n, 4)
        mass, predicted, occurred, squares = (memberships @ (self.weights[:, None] * factors)).T
        divisor = np.where(mass > 0, mass, np.nan)
        means, frequencies, effective_counts = predicted / divisor, occurred / divisor, mass**2 / np.fmax(squares, TINY)
        return ReliabilityBins(np.diff(cuts), means, frequencies, edges, of, binning.adaptive, mass, effective_counts)

    def memberships(self, binning: Binning) -> csr_array:
        """Return the fraction of each sample in each bin, (bins, n); the fractions of a sample sum to 1."""
        n, bins = len(self.values), binning.bins
        if n == 0:
            return csr_array((bins, 0))
        if binning.adaptive:
            lower, upper, fraction = self._cuts_of_equal_weight(bins)
        else:
            lower = upper = _cuts_and_edges(self.values, binning)[0]  # between samples, whatever their ties
            fraction = np.zeros(bins + 1)

        first, sizes = lower[:-1], upper[1:] - lower[:-1]  # the samples of each bin, those on its cuts included
        ends = np.concatenate([[0], np.cumsum(sizes)])
        ranks = np.arange(ends[-1]) + np.repeat(first - ends[:-1], sizes)
        cuts = np.repeat(np.arange(bins), sizes)

        def below(cuts: NDArray[np.intp]) -> Array:
            """Return the fraction of each sample that is below a cut."""
            return np.where(ranks < lower[cuts], 1.0, np.where(ranks < upper[cuts], fraction[cuts], 0.0))

        return csr_array((below(cuts + 1) - below(cuts), ranks, ends), shape=(bins, n))

    def _weights_below_cuts(self, bins: int) -> Array:
        """Return the weight below each cut; equal weights are cut between samples, like samples without weights."""
        if len(self.weights) and (self.weights == self.weights[0]).all():
            return np.asarray(self.weights[0] * _equal_count_cuts(len(self.weights), bins))
        return np.asarray(self.weights.sum() * (np.arange(bins + 1) / bins))

    def _cuts_of_equal_weight(self, bins: int) -> tuple[NDArray[np.intp], NDArray[np.intp], Array]:
        """Return, per cut, the first rank of its ties, the rank past the last, and the fraction of them below it."""
        cumulative = np.concatenate([[0.0], np.cumsum(self.weights)])
        below = self._weights_below_cuts(bins)
        ranks = np.clip(np.searchsorted(cumulative, below, side="right") - 1, 0, len(self.values) - 1)
        lower = np.searchsorted(self.values, self.values[ranks], side="left")
        upper = np.searchsorted(self.values, self.values[ranks], side="right")
        mass = cumulative[upper] - cumulative[lower]
        fraction = np.divide(below - cumulative[lower], mass, out=np.zeros_like(mass), where=mass > 0)
        fraction[-1] = 1.0
        return lower.astype(np.intp), upper.astype(np.intp), np.clip(fraction, 0.0, 1.0)


def sort_predictions(values: Floats, positives: Floats, *, threshold: float = 0.0) -> SortedPredictions:
    """Sort the predictions of at least the threshold; no indices, so that the order of ties is not kept."""
    if threshold > 0:
        values, positives = values[values >= threshold], positives[positives >= threshold]
    return SortedPredictions(np.sort(values), np.sort(positives))


def sort_weighted(predictions: Predictions, of: Event, *, threshold: float = 0.0) -> WeightedPredictions:
    """Sort the predictions of one event of at least the threshold; weights are 1 if there are none."""
    values, occurred = predictions.event(of)
    order = np.argsort(values, kind="stable")
    lowest = values.dtype.type(threshold)  # compared in the predictions' precision
    order = order[np.searchsorted(values[order], lowest, side="left") :]
    return WeightedPredictions(values[order], occurred[order], predictions.row_weights[order], order)


def sort_event(
    predictions: Predictions, of: Event, *, threshold: float = 0.0
) -> SortedPredictions | WeightedPredictions:
    """Sort the predictions of one event of at least the threshold."""
    if predictions.weights is not None:
        return sort_weighted(predictions, of, threshold=threshold)
    values, occurred = predictions.event(of)
    return sort_predictions(values, values[occurred], threshold=threshold)


def bin_event(predictions: Predictions, binning: Binning, *, of: Event) -> ReliabilityBins:
    """Bin the predictions of one event of at least the threshold."""
    return sort_event(predictions, of, threshold=binning.threshold).bin(binning, of=of)


def sort_classes(predictions: Predictions, *, threshold: float) -> Iterator[SortedPredictions | WeightedPredictions]:
    """Yield, class by class, the sorted predictions of at least the threshold; copies one block of columns."""
    if predictions.weights is not None:
        yield from (sort_weighted(predictions, k, threshold=threshold) for k in range(predictions.n_classes))
        return
    probs, n_classes = predictions.probs, predictions.n_classes
    class_ends = np.cumsum(np.bincount(predictions.labels, minlength=n_classes))
    by_class = predictions.label_probs[np.argsort(predictions.labels)]
    positives = np.split(by_class, class_ends[:-1])  # n_classes arrays
    for columns in blocks(n_classes, predictions.n_samples):  # copied, because reading them one by one is slow
        for k, values in enumerate(np.ascontiguousarray(probs[:, columns].T), columns.start):
            yield sort_predictions(values, positives[k], threshold=threshold)


def _cuts_and_edges(values: Floats, binning: Binning) -> tuple[NDArray[np.intp], Array]:
    """Return the ranks at which sorted predictions are cut, and the edges of the bins, (bins + 1,) each."""
    bins = binning.bins
    if binning.adaptive:
        cuts = _equal_count_cuts(len(values), bins)
        return cuts, _edges_between(values, cuts)
    edges = np.asarray(np.arange(bins + 1) / bins)  # correctly rounded, so that 0.15 is the edge 3/20
    inner = np.searchsorted(values, edges[1:-1].astype(values.dtype), side="right")
    return np.concatenate([[0], inner, [len(values)]]).astype(np.intp), edges


def _equal_count_cuts(n: int, bins: int) -> NDArray[np.intp]:
    """Return the ranks at which n sorted predictions are cut; the last n mod bins bins hold one more."""
    ranks = np.arange(bins + 1)
    return np.asarray(ranks * (n // bins) + np.maximum(ranks - bins + n % bins, 0), dtype=np.intp)


def _edges_between(values: Floats, cuts: NDArray[np.intp]) -> Array:
    """Return the midpoints of the predictions on both sides of each cut; the outermost ones at both ends."""
    if len(values) == 0:
        return np.full(len(cuts), np.nan)
    below = values[np.maximum(cuts - 1, 0)].astype(np.float64)
    above = values[np.minimum(cuts, len(values) - 1)].astype(np.float64)
    return np.asarray((below + above) / 2)
