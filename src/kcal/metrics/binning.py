"""Bins of the sorted predictions of one event.

There are two kinds of bins:

- equal count ("adaptive"): with n predictions in B bins, each holds n // B, the last n mod B one more;
- equal width ("static"): bin b holds the predictions in (b/B, (b+1)/B]; 0 is in the first, 1 in the last.

Equal predictions on both sides of a cut share their outcomes evenly: each counts their mean outcome. The frequency of a
bin is then its expectation if ties were broken at random, and every value is a function of the predictions and outcomes
alone: the order of the rows cannot change it, not even by rounding.

With weights, equal-count bins become bins of equal weight; a sample (or several tied ones) on a cut is shared
between its two sides in proportion. Sums over bins are sums over the runs of samples between cuts and ties.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

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
        """Return the mean over all samples of one value per bin; nan without samples."""
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


class Cuts(NamedTuple):
    """Where sorted predictions are cut into bins; a run has samples that no cut and no tie on a cut separates."""

    starts: NDArray[np.intp]  # (runs,), the first sample of each run
    shares: csr_array  # (bins, runs), the fraction of each run in each bin; the fractions of a run sum to 1
    counts: NDArray[np.intp]  # (bins,)
    edges: Array  # (bins + 1,)

    def sums(self, *factors: NDArray[Any]) -> Array:
        """Return the sums of each factor, (n,), over the bins: (factors, bins)."""
        if len(self.starts) == 0:
            return np.zeros((len(factors), len(self.counts)))
        return np.stack([self.shares @ np.add.reduceat(each, self.starts, dtype=np.float64) for each in factors])


@dataclass(frozen=True, eq=False)
class SortedEvent:
    """The predictions of one event in ascending order, with outcomes and weights."""

    values: Floats  # (n,)
    occurred: NDArray[np.bool_]  # (n,)
    weights: Array | None = None  # (n,); None if all are 1
    order: NDArray[np.intp] | None = None  # (n,), the rows they come from; None if there are neither weights nor groups

    @property
    def row_weights(self) -> Array:
        """The weight of each sample, (n,)."""
        return np.ones(len(self.values)) if self.weights is None else self.weights

    @property
    def residuals(self) -> Array:
        """Outcome minus prediction, (n,)."""
        return np.asarray(self.occurred - self.values.astype(np.float64))

    def bin(self, binning: Binning, *, of: Event, cuts: Cuts | None = None) -> ReliabilityBins:
        """Cut the predictions into bins of equal count or weight (adaptive), or of equal width."""
        cuts = self.cut(binning) if cuts is None else cuts
        if self.weights is None:
            mass = effective_counts = cuts.counts.astype(np.float64)
            predicted, occurred = cuts.sums(self.values, self.occurred)
        else:
            w = self.weights
            mass, predicted, occurred, squares = cuts.sums(w, w * self.values, w * self.occurred, w**2)
            effective_counts = mass**2 / np.fmax(squares, TINY)
        divisor = np.where(mass > 0, mass, np.nan)
        means, frequencies = predicted / divisor, occurred / divisor
        return ReliabilityBins(
            cuts.counts, means, frequencies, cuts.edges, of, binning.adaptive, mass, effective_counts
        )

    def cut(self, binning: Binning) -> Cuts:
        """Return the cuts between the bins."""
        n, bins = len(self.values), binning.bins
        if n == 0:
            edges = np.full(bins + 1, np.nan) if binning.adaptive else np.arange(bins + 1) / bins
            return Cuts(np.zeros(0, dtype=np.intp), csr_array((bins, 0)), np.zeros(bins, dtype=np.intp), edges)
        if not binning.adaptive:
            edges = np.arange(bins + 1) / bins  # correctly rounded: 0.15 is the edge 3/20
            inner = np.searchsorted(self.values, edges[1:-1].astype(self.values.dtype), side="right")
            ranks = np.concatenate([[0], inner, [n]])
            return Cuts(*_runs(ranks, ranks, np.zeros(bins + 1)), np.diff(ranks), edges)
        ranks = _equal_count_cuts(n, bins)
        weights, below = (
            np.arange(n + 1.0),
            ranks.astype(np.float64),
        )  # cumulative weight, and the weight below each cut
        if self.weights is not None:
            weights = np.concatenate([[0.0], np.cumsum(self.weights)])
            are_equal = (self.weights == self.weights[0]).all()
            below = self.weights[0] * ranks if are_equal else self.weights.sum() * (np.arange(bins + 1) / bins)
            ranks[1:-1] = np.searchsorted(weights[1:], below[1:-1] * (1 + ROUNDING), side="right")  # wholly below
        at_cut = self.values[np.clip(np.searchsorted(weights, below, side="right") - 1, 0, n - 1)]
        lower, upper = (np.searchsorted(self.values, at_cut, side=side) for side in ("left", "right"))
        mass = weights[upper] - weights[lower]
        fraction = np.divide(below - weights[lower], mass, out=np.zeros_like(mass), where=mass > 0)
        fraction[-1] = 1.0
        edges = self.values[[np.maximum(ranks - 1, 0), np.minimum(ranks, n - 1)]].astype(np.float64).mean(axis=0)
        return Cuts(*_runs(lower, upper, np.clip(fraction, 0.0, 1.0)), np.diff(ranks), edges)


def sort_event(predictions: Predictions, of: Event, *, threshold: float = 0.0) -> SortedEvent:
    """Sort the predictions of one event of at least the threshold."""
    return _sort(predictions, *predictions.event(of), threshold)


def bin_event(predictions: Predictions, binning: Binning, *, of: Event) -> ReliabilityBins:
    """Bin the predictions of one event of at least the threshold."""
    return sort_event(predictions, of, threshold=binning.threshold).bin(binning, of=of)


def sort_events_of_classes(predictions: Predictions, threshold: float) -> Iterator[SortedEvent]:
    """Yield, class by class, the sorted predictions of at least the threshold; copies one block of columns."""
    for columns in blocks(predictions.n_classes, predictions.n_samples):  # reading columns one by one is slow
        block = np.ascontiguousarray(predictions.probs[:, columns].T)
        for k, values in enumerate(block, columns.start):
            yield _sort(predictions, values, predictions.labels == k, threshold)


def _sort(predictions: Predictions, values: Floats, occurred: NDArray[np.bool_], threshold: float) -> SortedEvent:
    kept: NDArray[Any] | slice = slice(None)
    if threshold > 0:
        kept = np.flatnonzero(values >= values.dtype.type(threshold))  # compared in the predictions' precision
        values, occurred = values[kept], occurred[kept]
    if predictions.weights is None and predictions.groups is None:
        # The bits of floats from 0 to 2 are in the order of the floats and leave the first bit free. Shifted by one,
        # they have room for the outcome: one sort without indices, in which even ties have an order.
        unsigned = np.uint32 if values.dtype == np.float32 else np.uint64
        bits: NDArray[Any] = (values + 0).view(unsigned)  # + 0 turns −0.0 into 0.0
        keys = np.sort((bits << 1) | occurred)
        return SortedEvent((keys >> 1).view(values.dtype), (keys & 1).astype(np.bool_))
    order = np.argsort(values, kind="stable")
    rows = np.arange(predictions.n_samples)[kept][order]
    weights = None if predictions.weights is None else predictions.weights[rows]
    return SortedEvent(values[order], occurred[order], weights, rows)


def _runs(lower: NDArray[np.intp], upper: NDArray[np.intp], fraction: Array) -> tuple[NDArray[np.intp], csr_array]:
    """Return the runs between cuts; each cut has the ranks of its ties and the fraction of them below it."""
    bounds = np.unique(np.concatenate([lower, upper]))  # from 0 to n
    lower, upper = np.searchsorted(bounds, lower), np.searchsorted(bounds, upper)  # in runs
    bins, sizes = np.arange(len(lower) - 1), upper[1:] - lower[:-1]  # the runs of each bin, those on its cuts included
    ends = np.concatenate([[0], np.cumsum(sizes)])
    runs, of_bin = np.arange(ends[-1]) + np.repeat(lower[:-1] - ends[:-1], sizes), np.repeat(bins, sizes)

    def below(cut: NDArray[np.intp]) -> Array:
        """Return the fraction of each run that is below a cut."""
        return np.where(runs < lower[cut], 1.0, np.where(runs < upper[cut], fraction[cut], 0.0))

    shares = csr_array((below(of_bin + 1) - below(of_bin), runs, ends), shape=(len(bins), len(bounds) - 1))
    return bounds[:-1], shares


def _equal_count_cuts(n: int, bins: int) -> NDArray[np.intp]:
    """Return the ranks at which n sorted predictions are cut; the last n mod bins bins hold one more."""
    ranks = np.arange(bins + 1)
    return np.asarray(ranks * (n // bins) + np.maximum(ranks - bins + n % bins, 0), dtype=np.intp)
