"""Slopes of straight lines, with standard errors by resampling draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.benchmark.table import Entry

RESAMPLES = 400


@dataclass(frozen=True)
class Slope:
    """A fitted slope, its standard error, and what the theory says."""

    value: float
    error: float
    target: float

    @property
    def distance(self) -> float:
        """Distance from the target in standard errors."""
        return abs(self.value - self.target) / self.error

    def entries(self) -> tuple[Entry, ...]:
        """Return target, slope ± standard error, and the distance, bold within two standard errors."""
        shown = minus(f"{self.value:.4f} ± {self.error:.4f}")
        return (
            Entry(minus(f"{self.target:.4f}")),
            Entry(shown),
            Entry(f"{self.distance:.1f}", bold=self.distance <= 2.0),
        )


def line_slopes(x: NDArray[Any], y: NDArray[Any], weights: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return least-squares slopes of y, (…, n), in x, (n,)."""
    shares = np.ones(len(x)) if weights is None else weights
    centred = x - np.average(x, weights=shares)
    return np.asarray((y * (shares * centred)).sum(axis=-1) / (shares * centred**2).sum())


def resampled(
    draws: Sequence[NDArray[Any]], statistic: Callable[[NDArray[Any]], NDArray[Any]], generator: np.random.Generator
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a statistic of means for every size, and the same of means over resampled draws.

    Parameters
    ----------
    draws : sequence of (n_draws, n_values) arrays
        One array per size.
    statistic : callable
        Maps means, (n_means, n_values), to (n_means, n_statistics).
    generator : numpy.random.Generator
        Resamples the draws.

    Returns
    -------
    (n_statistics, n_sizes) and (n_statistics, RESAMPLES, n_sizes) arrays
    """
    estimates, samples = [], []
    for values in draws:
        counts = generator.multinomial(len(values), np.full(len(values), 1 / len(values)), size=RESAMPLES)
        estimates.append(statistic(values.mean(axis=0, keepdims=True))[0])
        samples.append(statistic(counts @ values / len(values)))
    return np.stack(estimates, axis=1), np.stack([sample.T for sample in samples], axis=2)


def fit_slope(
    x: NDArray[Any], estimates: NDArray[Any], samples: NDArray[Any], target: float, *, weighted: bool = True
) -> Slope:
    """Fit a line to estimates, (n_sizes,); ``samples``, (n_resamples, n_sizes), give its weights and standard error."""
    weights = 1.0 / samples.var(axis=0) if weighted else None
    slopes = line_slopes(x, samples, weights)
    return Slope(float(line_slopes(x, estimates, weights)), float(slopes.std(ddof=1)), target)


def minus(text: str) -> str:
    """Return text with a real minus sign."""
    return text.replace("-", "−")
