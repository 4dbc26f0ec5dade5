"""Bins of the predictions of one event: observed frequency beside mean prediction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kcal.metrics.predictions import Event
from kcal.metrics.resampling import wilson_interval
from kcal.validation import check_integer, check_number

TINY = np.finfo(np.float64).tiny
MOST_SAMPLES = 10**12


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
        check_integer(minimum_count, "minimum_count", minimum=0, maximum=MOST_SAMPLES)
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
