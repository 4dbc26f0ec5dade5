"""The confidence interval of a sum of absolute gaps, Σ_b |g_b|: binned calibration errors.

Noise makes every gap larger, and a resample adds noise a second time, so that the percentile interval of resampled
errors lies above the true error and, near perfect calibration, never contains it. Here tests of hypotheses are
inverted. They lie on one path, from "calibrated" through "the mean gaps of all classes" and "the measured gaps" to
larger gaps:

    gaps(t) = t·h                    0 ≤ t ≤ 1,    h_b the mean gap of all classes at the prediction of bin b
              h + (t − 1)·(g − h)    1 ≤ t ≤ 2,    g_b the measured gap
              (t − 1)·g              2 ≤ t

Under each hypothesis one would measure Σ_b |gaps_b(t) + noise_b|. The interval holds the errors Σ_b |gaps_b(t)| of the
hypotheses under which the measured error is not extreme. The noise is that of binomial counts with the rates of the
hypothesis and, towards the measured gaps, that of the resampled gaps. With a single event, h = g.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kcal.metrics.resampling import Interval, tails

Array = NDArray[np.floating[Any]]

PATH = np.concatenate([np.linspace(0.0, 2.0, 17), [2.2, 2.5, 3.0, 4.0, 6.0, 11.0]])
"""The hypotheses t; in between, quantiles are interpolated."""
FINE = 2001
SHARED_BINS = 20
ROUNDING = 1e-3
"""Fraction of the measured error by which it may pass a quantile: with few possible outcomes they are often equal."""
LEAST_COUNT = 1.5
"""Effective count that a bin needs for its resamples to show its variance."""


class Gaps(NamedTuple):
    """(n_b / n)·gap_b of all bins of some events, each event with equal weight; arrays are (n_gaps,) unless noted."""

    measured: NDArray[np.float64]
    resampled: NDArray[np.float32]  # (resamples, n_gaps)
    shares: NDArray[np.float64]  # n_b / n
    predictions: NDArray[np.float64]  # mean prediction of the bin
    counts: NDArray[np.float64]  # effective counts of the bins
    n_events: int

    def rates(self, gaps: Array) -> NDArray[np.float64]:
        """Return the rate of the event in each bin for given gaps."""
        filled = np.where(self.shares > 0, self.shares, 1.0)
        return np.clip(self.predictions + gaps / filled, 0.0, 1.0)


def gap_interval(gaps: Gaps, confidence: float, *, seed: int, clustered: bool = False) -> Interval:
    """Return the interval of Σ|gaps| by inverting its test along the path.

    ``clustered``: whole groups were resampled; simulated noise is then widened by as much as the groups widen the
    noise of the resamples.
    """
    measured = float(np.abs(gaps.measured).sum())
    systematic = gaps.measured if gaps.n_events == 1 else shared_gaps(gaps)
    noises = _noise(gaps, systematic, np.random.default_rng([seed, 1]), clustered=clustered)
    low_tail, high_tail = tails(confidence)
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


def shared_gaps(gaps: Gaps) -> NDArray[np.float64]:
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


def _gaps_on_path(place: float, measured: Array, systematic: Array) -> NDArray[np.float64]:
    if place <= 2:
        return np.asarray(min(place, 1.0) * systematic + max(place - 1, 0.0) * (measured - systematic))
    return np.asarray((place - 1) * measured)


def _noise(
    gaps: Gaps, systematic: Array, generator: np.random.Generator, *, clustered: bool
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


def _binomial_noise(gaps: Gaps, rates: Array, generator: np.random.Generator, factor: float) -> NDArray[np.float32]:
    counts = np.maximum(np.rint(gaps.counts), 1).astype(np.int64)
    drawn = np.empty(gaps.resampled.shape, dtype=np.float32)
    for row in drawn:
        row[:] = factor * gaps.shares * (generator.binomial(counts, rates) / counts - rates)
    return drawn


def _accepted(measured: float, errors: Array, quantiles: Array) -> Interval:
    """Return the least and the largest error under which the measured one is not extreme."""
    fine = np.linspace(0, len(errors) - 1, FINE)
    error, low, middle, high = (
        np.interp(fine, np.arange(len(errors)), values) for values in (errors, *np.asarray(quantiles).T)
    )
    excess = np.maximum(low - measured, measured - high)  # how far outside; not above 0 where it is accepted
    accepted = excess <= max(float(excess.min()), 0.0) + ROUNDING * measured
    noise = float(high[0] - middle[0])  # errors this small cannot be distinguished from 0
    return Interval(float(error[accepted].min()), min(max(float(error[accepted].max()), noise), 1.0))
