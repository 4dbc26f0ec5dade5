"""Search for the bandwidth that minimises a loss, and the power law that bandwidths follow between searches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import copysign, exp, inf, isfinite, isnan, log, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.errors import BandwidthWarning, InvalidInputError, warn
from kcal.validation import shown, to_numbers

INTERVAL = (0.05**0.5, 5.0**0.5)
"""The published interval, h = 2b² in [0.1, 10]."""
GOLDEN = (sqrt(5.0) - 1.0) / 2.0
FLAT = 1e-9
"""Losses that differ by less count as equal."""
MAX_WIDENING = 1e3
"""The interval is widened at most by this factor on either side."""
PUBLISHED_TOLERANCE = 1e-4
"""Of h = 2b², as published."""
MIN_PROB = 1e-10
"""Probabilities are clipped here in the published loss: the only member of a class costs 23.03 at every bandwidth."""
SCANNED = 5
"""Bandwidths of the scan, before it is widened."""
NEAR_STEP = 0.25 * log(2.0)
"""Step of log b of a search nearby: the parabola through three losses in larger steps has its vertex elsewhere."""
MIN_EXPONENT = -0.25
"""Lowest exponent of a fitted power law."""
MIN_SIZE_SHARE = 0.1
"""Share of the mean size of a class that the rarest one counts for at least, in the power law."""


@dataclass(frozen=True)
class BandwidthCurve:
    """Bandwidths tried, ascending, with their losses, and the one chosen."""

    bandwidths: NDArray[np.float64]
    losses: NDArray[np.float64]
    bandwidth: float
    loss: float
    at_edge: bool
    standard_error: float | None = None  # of the loss at the chosen bandwidth
    n_folds: int | None = None  # of the loss; None if samples or groups are left out one at a time

    def __str__(self) -> str:
        edge = ", at the edge of the search" if self.at_edge else ""
        error = "" if self.standard_error is None else f" ± {self.standard_error:.4f}"
        tried = f"of {len(self.losses)} bandwidths tried"
        return f"b = {self.bandwidth:.4g} with loss {self.loss:.4f}{error}, {tried}{edge}"


def search_bandwidth(
    loss: Callable[[float], float],
    *,
    interval: tuple[float, float] = INTERVAL,
    tolerance: float = 1e-2,
    at: Callable[[Sequence[float]], Sequence[float]] | None = None,
    after_each: Callable[[str], None] | None = None,
) -> BandwidthCurve:
    """Minimise ``loss`` over log b: a coarse scan, then golden section with parabolic steps.

    The scan makes the search safe against a loss with several local minima. If the minimum lies at an end of the
    interval, the interval is widened step by step; if that does not help, a BandwidthWarning is issued.

    Parameters
    ----------
    loss : callable
        Maps a bandwidth to a loss.
    interval : (float, float)
        Where the search begins.
    tolerance : float
        Relative precision of the bandwidth.
    at : callable, optional
        Maps several bandwidths to their losses in one pass; used for the coarse scan.
    after_each : callable, optional
        Called after every evaluation with a description of it, for a progress bar.
    """
    low, high = interval
    if not (0 < low < high and isfinite(high)):
        raise InvalidInputError("interval", "must be (low, high) with 0 < low < high", got=repr(interval))
    seen: dict[float, float] = {}

    def note(log_bandwidth: float, value: float) -> None:
        seen[log_bandwidth] = inf if isnan(value) else value
        if after_each is not None:
            after_each(f"b = {exp(log_bandwidth):.3g}, loss {seen[log_bandwidth]:.4f}")

    def loss_at(log_bandwidth: float) -> float:
        if log_bandwidth not in seen:
            note(log_bandwidth, loss(exp(log_bandwidth)))
        return seen[log_bandwidth]

    grid = np.linspace(log(low), log(high), SCANNED).tolist()
    if at is not None:
        for log_bandwidth, value in zip(grid, at([exp(point) for point in grid]), strict=True):
            note(log_bandwidth, value)
    grid, best = _scan(loss_at, grid)
    at_edge = best in (grid[0], grid[-1])
    if max(seen.values()) - min(seen.values()) < FLAT:
        _warn_flat(interval)
    elif at_edge:
        _warn_edge(exp(best), interval)
    else:
        middle = grid.index(best)
        best = _refine(loss_at, (grid[middle - 1], best, grid[middle + 1]), tolerance)
    order = sorted(seen)
    losses = np.array([seen[log_bandwidth] for log_bandwidth in order])
    bandwidths = np.array([exp(log_bandwidth) for log_bandwidth in order])
    return BandwidthCurve(bandwidths, losses, exp(best), seen[best], at_edge)


def search_near(
    loss: Callable[[Sequence[float]], Sequence[float]],
    expected: float,
    *,
    interval: tuple[float, float] | None = None,
    pull: float = 0.0,
) -> BandwidthCurve:
    """Minimise ``loss`` over log b near an expected bandwidth: three nearby, and the vertex of their parabola.

    ``loss`` maps several bandwidths to their losses; the three, in steps of ``NEAR_STEP``, share their distances. While
    the lowest is at an end, the search goes on beyond it in growing steps, by at most ``MAX_WIDENING``. With
    an ``interval`` it begins at the best bandwidth of that, in steps of √2, for an expected one that may be far off.
    The loss of the result is that of the nearest bandwidths.

    Where the loss is that of a part of the samples, what earlier searches say counts too: ``pull``·(log b −
    log expected)²/2 is added before it is minimised.
    """
    seen: dict[float, float] = {}
    middle, step = log(expected), NEAR_STEP

    def evaluate(log_bandwidths: Sequence[float]) -> None:
        for entry, value in zip(log_bandwidths, loss([exp(entry) for entry in log_bandwidths]), strict=True):
            seen[entry] = inf if isnan(value) else value

    def pulled(entry: float) -> float:
        return seen[entry] + 0.5 * pull * (entry - log(expected)) ** 2

    if interval is not None:
        low, high = map(log, interval)
        evaluate(np.arange(low, high + step, 2.0 * step).tolist())
        middle = min(seen, key=pulled)
    evaluate([entry for entry in (middle - step, middle, middle + step) if entry not in seen])
    best = min(seen, key=pulled)
    while best in (min(seen), max(seen)) and abs(best - middle) < log(MAX_WIDENING):
        outwards = best - step if best == min(seen) else best + step
        evaluate([outwards])
        if not pulled(outwards) < pulled(best):
            break
        best, step = outwards, 1.5 * step
    order = sorted(seen)
    losses, bandwidths = np.array([seen[entry] for entry in order]), np.exp(order)
    place = order.index(best)
    if place in (0, len(order) - 1):
        return BandwidthCurve(bandwidths, losses, exp(best), seen[best], at_edge=True)
    vertex = _vertex((order[place - 1], best, order[place + 1]), pulled)
    return BandwidthCurve(bandwidths, losses, exp(vertex), float(np.interp(vertex, order, losses)), at_edge=False)


def search_published(
    loss: Callable[[float], float], *, after_each: Callable[[str], None] | None = None
) -> BandwidthCurve:
    """Minimise ``loss`` over h = 2b² in [0.1, 10] by golden section, until the bracket is narrower than 1e-4.

    The interval is never widened, and of several minima any may be found; at an end of the interval a
    BandwidthWarning is issued. ``after_each`` is called after every evaluation with a description of it.
    """
    seen: dict[float, float] = {}

    def loss_at(h: float) -> float:
        bandwidth = sqrt(h / 2.0)
        seen[bandwidth] = loss(bandwidth)
        if after_each is not None:
            after_each(f"b = {bandwidth:.3g}, loss {seen[bandwidth]:.4f}")
        return seen[bandwidth]

    low, high = (2.0 * bandwidth**2 for bandwidth in INTERVAL)
    ends = low + PUBLISHED_TOLERANCE, high - PUBLISHED_TOLERANCE
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    left_loss, right_loss = loss_at(left), loss_at(right)
    while high - low > PUBLISHED_TOLERANCE:
        if left_loss < right_loss:
            high, right, right_loss = right, left, left_loss
            left = high - GOLDEN * (high - low)
            left_loss = loss_at(left)
        else:
            low, left, left_loss = left, right, right_loss
            right = low + GOLDEN * (high - low)
            right_loss = loss_at(right)
    best = min(seen, key=seen.__getitem__)
    at_edge = not ends[0] < 2.0 * best**2 < ends[1]
    if at_edge:
        warn(
            f"The published search ended at b = {best:.3g}, the edge of its interval "
            f"[{INTERVAL[0]:.3g}, {INTERVAL[1]:.3g}]: the best bandwidth may lie beyond.",
            BandwidthWarning,
            remedy='Use bandwidth="cv", which widens the interval.',
        )
    order = sorted(seen)
    return BandwidthCurve(np.array(order), np.array([seen[b] for b in order]), best, seen[best], at_edge)


def _scan(loss: Callable[[float], float], grid: list[float]) -> tuple[list[float], float]:
    """Return the grid, widened in growing steps while its minimum lies at an end, and the point of the minimum."""
    step, widening = grid[1] - grid[0], log(MAX_WIDENING)
    lowest, highest = grid[0] - widening, grid[-1] + widening
    best = min(grid, key=loss)
    while best in (grid[0], grid[-1]) and lowest < best < highest:
        outwards = grid[0] - step if best == grid[0] else grid[-1] + step
        grid = sorted([*grid, outwards])
        if loss(outwards) >= loss(best):
            break
        best, step = outwards, 1.5 * step
    return grid, best


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
        point = middle + step
        if loss(point) < loss(middle):
            low, middle, high = (middle, point, high) if step > 0 else (low, point, middle)
        else:
            low, high = (low, point) if step > 0 else (point, high)
    return min(middle, _vertex((low, middle, high), loss), key=loss)


def _vertex(bracket: tuple[float, float, float], loss: Callable[[float], float]) -> float:
    """Return the minimum of the parabola through three points of a loss; the middle if they lie on a line."""
    low, middle, high = bracket
    left, right = (middle - low) * (loss(high) - loss(middle)), (high - middle) * (loss(low) - loss(middle))
    if not 0 < left + right < inf:
        return middle
    return middle + 0.5 * ((high - middle) * right - (middle - low) * left) / (left + right)


def _warn_flat(interval: tuple[float, float]) -> None:
    warn(
        f"The loss is the same at every bandwidth around [{interval[0]:.3g}, {interval[1]:.3g}]: the search cannot "
        "choose one. Check the scale of the embeddings.",
        BandwidthWarning,
        remedy="Or pass a number for the bandwidth.",
    )


def _warn_edge(bandwidth: float, interval: tuple[float, float]) -> None:
    warn(
        f"The loss still decreases at b = {bandwidth:.3g}, the edge of the widened search (it began at "
        f"[{interval[0]:.3g}, {interval[1]:.3g}]). A very large b means that the embeddings say nothing about the "
        "classes, a very small b that the set contains duplicates.",
        BandwidthWarning,
        remedy="Look at bandwidth_curve_, or pass a number for the bandwidth.",
    )


@dataclass(frozen=True)
class BandwidthLaw:
    """The power law b = constant · m^exponent between searches; m is the size of the rarest class."""

    constant: float
    exponent: float

    def __call__(self, size: float) -> float:
        """Return b for a rarest class of ``size`` samples."""
        return float(self.constant * size**self.exponent)


def fit_bandwidth_law(
    bandwidths: ArrayLike, sizes: ArrayLike, *, exponent: float | None = None, dimension: int | None = None
) -> BandwidthLaw:
    """Fit the power law to the results of searches: the constant and, unless it is given, the exponent.

    Parameters
    ----------
    bandwidths, sizes : (n,) arrays
        b of every search, and m, the size of the rarest class at that time.
    exponent : float, optional
        A known exponent. By default −1/(d + 4) if ``dimension`` is given, else the least-squares slope of log b in
        log m, no less than −1/4 (the theory for d = 0) and no more than 0.
    dimension : int, optional
        d, the dimension of the projected space.
    """
    log_b, log_m = (np.log(_positive(values, name)) for values, name in ((bandwidths, "bandwidths"), (sizes, "sizes")))
    if len(log_b) != len(log_m):
        raise InvalidInputError("sizes", f"must have one entry per bandwidth, {len(log_b)}", got=str(len(log_m)))
    if exponent is None and dimension is not None:
        exponent = -1.0 / (dimension + 4)
    if exponent is None:
        if np.ptp(log_m) == 0:
            expected = "must differ for the exponent to be fitted"
            raise InvalidInputError("sizes", expected, got="one size", remedy="Pass dimension= or exponent=.")
        exponent = float(np.clip(np.polyfit(log_m, log_b, 1)[0], MIN_EXPONENT, 0.0))
    return BandwidthLaw(float(np.exp(np.mean(log_b - exponent * log_m))), exponent)


def size_of_rarest_class(codes: NDArray[np.int64], weights: NDArray[np.float64], n_classes: int) -> float:
    """Return m: the effective number of samples of the rarest class, (Σ w)² / Σ w².

    Classes without samples do not count. m is no less than ``MIN_SIZE_SHARE`` of the mean over the classes: the first
    sample of a new class must not widen the bandwidth of all others.
    """
    totals, squares = (np.bincount(codes, power, minlength=n_classes) for power in (weights, weights**2))
    sizes = totals[squares > 0] ** 2 / squares[squares > 0]
    return float(max(sizes.min(), MIN_SIZE_SHARE * sizes.mean()))


def _positive(values: ArrayLike, name: str) -> NDArray[np.float64]:
    numbers = to_numbers(values, name).astype(np.float64).reshape(-1)
    if not (len(numbers) and np.isfinite(numbers).all() and (numbers > 0).all()):
        raise InvalidInputError(name, "must be positive, finite numbers", got=shown(values))
    return numbers
