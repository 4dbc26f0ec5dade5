"""Confidence intervals by resampling the rows, or whole groups of them, with replacement.

Means over the rows (accuracy, Brier losses, log-loss) get the plain percentile interval. A binned calibration error
does not: it is a sum of absolute gaps, chance alone makes every gap larger, and a resample adds that chance a second
time. Its percentile interval therefore lies above the truth, and near perfect calibration never holds it. Here the
test of every possible error is inverted instead:

    T(s) = Σ_b |s·g_b + ε_b|,     ε the deviations of the resampled gaps from their mean,

is what one would measure if the true gaps were s times those seen. The interval holds the errors s·Σ|g_b| under which
the measured error is not extreme: s from where it is the upper quantile of T(s) to where it is the lower one.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.errors import InvalidInputError
from kcal.metrics.checks import Floats, Predictions, check_group_codes, check_predictions

ENTRIES_AT_ONCE = 4_000_000
SCALES = np.concatenate([np.linspace(0.0, 1.0, 21), np.linspace(1.1, 2.0, 10), [2.5, 3.0, 5.0, 10.0]])
"""The s that are tried; in between, quantiles are interpolated."""


class Interval(NamedTuple):
    """Ends of a confidence interval."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"[{self.low:.4g}, {self.high:.4g}]"


def check_confidence(confidence: float) -> float:
    """Check the share of intervals that are to hold the truth."""
    if not (isinstance(confidence, int | float | np.floating) and 0 < confidence < 1):
        raise InvalidInputError(f"confidence must lie between 0 and 1, like 0.95; got {confidence!r}.")
    return float(confidence)


def check_resamples(resamples: int) -> int:
    """Check a number of resamples."""
    if not isinstance(resamples, int | np.integer) or isinstance(resamples, bool) or resamples < 20:
        raise InvalidInputError(f"resamples must be a whole number, at least 20; got {resamples!r}.")
    return int(resamples)


def resampled_weights(
    n_samples: int,
    *,
    resamples: int,
    seed: int,
    groups: NDArray[np.intp] | None = None,
    weights: NDArray[np.float64] | None = None,
) -> Iterator[NDArray[np.float64]]:
    """Yield blocks (n_samples, n_vectors) of how often each row is drawn, times its own weight."""
    generator = np.random.default_rng(seed)
    n_drawn = n_samples if groups is None else int(groups.max()) + 1
    if n_drawn < 2:
        what = "samples" if groups is None else "groups"
        raise InvalidInputError(f"an interval needs at least two {what} to resample; got {n_drawn}.")
    height = max(1, ENTRIES_AT_ONCE // n_samples)
    for start in range(0, resamples, height):
        block = np.empty((n_samples, min(height, resamples - start)))
        for column in range(block.shape[1]):
            drawn = np.bincount(generator.integers(n_drawn, size=n_drawn), minlength=n_drawn)
            block[:, column] = drawn if groups is None else drawn[groups]
        yield block if weights is None else block * weights[:, None]


def percentile_interval(values: NDArray[np.float64], confidence: float) -> Interval:
    """Return the plain interval of resampled values."""
    low, high = np.quantile(values, _tails(confidence))
    return Interval(float(low), float(high))


def absolute_sum_interval(gaps: Floats, resampled: Floats, confidence: float, *, at_most: float = 1.0) -> Interval:
    """Return the interval of Σ|gaps| by inverting its test.

    Parameters
    ----------
    gaps
        The gaps as measured, (n_gaps,).
    resampled
        The gaps in each resample, (resamples, n_gaps).
    confidence
        Share of such intervals that are to hold the truth.
    at_most
        The largest value that the sum can have.
    """
    measured = float(np.abs(gaps).sum())
    noise = resampled - resampled.mean(axis=0)
    if measured == 0.0:
        return Interval(0.0, float(np.quantile(np.abs(noise).sum(axis=1), confidence)))
    tails = _tails(confidence)
    quantiles = np.array([np.quantile(np.abs(scale * gaps + noise).sum(axis=1), tails) for scale in SCALES])
    quantiles = np.maximum.accumulate(quantiles, axis=0)  # (n_scales, 2)
    low = np.interp(measured, quantiles[:, 1], SCALES, left=0.0)
    high = np.interp(measured, quantiles[:, 0], SCALES, left=0.0)
    return Interval(float(low * measured), min(float(high * measured), at_most))


def confidence_interval(
    metric: Callable[..., float],
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    confidence: float = 0.95,
    resamples: int = 200,
    groups: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    seed: int = 0,
) -> Interval:
    """Interval of any metric by resampling the rows: the basic ("reverse percentile") bootstrap.

    [2·m − q_high, 2·m − q_low], m being the metric and q the quantiles of the resampled ones: where resampling shifts a
    metric to one side, as it does with most calibration errors, the interval leans to the other. It is a first-order
    remedy; the intervals of `evaluate` go further for binned errors.

    Parameters
    ----------
    metric
        Maps probabilities and labels to a number: any function of ``kcal.metrics``, or your own.
    probs, labels
        As the metric takes them.
    confidence
        Share of such intervals that are to hold the truth.
    resamples
        How many times the metric is computed anew.
    groups
        Patients, speakers, sites, (n_samples,): whole groups are drawn, because their rows are not independent.
    sample_weight
        How much each row counts, (n_samples,); handed to the metric as its ``sample_weight``.
    seed
        Same seed, same interval.
    """
    predictions = check_predictions(probs, labels, sample_weight)
    tails = _tails(check_confidence(confidence))
    codes = None if groups is None else check_group_codes(groups, predictions.n_samples)
    blocks = resampled_weights(predictions.n_samples, resamples=check_resamples(resamples), seed=seed, groups=codes)
    measured = _value_of(metric, predictions)
    everyone = np.arange(predictions.n_samples)
    values = [
        _value_of(metric, predictions.rows(np.repeat(everyone, drawn.astype(np.intp))))
        for block in blocks
        for drawn in block.T
    ]
    low, high = np.nanquantile(values, tails)
    return Interval(float(2 * measured - high), float(2 * measured - low))


def _value_of(metric: Callable[..., float], predictions: Predictions) -> float:
    if predictions.weights is None:
        return float(metric(predictions.probs, predictions.labels))
    return float(metric(predictions.probs, predictions.labels, sample_weight=predictions.weights))


def _tails(confidence: float) -> tuple[float, float]:
    return (1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0
