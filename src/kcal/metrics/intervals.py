"""Confidence intervals of all metrics of an evaluation from one set of resamples.

Binned calibration errors are sums of absolute gaps, Σ_b |g_b|. Noise makes every gap larger, and a resample adds noise
a second time, so that the percentile interval of resampled errors lies above the true error and, near perfect
calibration, never contains it. Here tests of hypotheses are inverted. They lie on one path, from "calibrated" through
"the mean gaps of all classes" and "the measured gaps" to larger gaps:

    gaps(t) = t·h                    0 ≤ t ≤ 1,    h_b the mean gap of all classes at the prediction of bin b
              h + (t − 1)·(g − h)    1 ≤ t ≤ 2,    g_b the measured gap
              (t − 1)·g              2 ≤ t

Under each hypothesis one would measure Σ_b |gaps_b(t) + noise_b|. The interval holds the errors Σ_b |gaps_b(t)| of the
hypotheses under which the measured error is not extreme. The noise is that of binomial counts with the rates of the
hypothesis and, towards the measured gaps, that of the resampled gaps. With a single event, h = g.

The debiased estimate is the error Σ_b |gaps_b(t)| of the hypothesis under which the measured error is the median of
what one would measure, but not more than the measured error, because chance only adds to it. It lies within the
interval at every level.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from kcal.metrics.binning import WeightedPredictions, sort_weighted
from kcal.metrics.predictions import Binning, Event, Floats, Predictions
from kcal.metrics.reliability_bins import ReliabilityBins
from kcal.metrics.resampling import Interval, Resampling, tails, wilson_interval

Array = NDArray[np.float64]

PATH = np.concatenate([np.linspace(0.0, 2.0, 17), [2.2, 2.5, 3.0, 4.0, 6.0, 11.0]])
"""The hypotheses t; in between, quantiles are interpolated."""
FINE = 2001
SHARED_BINS = 20
ROUNDING = 1e-3
"""Fraction of the measured error by which it may pass a quantile: with few possible outcomes they are often equal."""
LEAST_COUNT = 1.5
"""Effective count that a bin needs for its resamples to show its variance."""


class ErrorEstimate(NamedTuple):
    """A calibration error without the part that chance adds, and its interval, which contains it."""

    debiased: float
    interval: Interval


def metric_intervals(
    predictions: Predictions, scores: dict[str, Array], binning: Binning, resampling: Resampling
) -> tuple[dict[str, Interval], dict[str, float]]:
    """Return the interval of every metric of an `Evaluation`, and the debiased estimates of its calibration errors.

    Class-wise errors only if a class has samples. ``scores`` has the values of each row, (n_samples,), by metric; the
    accuracy is the first.
    """
    per_row = np.stack(list(scores.values()), axis=1)  # (n_samples, n_metrics)
    means = resampled_means(predictions, per_row, resampling)
    intervals = {name: resampling.percentile_interval(means[:, i]) for i, name in enumerate(scores)}
    intervals["accuracy"] = accuracy_interval(predictions, means[:, 0], resampling)
    debiased = {}
    for prefix, adaptive in (("", True), ("static_", False)):
        classwise = binning._replace(adaptive=adaptive)
        events: dict[str, tuple[Sequence[Event], Binning]] = {
            "expected": (["confidence"], classwise._replace(threshold=0.0)),
            "classwise": (range(predictions.n_classes), classwise),
        }
        for name, options in events.items():
            estimate = estimate_binned_error(predictions, *options, resampling)
            if estimate is not None:
                debiased[f"{prefix}{name}_calibration_error"], intervals[f"{prefix}{name}_calibration_error"] = estimate
    return intervals, debiased


def resampled_means(predictions: Predictions, per_row: Array, resampling: Resampling) -> Array:
    """Return the means of values (n_samples, n_metrics) in each resample, (resamples, n_metrics)."""
    return np.concatenate([drawn.T @ per_row / drawn.sum(axis=0)[:, None] for drawn in resampling.draws(predictions)])


def accuracy_interval(predictions: Predictions, resampled: Array, resampling: Resampling) -> Interval:
    """Return Wilson's interval for the number of independent samples with the variance of the resampled accuracies.

    If all predictions are right (or all wrong), resamples do not vary; samples, or groups, then count by their weight.
    """
    accuracy = predictions.mean(predictions.correct)
    variance = float(resampled.var()) * resampling.few_groups_factor**2
    if variance > 0 and predictions.correct.any() and not predictions.correct.all():
        count = accuracy * (1 - accuracy) / variance
    else:
        weights = predictions.row_weights
        if resampling.groups is not None:
            weights = np.bincount(resampling.groups, weights=weights).astype(np.float64)
        count = float(weights.sum() ** 2 / np.sum(weights**2))
    low, high = wilson_interval(accuracy, count, resampling.confidence)
    return Interval(float(low), float(high))


def estimate_binned_error(
    predictions: Predictions, events: Sequence[Event], binning: Binning, resampling: Resampling
) -> ErrorEstimate | None:
    """Estimate the mean calibration error of the events that have samples; None if there are none."""
    gaps = measure_gaps(predictions, events, binning, resampling)
    return None if gaps is None else estimate_error(gaps, resampling)


def estimate_class_errors(predictions: Predictions, binning: Binning, resampling: Resampling) -> Array:
    """Return the debiased calibration error and both ends of its interval for each class, (n_classes, 3).

    nan for a class without samples.
    """
    estimates = np.full((predictions.n_classes, 3), np.nan)
    gaps = measure_gaps(predictions, range(predictions.n_classes), binning, resampling)
    if gaps is not None:
        for k, part in zip(gaps.events, gaps.split(), strict=True):
            debiased, interval = estimate_error(part, resampling)
            estimates[k] = debiased, *interval
    return estimates


def measure_gaps(
    predictions: Predictions, events: Sequence[Event], binning: Binning, resampling: Resampling
) -> "Gaps | None":
    """Return the gaps of the events that have samples, measured and in each resample; None if there are none.

    The bins stay those of the given predictions: if they moved with every resample, samples that change bins would
    count as noise twice.
    """
    sorted_events = ((of, sort_weighted(predictions, of, threshold=binning.threshold)) for of in events)
    filled = [(of, event) for of, event in sorted_events if event.weights.any()]
    if not filled:
        return None
    parts = [_event_matrices(event, of, binning, predictions.n_samples) for of, event in filled]
    residuals, kept = (vstack([part[i] for part in parts], format="csr") for i in (0, 1))
    binned = [part[2] for part in parts]

    def gap_shares(weights: Array) -> Array:
        """Return Σ_bin w·(y − p) / Σ_event w for each column of weights (n_samples, n_vectors); 0 without weight."""
        totals = np.repeat(kept @ weights, binning.bins, axis=0)
        return np.asarray((residuals @ weights) / np.where(totals > 0, totals, 1.0) / len(parts))

    blocks = [gap_shares(drawn).astype(np.float32) for drawn in resampling.draws(predictions)]
    return Gaps(
        measured=gap_shares(predictions.row_weights[:, None])[:, 0],
        resampled=np.ascontiguousarray(np.concatenate(blocks, axis=1).T),
        shares=np.concatenate([part.weights / part.weights.sum() for part in binned]) / len(parts),
        predictions=np.concatenate([np.nan_to_num(part.mean_prediction) for part in binned]),
        counts=np.concatenate([part.effective_counts for part in binned]),
        events=[of for of, _ in filled],
    )


def _event_matrices(
    event: WeightedPredictions, of: Event, binning: Binning, n_samples: int
) -> tuple[csr_array, csr_array, ReliabilityBins]:
    """Return residuals where a row is in a bin, (bins, n_samples), 1 where it is in any bin, and the bins."""
    memberships = event.memberships(binning)
    residuals = memberships.data * event.residuals[memberships.indices]
    rows, n_kept = event.order[memberships.indices], len(event.order)
    return (
        csr_array((residuals, rows, memberships.indptr), shape=(binning.bins, n_samples)),
        csr_array((np.ones(n_kept), event.order, [0, n_kept]), shape=(1, n_samples)),
        event.bin(binning, of=of),
    )


class Gaps(NamedTuple):
    """(n_b / n)·gap_b of all bins of some events, each event with equal weight; arrays are (n_gaps,) unless noted."""

    measured: Array
    resampled: NDArray[np.float32]  # (resamples, n_gaps)
    shares: Array  # n_b / n
    predictions: Array  # mean prediction of the bin
    counts: Array  # effective counts of the bins
    events: Sequence[Event]

    @property
    def n_events(self) -> int:
        """Number of events."""
        return len(self.events)

    def split(self) -> "Iterator[Gaps]":
        """Yield the gaps of each event alone."""
        for place, columns in enumerate(np.split(np.arange(len(self.shares)), self.n_events)):
            measured, shares = (self.n_events * values[columns] for values in (self.measured, self.shares))
            resampled = np.float32(self.n_events) * self.resampled[:, columns]
            rest = (self.predictions[columns], self.counts[columns], [self.events[place]])
            yield Gaps(measured, resampled, shares, *rest)

    def rates(self, gaps: Floats) -> Array:
        """Return the rate of the event in each bin for given gaps."""
        filled = np.where(self.shares > 0, self.shares, 1.0)
        return np.clip(self.predictions + gaps / filled, 0.0, 1.0)


def estimate_error(gaps: Gaps, resampling: Resampling) -> ErrorEstimate:
    """Return the debiased Σ|gaps| and its interval by inverting its test along the path.

    If whole groups were resampled, simulated noise is widened by as much as they widen the noise of the resamples.
    """
    measured = float(np.abs(gaps.measured).sum())
    systematic = gaps.measured if gaps.n_events == 1 else shared_gaps(gaps)
    noises = _noise(gaps, systematic, np.random.default_rng([resampling.seed, 1]), resampling.groups is not None)
    low_tail, high_tail = tails(resampling.confidence)
    errors, quantiles = [], []
    for place in PATH:
        assumed = _gaps_on_path(place, gaps.measured, systematic)
        before = min(int(place), 1)
        weight = min(place, 2.0) - before
        noise = np.sqrt(1 - weight) * noises[before] + np.sqrt(weight) * noises[before + 1]
        sums = np.abs(assumed.astype(np.float32) + noise).sum(axis=1)
        errors.append(float(np.abs(assumed).sum()))
        quantiles.append(np.quantile(sums, (low_tail, 0.5, high_tail)))
    return _accepted(measured, np.array(errors), np.array(quantiles))


def shared_gaps(gaps: Gaps) -> Array:
    """Return the mean gap of all events at the prediction of each bin, times the fraction of the bin."""
    filled = np.flatnonzero(gaps.shares > 0)
    order = filled[np.argsort(gaps.predictions[filled], kind="stable")]
    counts = gaps.counts[order]
    reached = np.cumsum(counts)
    block = np.minimum((SHARED_BINS * (reached - counts / 2) / reached[-1]).astype(np.intp), SHARED_BINS - 1)
    total = np.bincount(block, weights=counts)
    nonempty = total > 0
    sizes = gaps.measured[order] / gaps.shares[order]
    predictions, means = (
        np.bincount(block, weights=counts * values)[nonempty] / total[nonempty]
        for values in (gaps.predictions[order], sizes)
    )
    return np.asarray(gaps.shares * np.interp(gaps.predictions, predictions, means))


def _gaps_on_path(place: float, measured: Floats, systematic: Floats) -> Array:
    if place <= 2:
        return np.asarray(min(place, 1.0) * systematic + max(place - 1, 0.0) * (measured - systematic))
    return np.asarray((place - 1) * measured)


def _noise(
    gaps: Gaps, systematic: Floats, generator: np.random.Generator, clustered: bool
) -> tuple[NDArray[np.float32], ...]:
    """Return simulated noise at t = 0, 1 and 2, (resamples, n_gaps) each."""
    measured_rates = gaps.rates(gaps.measured)
    smoothed_rates = gaps.rates(systematic)
    enough = gaps.counts > LEAST_COUNT
    widening = np.sqrt(np.where(enough, gaps.counts / np.maximum(gaps.counts - 1, LEAST_COUNT - 1), 1.0))
    resampled = (gaps.resampled - gaps.resampled.mean(axis=0)) * widening.astype(np.float32)
    factor = 1.0
    if clustered:
        of_rows = (gaps.shares**2 * measured_rates * (1 - measured_rates) / np.maximum(gaps.counts, 1.0)).sum()
        factor = float(np.sqrt(max(resampled.var(axis=0).sum() / of_rows, 1.0))) if of_rows > 0 else 1.0
    shrunk_rates = (gaps.counts * measured_rates + smoothed_rates) / (gaps.counts + 1)
    drawn = [
        _binomial_noise(gaps, rates, generator, factor)
        for rates in (gaps.rates(np.zeros(1)), smoothed_rates, shrunk_rates)
    ]
    at_measured = np.where(enough, resampled, drawn[2])
    return drawn[0], at_measured if gaps.n_events == 1 else drawn[1], at_measured


def _binomial_noise(gaps: Gaps, rates: Floats, generator: np.random.Generator, factor: float) -> NDArray[np.float32]:
    counts = np.maximum(np.rint(gaps.counts), 1).astype(np.int64)
    drawn = np.empty(gaps.resampled.shape, dtype=np.float32)
    for row in drawn:
        row[:] = factor * gaps.shares * (generator.binomial(counts, rates) / counts - rates)
    return drawn


def _accepted(measured: float, errors: Floats, quantiles: Floats) -> ErrorEstimate:
    """Return the error under which the measured one is the median, and the least and largest ones accepted."""
    fine = np.linspace(0, len(errors) - 1, FINE)
    error, low, middle, high = (
        np.interp(fine, np.arange(len(errors)), values) for values in (errors, *np.asarray(quantiles).T)
    )
    excess = np.maximum(low - measured, measured - high)  # how far outside; not above 0 where it is accepted
    accepted = excess <= max(float(excess.min()), 0.0) + ROUNDING * measured
    noise = float(high[0] - middle[0])  # errors this small cannot be distinguished from 0
    interval = Interval(float(error[accepted].min()), min(max(float(error[accepted].max()), noise), 1.0))
    debiased = min(float(np.interp(measured, np.maximum.accumulate(middle), error)), measured)
    return ErrorEstimate(min(max(debiased, interval.low), interval.high), interval)
