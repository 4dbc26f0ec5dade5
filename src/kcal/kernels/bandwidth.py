"""Finding the bandwidth that minimises a loss; keeps the curve it saw, and says when it met an edge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import copysign, exp, inf, isfinite, isnan, log, sqrt

import numpy as np
from numpy.typing import NDArray

from kcal.errors import BandwidthWarning, InvalidInputError, warn

INTERVAL = (0.05**0.5, 5.0**0.5)
"""The published interval, h = 2b² in [0.1, 10]."""
GOLDEN = (sqrt(5.0) - 1.0) / 2.0
FLAT = 1e-9
"""Losses that differ by less are the same."""
LARGEST_WIDENING = 1e3
"""The interval is widened at most by this factor on either side."""


@dataclass(frozen=True)
class BandwidthCurve:
    """Bandwidths tried, ascending, with their losses, and the one chosen."""

    bandwidths: NDArray[np.float64]
    losses: NDArray[np.float64]
    bandwidth: float
    loss: float
    at_edge: bool

    def __str__(self) -> str:
        edge = ", at the edge of the search" if self.at_edge else ""
        return f"b = {self.bandwidth:.4g} with loss {self.loss:.4f}, of {len(self.losses)} bandwidths tried{edge}"


def search_bandwidth(
    loss: Callable[[float], float],
    *,
    interval: tuple[float, float] = INTERVAL,
    tolerance: float = 1e-2,
    coarse: int = 5,
    after_each: Callable[[str], None] | None = None,
) -> BandwidthCurve:
    """Return the minimiser of ``loss`` over log b: a coarse scan, then golden section with parabolic steps.

    The scan makes the search safe against a loss with more than one valley. Where its minimum lies at an end of the
    interval, the interval is widened, step by step; if that does not help, a warning says so.

    Parameters
    ----------
    loss : callable
        Maps a bandwidth to a loss.
    interval : (float, float)
        Where to look first.
    tolerance : float
        Relative precision of the bandwidth.
    coarse : int
        Points of the scan.
    after_each : callable, optional
        Called after every evaluation with a few words, for a progress bar.
    """
    low, high = interval
    if not (0 < low < high and isfinite(high)):
        raise InvalidInputError(f"interval must be 0 < low < high; got {interval!r}.")
    if coarse < 3:
        raise InvalidInputError(f"coarse must be at least 3, or there is no valley to find; got {coarse!r}.")
    seen: dict[float, float] = {}

    def loss_at(log_bandwidth: float) -> float:
        if log_bandwidth not in seen:
            value = loss(exp(log_bandwidth))
            seen[log_bandwidth] = inf if isnan(value) else value
            if after_each is not None:
                after_each(f"b = {exp(log_bandwidth):.3g}, loss {seen[log_bandwidth]:.4f}")
        return seen[log_bandwidth]

    places = [float(place) for place in np.linspace(log(low), log(high), coarse)]
    step, lowest, highest = (
        places[1] - places[0],
        places[0] - log(LARGEST_WIDENING),
        places[-1] + log(LARGEST_WIDENING),
    )
    best = min(places, key=loss_at)
    while best in (places[0], places[-1]) and lowest < best < highest:
        outwards = places[0] - step if best == places[0] else places[-1] + step
        places = sorted([*places, outwards])
        if loss_at(outwards) >= loss_at(best):
            break
        best, step = outwards, 1.5 * step
    at_edge = best in (places[0], places[-1])
    if max(seen.values()) - min(seen.values()) < FLAT:
        _warn_of_flatness(interval)
    elif at_edge:
        _warn_of_edge(exp(best), interval)
    else:
        middle = places.index(best)
        best = _refine(loss_at, (places[middle - 1], best, places[middle + 1]), tolerance)
    order = sorted(seen)
    return BandwidthCurve(np.exp(order), np.array([seen[place] for place in order]), exp(best), seen[best], at_edge)


def _refine(loss: Callable[[float], float], bracket: tuple[float, float, float], tolerance: float) -> float:
    """Narrow a bracket, whose middle is its lowest point, to the tolerance on both sides; return the vertex there.

    A step goes to the vertex of the parabola through the bracket, at least ``tolerance`` away from the middle; where
    two such steps do not halve the bracket, it goes to a golden section of the wider side.
    """
    low, middle, high = bracket
    widths = [inf, inf]
    while max(middle - low, high - middle) > 1.01 * tolerance:
        to_wider_side = high - middle if high - middle > middle - low else low - middle
        step = _vertex((low, middle, high), loss) - middle
        if high - low > 0.5 * widths[-2]:
            step = (1.0 - GOLDEN) * to_wider_side
        if abs(step) < tolerance:
            step = copysign(tolerance, to_wider_side)
        widths.append(high - low)
        place = middle + step
        if loss(place) < loss(middle):
            low, middle, high = (middle, place, high) if step > 0 else (low, place, middle)
        else:
            low, high = (low, place) if step > 0 else (place, high)
    return min(middle, _vertex((low, middle, high), loss), key=loss)


def _vertex(bracket: tuple[float, float, float], loss: Callable[[float], float]) -> float:
    """Return where the parabola through three points of a loss is lowest; the middle if they lie on a line."""
    low, middle, high = bracket
    left, right = (middle - low) * (loss(high) - loss(middle)), (high - middle) * (loss(low) - loss(middle))
    if not 0 < left + right < inf:
        return middle
    return middle + 0.5 * ((high - middle) * right - (middle - low) * left) / (left + right)


def _warn_of_flatness(interval: tuple[float, float]) -> None:
    warn(
        f"The loss is the same at every bandwidth around [{interval[0]:.3g}, {interval[1]:.3g}]: the search cannot "
        "choose one. Check the scale of the embeddings.",
        BandwidthWarning,
        remedy="Or pass a number for the bandwidth.",
    )


def _warn_of_edge(bandwidth: float, interval: tuple[float, float]) -> None:
    warn(
        f"The loss still decreases at b = {bandwidth:.3g}, the edge of the widened search (it began at "
        f"[{interval[0]:.3g}, {interval[1]:.3g}]). A very large b means that the embeddings say nothing about the "
        "classes, a very small b that the set contains duplicates.",
        BandwidthWarning,
        remedy="Look at bandwidth_curve_, or pass a number for the bandwidth.",
    )


def scaled_bandwidth(reference: tuple[float, float], count: float, dimension: int) -> float:
    """Return b = b₀·(m/m₀)^(−1/(d+4)) for a rarest class of ``count`` samples, given (b₀, m₀)."""
    bandwidth, reference_count = reference
    if not (bandwidth > 0 and reference_count > 0 and count > 0):
        raise InvalidInputError(f"the rule needs a positive bandwidth and counts; got {reference!r} and {count!r}.")
    return float(bandwidth * (count / reference_count) ** (-1.0 / (dimension + 4)))
