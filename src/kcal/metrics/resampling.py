"""Drawing rows, or whole groups of them, anew; and the intervals that come of it directly."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t

from kcal.errors import InvalidInputError

ENTRIES_AT_ONCE = 4_000_000


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


def percentile_interval(values: NDArray[np.float64], confidence: float, *, widened: float = 1.0) -> Interval:
    """Return the plain interval of resampled values, its ends moved away from their mean by a factor."""
    low, high = np.quantile(values, tails_of(confidence))
    middle = float(np.mean(values))
    return Interval(middle + widened * (float(low) - middle), middle + widened * (float(high) - middle))


def few_groups_factor(groups: NDArray[np.intp] | None, confidence: float) -> float:
    """Return how much wider an interval from few groups must be: Student's quantile over the normal one, √(G/(G − 1)).

    Resampling takes the spread of a few groups for that of all groups, and does not know how little it knows of it.
    """
    if groups is None:
        return 1.0
    number = int(groups.max()) + 1
    if number < 2:
        return 1.0
    tail = tails_of(confidence)[1]
    return float(t.ppf(tail, number - 1) / norm.ppf(tail) * math.sqrt(number / (number - 1)))


def tails_of(confidence: float) -> tuple[float, float]:
    """Return the quantiles between which a share of ``confidence`` lies."""
    return (1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0
