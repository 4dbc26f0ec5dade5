"""Bootstrap resampling of rows, or of whole groups of rows, and the intervals that need nothing else."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit

from kcal.errors import InvalidInputError
from kcal.metrics.predictions import Predictions, blocks
from kcal.validation import check_integer, check_number, check_seed

MIN_RESAMPLES, MAX_RESAMPLES = 20, 1_000_000
DEFAULT_CONFIDENCE = 0.95

Array = NDArray[np.float64]


class Interval(NamedTuple):
    """Ends of a confidence interval."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"[{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True, eq=False)
class Resampling:
    """Options of the bootstrap."""

    confidence: float
    resamples: int
    seed: int
    groups: NDArray[np.int64] | None  # (n_samples,), codes from 0; whole groups are drawn

    def draws(self, predictions: Predictions) -> Iterator[Array]:
        """Yield blocks (n_samples, n_resamples of the block): how often each row is drawn, times its weight."""
        generator, n_units = np.random.default_rng(self.seed), predictions.n_units
        for columns in blocks(self.resamples, predictions.n_samples):
            block = np.empty((predictions.n_samples, columns.stop - columns.start))
            for column in range(block.shape[1]):
                drawn = np.bincount(generator.integers(n_units, size=n_units), minlength=n_units)
                block[:, column] = drawn if self.groups is None else drawn[self.groups]
            yield block if predictions.weights is None else block * predictions.weights[:, None]

    @property
    def few_groups_factor(self) -> float:
        """Student's quantile over the normal one, times √(G/(G − 1)), for G groups; 1 without groups.

        The bootstrap takes the spread of a few groups for that of all groups; intervals are widened by this factor.
        """
        n_groups = 0 if self.groups is None else int(self.groups.max()) + 1
        if n_groups < 2:
            return 1.0
        tail = tails(self.confidence)[1]
        return float(stdtrit(n_groups - 1, tail) / ndtri(tail) * math.sqrt(n_groups / (n_groups - 1)))

    def percentile_interval(self, values: Array) -> Interval:
        """Return the interval between quantiles of resampled values, widened if there are few groups."""
        low, high = np.quantile(values, tails(self.confidence))
        centre, factor = float(np.mean(values)), self.few_groups_factor
        return Interval(centre + factor * (float(low) - centre), centre + factor * (float(high) - centre))


def check_resampling(predictions: Predictions, *, confidence: Any, resamples: Any, seed: Any) -> Resampling:
    """Check the options of the bootstrap of these predictions."""
    number = check_integer(resamples, "resamples", minimum=MIN_RESAMPLES, maximum=MAX_RESAMPLES)
    level = check_number(confidence, "confidence", minimum=0, maximum=1, exclusive=True)
    if predictions.n_units < 2:
        name, units = ("probs", "rows") if predictions.groups is None else ("groups", "groups")
        expected = f"must have at least two {units} of positive weight for an interval"
        raise InvalidInputError(name, expected, got=str(predictions.n_units))
    return Resampling(level, number, check_seed(seed), predictions.groups)


def tails(confidence: float) -> tuple[float, float]:
    """Return the lower and upper quantile of the central part of a distribution."""
    return (1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0


def wilson_interval(frequency: ArrayLike, count: ArrayLike, confidence: float) -> tuple[Array, Array]:
    """Return the lower and upper ends of Wilson's interval of frequencies f of n samples each.

        (f + z²/2n ± z·√(f·(1 − f)/n + z²/4n²)) / (1 + z²/n),

    where z is the (1 + confidence)/2 quantile of the normal distribution; nan where n is 0.
    """
    z = float(ndtri((1 + confidence) / 2))
    n = np.asarray(count, dtype=np.float64)
    n = np.where(n > 0, n, np.nan)
    f = np.clip(np.asarray(frequency, dtype=np.float64), 0.0, 1.0)
    scale = 1 + z**2 / n
    centre = (f + z**2 / (2 * n)) / scale
    half = z * np.sqrt(f * (1 - f) / n + z**2 / (4 * n**2)) / scale
    return np.clip(centre - half, 0.0, 1.0), np.clip(centre + half, 0.0, 1.0)
