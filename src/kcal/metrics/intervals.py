"""Confidence intervals of all metrics of an evaluation from one set of resamples.

Binned calibration errors are sums of absolute gaps, Σ_b |g_b|. Noise makes every gap larger, and a resample adds noise
a second time, so that the percentile interval of resampled errors lies above the true error and, near perfect
calibration, never contains it. Here tests of hypotheses are inverted. They lie on one path, from "calibrated" through
"the mean gaps of all classes" and "the measured gaps" to larger gaps:

    gaps(t) = t·h                    0 ≤ t ≤ 1,    h_b the mean gap of all classes at the prediction of bin b
              h + (t − 1)·(g − h)    1 ≤ t ≤ 2,    g_b the measured gap
              (t − 1)·g              2 ≤ t

Under each hypothesis one would measure Σ_b |gaps_b(t) + noise_b|. The interval holds the errors Σ_b |gaps_b(t)| of the
hypotheses under which the measured error is not extreme. The noise is that of independent outcomes with the rates of
the hypothesis. With a single event, h = g.

Rows of one group may err together. Let R_g be the sum of outcome − prediction over the rows of group g, less the mean
of the event. If rows were independent, Σ R_g² would follow from the squares of single rows; let ρ be the fraction of it
beyond that. The noise of bin b then gets √ρ·Σ_g ξ_g·R_g·n_gb/n_g with one normal ξ_g per group, the same for all bins
and events.

The debiased estimate is the error Σ_b |gaps_b(t)| of the hypothesis under which the measured error is the median of
what one would measure, but not more than the measured error, because chance only adds to it. It lies within the
interval at every level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from scipy.special import ndtri

from kcal.metrics.binning import Cuts, SortedEvent, sort_event
from kcal.metrics.predictions import Binning, Event, Floats, Predictions, blocks
from kcal.metrics.resampling import Interval, Resampling, tails, wilson_interval

Array = NDArray[np.float64]

PATH = np.concatenate([np.linspace(0.0, 2.0, 17), [2.2, 2.5, 3.0, 4.0, 6.0, 11.0]])
"""The hypotheses t; in between, quantiles are interpolated."""
FINE = 2001
SHARED_BINS = 20
MIN_PART = 1e-9
"""Of a variance, below which nothing is left of it."""
TOLERANCE = 1e-3
"""Fraction of the measured error by which it may pass a quantile: with few possible outcomes they are often equal."""


SortedEvents = list[tuple[Event, SortedEvent]]
Estimate = tuple[float, Interval]
"""A calibration error without the part that chance adds, and its interval, which contains it."""


class BinnedError(NamedTuple):
    """A binned calibration error of the confidence, or the mean of those of all classes."""

    of: Literal["confidence", "classes"]
    binning: Binning


def metric_intervals(
    predictions: Predictions, scores: dict[str, Array], errors: Mapping[str, BinnedError], resampling: Resampling
) -> tuple[dict[str, Interval], dict[str, float]]:
    """Return the interval of every metric of an `Evaluation`, and the debiased estimates of its calibration errors.

    Class-wise errors only if a class has samples. ``scores`` has the values of each row, (n_samples,), by metric; the
    accuracy is the first.
    """
    per_row = np.stack(list(scores.values()), axis=1)  # (n_samples, n_metrics)
    draws = resampling.draws(predictions)
    means = np.concatenate(
        [drawn.T @ per_row / drawn.sum(axis=0)[:, None] for drawn in draws]
    )  # (resamples, n_metrics)
    percentiles = {name: resampling.percentile_interval(means[:, i]) for i, name in enumerate(scores)}
    intervals = {name: Interval(max(low, 0.0), high) for name, (low, high) in percentiles.items()}
    intervals["accuracy"] = _accuracy_interval(predictions, means[:, 0], resampling)
    debiased = {}
    events: dict[str, SortedEvents] = {}
    for name, (of, binning) in errors.items():
        if of not in events:
            columns: Sequence[Event] = ["confidence"] if of == "confidence" else range(predictions.n_classes)
            events[of] = _sort_events(predictions, columns, binning.threshold)
        if events[of]:
            gaps = measure_gaps(events[of], binning, resampling.groups)
            debiased[name], intervals[name] = estimate_error(gaps, resampling)
    return intervals, debiased


def _accuracy_interval(predictions: Predictions, resampled: Array, resampling: Resampling) -> Interval:
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


def estimate_class_errors(predictions: Predictions, binning: Binning, resampling: Resampling) -> Array:
    """Return the debiased calibration error of each class, the ends of its interval and the margin, (n_classes, 4).

    The margin is the largest Σ_b (n_b / n)·gap_b that chance alone gives. nan for a class without samples.
    """
    estimates = np.full((predictions.n_classes, 4), np.nan)
    events = _sort_events(predictions, range(predictions.n_classes), binning.threshold)
    if events:
        parts = measure_gaps(events, binning, resampling.groups).split()
        for (k, _), part in zip(events, parts, strict=True):
            debiased, interval = estimate_error(part, resampling)
            estimates[k] = debiased, *interval, chance_margin(part, resampling)
    return estimates


def _sort_events(predictions: Predictions, events: Sequence[Event], threshold: float) -> SortedEvents:
    """Return the sorted predictions of the events that have samples."""
    ordered = ((of, sort_event(predictions, of, threshold=threshold)) for of in events)
    return [(of, event) for of, event in ordered if len(event.values)]


def measure_gaps(events: SortedEvents, binning: Binning, groups: NDArray[np.int64] | None) -> Gaps:
    """Return the gaps of the bins of all events, and what rows of one group add to their noise."""
    numbers, of_groups, squares = [], [], np.zeros(2)
    for of, event in events:
        cuts = event.cut(binning)
        numbers.append(_measure_bins(event, of, binning, cuts))
        if groups is not None:
            part, more = _measure_groups(event, cuts, groups)
            of_groups.append(part)
            squares += more
    measured, shares, means, variances, counts = np.concatenate(numbers, axis=1)
    gaps = Gaps(measured / len(events), shares / len(events), means, variances, counts, len(events))
    observed, independent = squares  # Σ R_g²
    if observed <= independent:
        return gaps
    scale = np.sqrt(1 - independent / observed) / len(events)
    return gaps._replace(group_gaps=csr_array(vstack(of_groups, format="csr")) * scale)


def _measure_bins(event: SortedEvent, of: Event, binning: Binning, cuts: Cuts) -> Array:
    """Return (n_b / n)·gap_b, n_b / n, mean and variance of the predictions, and effective count, (5, bins)."""
    binned = event.bin(binning, of=of, cuts=cuts)
    means = np.nan_to_num(binned.mean_prediction)
    (squares,) = cuts.sums(event.row_weights * event.values.astype(np.float64) ** 2)
    variances = np.maximum(squares / np.where(binned.weights > 0, binned.weights, 1.0) - means**2, 0.0)
    shares = binned.weights / binned.weights.sum()
    return np.stack([shares * np.nan_to_num(binned.gap), shares, means, variances, binned.effective_counts])


def _measure_groups(event: SortedEvent, cuts: Cuts, groups: NDArray[np.int64]) -> tuple[csr_array, Array]:
    """Return R_g·n_gb/n_g, (bins, n_groups), and Σ R_g², as measured and as independent rows would give it, (2,)."""
    codes, n_groups = groups[event.order], int(groups.max()) + 1
    shares = event.row_weights / event.row_weights.sum()
    centred = shares * (event.residuals - shares @ event.residuals)
    sums, sizes = (np.bincount(codes, weights=values, minlength=n_groups) for values in (centred, shares))
    # The mean takes Σ_g (n_g/n)² of the variance of groups from them, and Σ_i (w_i/Σw)² of that of rows.
    left_of_groups, left_of_rows = (max(1 - float(parts @ parts), MIN_PART) for parts in (sizes, shares))
    means = np.divide(sums, sizes, out=np.zeros(n_groups), where=sizes > 0) / np.sqrt(left_of_groups)
    run = np.searchsorted(cuts.starts, np.arange(len(codes)), side="right") - 1
    of_runs = csr_array((shares, (run, codes)), shape=(len(cuts.starts), n_groups))
    squares = np.array([sums @ sums, (centred @ centred) * left_of_groups / left_of_rows])
    return csr_array((cuts.shares @ of_runs).multiply(means[None])), squares


class Gaps(NamedTuple):
    """(n_b / n)·gap_b of all bins of some events, each event with equal weight; arrays are (n_gaps,) unless noted."""

    measured: Array
    shares: Array  # n_b / n
    predictions: Array  # mean prediction of the bin
    variances: Array  # variance of the predictions in the bin
    counts: Array  # effective counts of the bins
    n_events: int
    group_gaps: csr_array | None = None  # (n_gaps, n_groups), √ρ·R_g·n_gb/n_g with the ρ of all events

    def split(self) -> Iterator[Gaps]:
        """Yield the gaps of each event alone."""
        for columns in np.split(np.arange(len(self.shares)), self.n_events):
            measured, shares = (self.n_events * values[columns] for values in (self.measured, self.shares))
            predictions, variances, counts = self.predictions[columns], self.variances[columns], self.counts[columns]
            group_gaps = None if self.group_gaps is None else self.group_gaps[columns] * self.n_events
            yield Gaps(measured, shares, predictions, variances, counts, 1, group_gaps)

    def rates(self, gaps: Floats) -> Array:
        """Return the rate of the event in each bin for given gaps."""
        filled = np.where(self.shares > 0, self.shares, 1.0)
        return np.clip(np.round(self.predictions + gaps / filled, 12), 0.0, 1.0)  # 0 and 1 exactly, which draw nothing


def estimate_error(gaps: Gaps, resampling: Resampling) -> Estimate:
    """Return the debiased Σ|gaps| and its interval by inverting its test along the path."""
    measured = float(np.abs(gaps.measured).sum())
    systematic = gaps.measured if gaps.n_events == 1 else shared_gaps(gaps)
    noises = _noise(gaps, systematic, resampling)
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


def chance_margin(gaps: Gaps, resampling: Resampling) -> float:
    """Return the half-width of the interval of Σ gaps if the predictions are calibrated, with half of the error rate.

    The other half is for the interval of Σ|gaps|: a class is looked at by both.
    """
    variances = gaps.predictions * (1 - gaps.predictions) - gaps.variances  # mean of p·(1 − p) in each bin
    variance = float((gaps.shares**2 * variances / np.maximum(gaps.counts, 1.0)).sum())
    if gaps.group_gaps is not None:
        variance += resampling.few_groups_factor**2 * float((gaps.group_gaps.sum(axis=0) ** 2).sum())
    return float(ndtri(tails((1 + resampling.confidence) / 2)[1]) * np.sqrt(variance))


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


def _noise(gaps: Gaps, systematic: Floats, resampling: Resampling) -> list[NDArray[np.float32]]:
    """Return simulated noise at t = 0, 1 and 2, (resamples, n_gaps) each."""
    generator = np.random.default_rng([resampling.seed, 1])
    smoothed = gaps.rates(systematic)
    shrunk = (gaps.counts * gaps.rates(gaps.measured) + smoothed) / (gaps.counts + 1)
    rates = (gaps.rates(np.zeros(1)), smoothed, shrunk) if gaps.n_events > 1 else (gaps.rates(np.zeros(1)), shrunk)
    noises = [_noise_of_rows(gaps, of_bins, generator, resampling.resamples) for of_bins in rates]
    if gaps.group_gaps is not None:
        shared = np.empty_like(noises[0])
        for block in blocks(resampling.resamples, gaps.group_gaps.shape[1]):
            draws = generator.normal(size=(gaps.group_gaps.shape[1], block.stop - block.start))
            shared[block] = (gaps.group_gaps @ draws).T * resampling.few_groups_factor
        noises = [noise + shared for noise in noises]
    return noises if gaps.n_events > 1 else [noises[0], noises[1], noises[1]]


def _noise_of_rows(gaps: Gaps, rates: Floats, generator: np.random.Generator, resamples: int) -> NDArray[np.float32]:
    """Return noise of independent rows, (resamples, n_gaps): binomial, with the variance of unequal rates in a bin."""
    counts = np.maximum(np.rint(gaps.counts), 1).astype(np.int64)
    variance = rates * (1 - rates)
    unequal = np.divide(gaps.variances, variance, out=np.zeros_like(variance), where=variance > 0)
    scale = gaps.shares * np.sqrt(np.clip(1 - unequal, 0.0, 1.0) * counts / np.maximum(gaps.counts, 1.0))
    drawn = np.empty((resamples, len(counts)), dtype=np.float32)
    for row in drawn:
        row[:] = scale * (generator.binomial(counts, rates) / counts - rates)
    return drawn


def _accepted(measured: float, errors: Array, quantiles: Array) -> Estimate:
    """Return the error under which the measured one is the median, and the least and largest ones accepted."""
    fine = np.linspace(0, len(errors) - 1, FINE)
    error, low, middle, high = (
        np.interp(fine, np.arange(len(errors)), values) for values in (errors, *np.asarray(quantiles).T)
    )
    excess = np.maximum(low - measured, measured - high)  # how far outside; not above 0 where it is accepted
    accepted = excess <= max(float(excess.min()), 0.0) + TOLERANCE * measured
    accepted[0] |= measured <= high[0]  # too small an error does not refute calibration
    noise = float(high[0] - middle[0])  # errors this small cannot be distinguished from 0
    interval = Interval(float(error[accepted].min()), min(max(float(error[accepted].max()), noise), 1.0))
    debiased = min(float(np.interp(measured, np.maximum.accumulate(middle), error)), measured)
    return min(max(debiased, interval.low), interval.high), interval
