"""Confidence intervals by resampling the rows, or whole groups of them, with replacement.

Means over the rows (Brier losses, log-loss) get the plain percentile interval. A binned calibration error does not: it
is a sum of absolute gaps, chance alone makes every gap larger, and a resample adds that chance a second time. Its
percentile interval therefore lies above the truth, and near perfect calibration never holds it. Here the test of every
possible error is inverted instead:

    T(s) = Σ_b |s·g_b + ε_b(s)|

is what one would measure if the true gaps were s times those seen. The interval holds the errors s·Σ|g_b| under which
the measured error is not extreme: s from where it is the upper quantile of T(s) to where it is the lower one. ε(s) is
chance: the deviations of the resampled gaps from their mean, and where these vary less than outcomes drawn with the
predicted probabilities would (a bin in which all outcomes agree does not vary at all), the variance that lacks is made
up by such outcomes, in full for s = 0 and less and less up to s = 1.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kcal.errors import InvalidInputError
from kcal.metrics.checks import Floats

ENTRIES_AT_ONCE = 4_000_000
SCALES = np.concatenate([np.linspace(0.0, 1.0, 11), [1.2, 1.5, 2.0, 3.0, 5.0, 10.0]])
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
    low, high = np.quantile(values, tails_of(confidence))
    return Interval(float(low), float(high))


def absolute_sum_interval(
    gaps: Floats, resampled: Floats, confidence: float, *, if_calibrated: Floats | None = None, at_most: float = 1.0
) -> Interval:
    """Return the interval of Σ|gaps| by inverting its test.

    Parameters
    ----------
    gaps
        The gaps as measured, (n_gaps,).
    resampled
        The gaps in each resample, (resamples, n_gaps).
    confidence
        Share of such intervals that are to hold the truth.
    if_calibrated
        The gaps that chance would show if all true ones were 0, (resamples, n_gaps).
    at_most
        The largest value that the sum can have.
    """
    measured = float(np.abs(gaps).sum())
    noise = resampled - resampled.mean(axis=0)
    lacking = np.zeros(1, dtype=noise.dtype) if if_calibrated is None else _lacking_noise(noise, if_calibrated)
    low_tail, high_tail = tails_of(confidence)
    quantiles = np.array(
        [
            np.quantile(
                np.abs(scale * gaps + noise + math.sqrt(max(1 - scale, 0.0)) * lacking).sum(axis=1),
                (low_tail, 0.5, high_tail),
            )
            for scale in SCALES
        ]
    )
    quantiles = np.maximum.accumulate(quantiles, axis=0)  # (n_scales, 3)
    low = float(np.interp(measured, quantiles[:, 2], SCALES, left=0.0)) * measured
    high = float(np.interp(measured, quantiles[:, 0], SCALES, left=0.0)) * measured
    cannot_be_told_from_0 = float(quantiles[0, 2] - quantiles[0, 1])
    return Interval(low, min(max(high, cannot_be_told_from_0), at_most))


def _lacking_noise(noise: Floats, if_calibrated: Floats) -> Floats:
    """Scale the noise of calibrated predictions to the variance that the resamples are short of, gap by gap."""
    expected = np.maximum(if_calibrated.var(axis=0), np.finfo(np.float32).tiny)
    return np.asarray(if_calibrated * np.sqrt(np.clip(1 - noise.var(axis=0) / expected, 0.0, 1.0)))


def tails_of(confidence: float) -> tuple[float, float]:
    """Return the quantiles between which a share of ``confidence`` lies."""
    return (1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0
