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

Rows of one group may err together. Let R_g be the sum of outcome − prediction − g_b over the rows of group g, each in
its bin b. If rows were independent, Σ R_g² would follow from the squares of single rows; let ρ be the fraction of it
beyond that. The noise of bin b then gets √ρ·Σ_g ξ_g·R_g·n_gb/n_g with one normal ξ_g per group, the same for all bins
and events.

The debiased estimate is the error Σ_b |gaps_b(t)| of the hypothesis under which the measured error is the median of
what one would measure, but not more than the measured error, because chance only adds to it. It lies within the
interval at every level.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from scipy.stats import norm

from kcal.metrics.binning import WeightedPredictions, sort_weighted
from kcal.metrics.predictions import Binning, Event, Floats, Predictions
from kcal.metrics.resampling import Interval, Resampling, tails, wilson_interval

Array = NDArray[np.float64]

PATH = np.concatenate([np.linspace(0.0, 2.0, 17), [2.2, 2.5, 3.0, 4.0, 6.0, 11.0]])
"""The hypotheses t; in between, quantiles are interpolated."""
FINE = 2001
SHARED_BINS = 20
ROUNDING = 1e-3
"""Fraction of the measured error by which it may pass a quantile: with few possible outcomes they are often equal."""


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
    gaps = measure_gaps(predictions, events, binning, resampling.groups)
    return None if gaps is None else estimate_error(gaps, resampling)


def estimate_class_errors(predictions: Predictions, binning: Binning, resampling: Resampling) -> Array:
    """Return the debiased calibration error of each class, the ends of its interval and the margin, (n_classes, 4).

    The margin is the largest Σ_b (n_b / n)·gap_b that chance alone gives. nan for a class without samples.
    """
    estimates = np.full((predictions.n_classes, 4), np.nan)
    gaps = measure_gaps(predictions, range(predictions.n_classes), binning, resampling.groups)
    if gaps is not None:
        for k, part in zip(gaps.events, gaps.split(), strict=True):
            debiased, interval = estimate_error(part, resampling)
            estimates[k] = debiased, *interval, chance_margin(part, resampling)
    return estimates


def measure_gaps(
    predictions: Predictions, events: Sequence[Event], binning: Binning, groups: NDArray[np.int64] | None
) -> "Gaps | None":
    """Return the gaps of the events that have samples; None if there are none."""
    sorted_events = ((of, sort_weighted(predictions, of, threshold=binning.threshold)) for of in events)
    filled = [(of, event) for of, event in sorted_events if event.weights.any()]
    if not filled:
        return None
    numbers = np.concatenate([_measure_bins(event, of, binning) for of, event in filled], axis=1)
    measured, shares = numbers[:2] / len(filled)
    means, variances, counts = numbers[2:]
    gaps = Gaps(measured, shares, means, variances, counts, [of for of, _ in filled])
    if groups is None:
        return gaps
    effects = [_measure_groups(event, of, binning, groups) for of, event in filled]
    together, alone = np.sum([squares for _, squares in effects], axis=0)
    excess = max(1 - alone / together, 0.0) if together > 0 else 0.0
    return gaps._replace(effects=vstack([part for part, _ in effects], format="csr") * (np.sqrt(excess) / len(filled)))


def _measure_bins(event: WeightedPredictions, of: Event, binning: Binning) -> Array:
    """Return (n_b / n)·gap_b, n_b / n, mean and variance of the predictions, and effective count, (5, bins)."""
    binned, memberships = event.bin(binning, of=of), event.memberships(binning)
    means = np.nan_to_num(binned.mean_prediction)
    squares = memberships @ (event.weights * event.values.astype(np.float64) ** 2)
    variances = np.maximum(squares / np.where(binned.weights > 0, binned.weights, 1.0) - means**2, 0.0)
    shares = binned.weights / binned.weights.sum()
    return np.stack([shares * np.nan_to_num(binned.gap), shares, means, variances, binned.effective_counts])


def _measure_groups(
    event: WeightedPredictions, of: Event, binning: Binning, groups: NDArray[np.int64]
) -> tuple[csr_array, Array]:
    """Return R_g·n_gb/n_g, (bins, n_groups), and Σ R_g², as measured and as independent rows would give it, (2,)."""
    binned, rows = event.bin(binning, of=of), event.memberships(binning)
    bins, n_groups = binning.bins, int(groups.max()) + 1
    bin_of_row = np.repeat(np.arange(bins), np.diff(rows.indptr))
    place = bin_of_row * n_groups + groups[event.order[rows.indices]]
    fractions = rows.data * event.weights[rows.indices] / event.weights.sum()
    centred = fractions * event.residuals[rows.indices] - fractions * np.nan_to_num(binned.gap)[bin_of_row]
    sizes, sums = (
        np.bincount(place, weights=values, minlength=bins * n_groups).reshape(bins, n_groups)
        for values in (fractions, centred)
    )
    # Its own gap takes 1/n_b of the variance of single rows from a bin, and Σ_g (n_gb/n_b)² of that of groups.
    shares = np.where(binned.weights > 0, binned.weights / event.weights.sum(), 1.0)
    left_of_groups = 1 - ((sizes / shares[:, None]) ** 2).sum(axis=1)
    left_of_rows = np.maximum(1 - 1 / np.maximum(binned.effective_counts, 1.0), ROUNDING)
    alone = (np.bincount(bin_of_row, weights=centred**2, minlength=bins) * left_of_groups / left_of_rows).sum()
    totals, of_groups = sums.sum(axis=0), sizes.sum(axis=0)
    effects = np.divide(totals, of_groups, out=np.zeros(n_groups), where=of_groups > 0)
    return csr_array(sizes * effects), np.array([(totals**2).sum(), alone])


class Gaps(NamedTuple):
    """(n_b / n)·gap_b of all bins of some events, each event with equal weight; arrays are (n_gaps,) unless noted."""

    measured: Array
    shares: Array  # n_b / n
    predictions: Array  # mean prediction of the bin
    variances: Array  # variance of the predictions in the bin
    counts: Array  # effective counts of the bins
    events: Sequence[Event]
    effects: csr_array | None = None  # (n_gaps, n_groups), √ρ·R_g·n_gb/n_g with the ρ of all events

    @property
    def n_events(self) -> int:
        """Number of events."""
        return len(self.events)

    def split(self) -> "Iterator[Gaps]":
        """Yield the gaps of each event alone."""
        for place, columns in enumerate(np.split(np.arange(len(self.shares)), self.n_events)):
            measured, shares = (self.n_events * values[columns] for values in (self.measured, self.shares))
            predictions, variances, counts = self.predictions[columns], self.variances[columns], self.counts[columns]
            effects = None if self.effects is None else self.effects[columns] * self.n_events
            yield Gaps(measured, shares, predictions, variances, counts, [self.events[place]], effects)

    def rates(self, gaps: Floats) -> Array:
        """Return the rate of the event in each bin for given gaps."""
        filled = np.where(self.shares > 0, self.shares, 1.0)
        return np.clip(np.round(self.predictions + gaps / filled, 12), 0.0, 1.0)  # 0 and 1 exactly, which draw nothing


def estimate_error(gaps: Gaps, resampling: Resampling) -> ErrorEstimate:
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
    """Return the half-width of the interval of Σ gaps if the predictions are calibrated."""
    variances = gaps.predictions * (1 - gaps.predictions) - gaps.variances  # mean of p·(1 − p) in each bin
    variance = float((gaps.shares**2 * variances / np.maximum(gaps.counts, 1.0)).sum())
    if gaps.effects is not None:
        variance += resampling.few_groups_factor**2 * float((gaps.effects.sum(axis=0) ** 2).sum())
    return float(norm.ppf(tails(resampling.confidence)[1]) * np.sqrt(variance))


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
    if gaps.effects is not None:
        signs = resampling.few_groups_factor * generator.normal(size=(gaps.effects.shape[1], resampling.resamples))
        shared = (gaps.effects @ signs).T.astype(np.float32)
        noises = [noise + shared for noise in noises]
    return noises if gaps.n_events > 1 else [noises[0], noises[1], noises[1]]


def _noise_of_rows(gaps: Gaps, rates: Floats, generator: np.random.Generator, resamples: int) -> NDArray[np.float32]:
    """Return noise of independent rows, (resamples, n_gaps): binomial, with the variance of unequal rates in a bin."""
    counts = np.maximum(np.rint(gaps.counts), 1).astype(np.int64)
    variance = rates * (1 - rates)
    equal = np.divide(gaps.variances, variance, out=np.zeros_like(variance), where=variance > 0)
    scale = gaps.shares * np.sqrt(np.clip(1 - equal, 0.0, 1.0))
    drawn = np.empty((resamples, len(counts)), dtype=np.float32)
    for row in drawn:
        row[:] = scale * (generator.binomial(counts, rates) / counts - rates)
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
