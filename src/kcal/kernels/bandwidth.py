"""Choose a bandwidth: a given number, a search for the lowest loss, or the power law between searches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import copysign, exp, inf, isfinite, isnan, log, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from kcal.errors import BandwidthWarning, InvalidInputError, warn
from kcal.kernels.leave_out import MAX_PREDICTED, LeaveOutLoss, PredictedLoss
from kcal.kernels.mother import MotherKernel
from kcal.kernels.sums import PreparedSupport, slices
from kcal.kernels.support import SortedSupport, leave_out_rule
from kcal.progress import progress_bar
from kcal.validation import ALMOST_ZERO, shown, to_numbers

Losses = Callable[[Sequence[float]], Sequence[float]]

INTERVAL = (0.05**0.5, 5.0**0.5)
"""The published interval, h = 2b² in [0.1, 10]."""
START_SPREAD = 40.0
"""Mean squared distance per dimension for which this interval is meant; the best bandwidth is then near 1."""
GOLDEN = (sqrt(5.0) - 1.0) / 2.0
FLAT = 1e-9
"""Losses that differ by less count as equal."""
MAX_WIDENING = 1e3
"""The interval is widened at most by this factor on either side."""
SCANNED = 5
"""Bandwidths of the scan, before it is widened."""
PUBLISHED_TOLERANCE, PUBLISHED_FOLDS = 1e-4, 20
"""Precision of h = 2b², and folds of the loss, as published."""
MIN_PROB = 1e-10
"""Probabilities are clipped here in the published loss: the only member of a class costs 23.03 at every bandwidth."""
NEAR_STEP = 0.25 * log(2.0)
"""Step of log b of a search nearby: the parabola through three losses in larger steps has its vertex elsewhere."""
NEAR_SAMPLES, EXPECTED_SPREAD = 1_000, 0.05
"""Samples that a search nearby predicts at most, and the standard deviation of log b around the expected bandwidth."""
TYPICAL_EVALUATIONS = {"cv": 14, "published": 26}
"""Evaluations of a search, for the progress bar, by the value of ``bandwidth`` that asks for it."""
GRID = tuple(0.04 * 2 ** (place / 2) for place in range(12))
BACKGROUNDS = (1e-3, 1e-2, 0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 100.0, 1000.0)
"""Values of b, relative to the spread of the points, and of β that a search with a background tries."""
GRID_SUMS = 8_000_000
"""Class sums of such a search at once."""
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


@dataclass(frozen=True)
class BandwidthChoice:
    """How the bandwidth is chosen: KCal's parameters, and the size of the rarest class for the power law."""

    bandwidth: str | float = "cv"
    interval: tuple[float, float] | None = None
    reference: tuple[float, float] | None = None
    exponent: float | None = None
    size: float = 1.0

    def without_search(self, dimension: int) -> float | None:
        """Return the given bandwidth or that of the power law; None where a search has to find it."""
        if self.bandwidth in TYPICAL_EVALUATIONS:
            return None
        if self.bandwidth == "rule":
            assert self.reference is not None
            bandwidth, size = self.reference
            return fit_bandwidth_law([bandwidth], [size], exponent=self.exponent, dimension=dimension)(self.size)
        return float(self.bandwidth)

    @property
    def fixed_source(self) -> str:
        """Where a bandwidth without a search comes from."""
        return "law" if self.bandwidth == "rule" else "given"

    @property
    def min_prob(self) -> float:
        """Where the loss clips probabilities."""
        return MIN_PROB if self.bandwidth == "published" else ALMOST_ZERO

    def lowest_loss(self, loss: LeaveOutLoss) -> float:
        """Return the leave-out loss at the chosen bandwidth, found roughly where it is searched for."""
        fixed = self.without_search(loss.support.dimension)
        if fixed is not None:
            return loss(fixed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BandwidthWarning)  # the final search warns
            return search_bandwidth(loss.at, interval=self._interval(loss.support.mean_square), tolerance=0.05).loss

    def choose(
        self, support: SortedSupport, *, kernel: MotherKernel, keys: torch.Tensor | None, progress: bool | None
    ) -> tuple[float, BandwidthCurve | None]:
        """Return the bandwidth and, where it was searched for by the leave-out loss, all that were tried."""
        fixed = self.without_search(support.dimension)
        if fixed is not None:
            return fixed, None
        check_parts(len(support), keys)
        loss = LeaveOutLoss(support, kernel=kernel, keys=keys, n_predicted=MAX_PREDICTED, min_prob=self.min_prob)
        curve = self.search(loss, mean_square=support.mean_square, progress=progress)
        return curve.bandwidth, curve

    def search(self, loss: PredictedLoss, *, mean_square: float, progress: bool | None) -> BandwidthCurve:
        """Return the search for the lowest loss over samples of this mean squared distance."""
        total = TYPICAL_EVALUATIONS[str(self.bandwidth)]
        with progress_bar("Choosing the bandwidth", total, show=progress) as advance:
            if self.bandwidth == "published":
                curve = search_published(loss.at, after_each=advance)
            else:
                curve = search_bandwidth(loss.at, interval=self._interval(mean_square), after_each=advance)
        return replace(curve, standard_error=loss.standard_error(curve.bandwidth))

    def choose_near(
        self,
        expected: float,
        support: SortedSupport,
        *,
        kernel: MotherKernel,
        keys: torch.Tensor | None,
        scan: bool = False,
    ) -> BandwidthCurve:
        """Return a quick search around an expected bandwidth, on at most ``NEAR_SAMPLES`` samples given all others.

        With ``scan`` it begins with the usual interval. If it predicts only some samples, others than the search
        before, it is pulled towards the expected bandwidth, in which earlier searches have their part.
        """
        options: dict[str, Any] = {"n_predicted": NEAR_SAMPLES, "seed": len(support), "min_prob": self.min_prob}
        loss = LeaveOutLoss(support, kernel=kernel, keys=keys, **options)
        left_out = max(0.0, 1.0 - NEAR_SAMPLES / len(support))
        pull = left_out / (NEAR_SAMPLES * EXPECTED_SPREAD**2)
        return search_near(loss.at, expected, interval=self._interval(support.mean_square) if scan else None, pull=pull)

    def _interval(self, mean_square: float) -> tuple[float, float]:
        """Return the interval of the search: by default the published one, in units of the spread of the samples."""
        unit = (mean_square / START_SPREAD) ** 0.5 or 1.0
        return (INTERVAL[0] * unit, INTERVAL[1] * unit) if self.interval is None else self.interval


def check_parts(n_samples: int, keys: torch.Tensor | None) -> None:
    """Raise if there are not two samples, or two groups or folds, to leave out in turn."""
    n_keys = n_samples if keys is None else len(torch.unique(keys))
    if n_keys < 2:
        raise InvalidInputError(
            "bandwidth" if keys is None else "groups",
            f"needs at least two {'calibration samples' if keys is None else 'groups'} for cross-validation",
            got=str(n_keys),
            remedy="Pass a number as the bandwidth.",
        )


class _Tried:
    """Losses by log b; each is computed once, and NaN counts as infinite."""

    def __init__(self, losses: Losses, after_each: Callable[[str], None] | None = None) -> None:
        self.losses, self.after_each = losses, after_each
        self.seen: dict[float, float] = {}

    def __call__(self, log_bandwidth: float) -> float:
        self.compute([log_bandwidth])
        return self.seen[log_bandwidth]

    def compute(self, log_bandwidths: Sequence[float]) -> None:
        """Compute the losses that are not there yet, in one pass."""
        missing = [entry for entry in log_bandwidths if entry not in self.seen]
        found = self.losses([exp(entry) for entry in missing]) if missing else []
        for entry, value in zip(missing, found, strict=True):
            self.seen[entry] = inf if isnan(value) else value
            if self.after_each is not None:
                self.after_each(f"b = {exp(entry):.3g}, loss {self.seen[entry]:.4f}")

    def widen(self, step: float, bounds: tuple[float, float], loss: Callable[[float], float]) -> float:
        """Return the lowest point; while that is an end, go on beyond it in growing steps, within the bounds."""
        best = min(self.seen, key=loss)
        while best in (min(self.seen), max(self.seen)) and bounds[0] < best < bounds[1]:
            outwards = best - step if best == min(self.seen) else best + step
            if not loss(outwards) < loss(best):
                break
            best, step = outwards, 1.5 * step
        return best

    def bracket(self, middle: float) -> tuple[float, float, float] | None:
        """Return a point between its neighbours; None at an end."""
        order = sorted(self.seen)
        place = order.index(middle)
        return (order[place - 1], middle, order[place + 1]) if 0 < place < len(order) - 1 else None

    def curve(self, best: float, *, at_edge: bool) -> BandwidthCurve:
        """Return what was tried and the chosen one, whose loss is that of its neighbours if it was not tried."""
        order = sorted(self.seen)
        losses, bandwidths = [self.seen[entry] for entry in order], [exp(entry) for entry in order]
        loss = self.seen[best] if best in self.seen else float(np.interp(best, order, losses))
        return BandwidthCurve(np.array(bandwidths), np.array(losses), exp(best), loss, at_edge)


def search_bandwidth(
    losses: Losses,
    *,
    interval: tuple[float, float] = INTERVAL,
    tolerance: float = 1e-2,
    after_each: Callable[[str], None] | None = None,
) -> BandwidthCurve:
    """Minimise a loss over log b: a coarse scan, then golden section with parabolic steps.

    The scan makes the search safe against a loss with several local minima. If the minimum lies at an end of the
    interval, the interval is widened step by step; if that does not help, a BandwidthWarning is issued.

    Parameters
    ----------
    losses : callable
        Maps several bandwidths to their losses, such as ``LeaveOutLoss.at``.
    interval : (float, float)
        Where the search begins.
    tolerance : float
        Relative precision of the bandwidth.
    after_each : callable, optional
        Called after every evaluation with a description of it, for a progress bar.
    """
    low, high = interval
    if not (0 < low < high and isfinite(high)):
        raise InvalidInputError("interval", "must be (low, high) with 0 < low < high", got=repr(interval))
    tried = _Tried(losses, after_each)
    grid, widening = np.linspace(log(low), log(high), SCANNED).tolist(), log(MAX_WIDENING)
    tried.compute(grid)
    best = tried.widen(grid[1] - grid[0], (grid[0] - widening, grid[-1] + widening), tried)
    bracket = tried.bracket(best)
    around = f"[{low:.3g}, {high:.3g}]"
    if max(tried.seen.values()) - min(tried.seen.values()) < FLAT:
        warn(
            f"The loss is the same at every bandwidth around {around}: the search cannot choose one. Check the scale "
            "of the embeddings.",
            BandwidthWarning,
            remedy="Or pass a number for the bandwidth.",
        )
    elif bracket is None:
        warn(
            f"The loss still decreases at b = {exp(best):.3g}, the edge of the widened search (it began at {around}). "
            "A very large b means that the embeddings say nothing about the classes, a very small b that the set "
            "contains duplicates.",
            BandwidthWarning,
            remedy="Look at bandwidth_curve_, or pass a number for the bandwidth.",
        )
    else:
        best = _refine(tried, bracket, tolerance)
    return tried.curve(best, at_edge=bracket is None)


def search_near(
    losses: Losses, expected: float, *, interval: tuple[float, float] | None = None, pull: float = 0.0
) -> BandwidthCurve:
    """Minimise a loss over log b near an expected bandwidth: three nearby, and the vertex of their parabola.

    ``losses`` maps several bandwidths to their losses; the three, in steps of ``NEAR_STEP``, share their distances.
    While the lowest is at an end, the search goes on beyond it in growing steps, by at most ``MAX_WIDENING``. With
    an ``interval`` it begins at the best bandwidth of that, in steps of √2, for an expected one that may be far off.
    The loss of the result is that of the nearest bandwidths.

    Where the loss is that of a part of the samples, what earlier searches say counts too: ``pull``·(log b −
    log expected)²/2 is added before it is minimised.
    """
    tried, middle = _Tried(losses), log(expected)

    def pulled(entry: float) -> float:
        return tried(entry) + 0.5 * pull * (entry - log(expected)) ** 2

    if interval is not None:
        low, high = map(log, interval)
        tried.compute(np.arange(low, high + NEAR_STEP, 2.0 * NEAR_STEP).tolist())
        middle = min(tried.seen, key=pulled)
    tried.compute([middle - NEAR_STEP, middle, middle + NEAR_STEP])
    best = tried.widen(NEAR_STEP, (middle - log(MAX_WIDENING), middle + log(MAX_WIDENING)), pulled)
    bracket = tried.bracket(best)
    return tried.curve(best if bracket is None else _vertex(bracket, pulled), at_edge=bracket is None)


def search_published(losses: Losses, *, after_each: Callable[[str], None] | None = None) -> BandwidthCurve:
    """Minimise a loss over h = 2b² in [0.1, 10] by golden section, until the bracket is narrower than 1e-4.

    The interval is never widened, and of several minima any may be found; at an end of the interval a
    BandwidthWarning is issued. Parameters are those of :func:`search_bandwidth`.
    """
    tried = _Tried(losses, after_each)

    def loss(h: float) -> float:
        return tried(0.5 * log(h / 2.0))

    low, high = (2.0 * bandwidth**2 for bandwidth in INTERVAL)
    ends = low + PUBLISHED_TOLERANCE, high - PUBLISHED_TOLERANCE
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    while high - low > PUBLISHED_TOLERANCE:
        if loss(left) < loss(right):
            high, right = right, left
            left = high - GOLDEN * (high - low)
        else:
            low, left = left, right
            right = low + GOLDEN * (high - low)
    best = 0.5 * log(min(left, right, key=loss) / 2.0)
    at_edge = not ends[0] < 2.0 * exp(best) ** 2 < ends[1]
    if at_edge:
        warn(
            f"The published search ended at b = {exp(best):.3g}, the edge of its interval "
            f"[{INTERVAL[0]:.3g}, {INTERVAL[1]:.3g}]: the best bandwidth may lie beyond.",
            BandwidthWarning,
            remedy='Use bandwidth="cv", which widens the interval.',
        )
    return tried.curve(best, at_edge=at_edge)


def search_with_background(
    support: SortedSupport,
    index: torch.Tensor,
    own_probs: torch.Tensor,
    weights: torch.Tensor,
    *,
    kernel: MotherKernel,
    keys: torch.Tensor | None,
) -> tuple[float, float]:
    """Return b and β of the lowest leave-out log-loss of an estimate beside a background of β samples.

    d = (β·f + S)/(β + Σ_k S_k), with S the sum of the own class of a sample in numbers of samples, and f what another
    prediction gives it. Both are taken from a grid, b in units of the root mean square distance of the points from
    their centre.

    Parameters
    ----------
    support : SortedSupport
        Points sorted by class.
    index : (n,) tensor
        Samples that are predicted from all others, by their position in the original order.
    own_probs, weights : (n,) tensors
        f of their own classes, and what they count.
    kernel, keys
        As in :class:`LeaveOutLoss`.
    """
    scale = sqrt(0.5 * support.mean_square) or support.dimension**-0.5
    bandwidths, backgrounds = [scale * value for value in GRID], torch.tensor(BACKGROUNDS, dtype=torch.float64)[:, None]
    prepared = PreparedSupport(support, bandwidths, kernel)
    positions, rule = torch.argsort(support.order)[index.to(support.order.device)], leave_out_rule(support, keys)
    losses = torch.zeros(len(GRID), len(BACKGROUNDS), dtype=torch.float64)
    for block in slices(len(index), max(GRID_SUMS // (len(GRID) * support.n_classes), 1)):
        rows = positions[block]
        sums = prepared.class_sums(support.points[rows], leave_out=rule.select(rows)).in_double()
        counts = sums.counts(support.log_mean_scale)  # (n_bandwidths, rows, n_classes)
        own = counts.gather(2, support.codes[rows].cpu().expand(len(GRID), -1)[:, :, None])
        masses = backgrounds + counts.sum(dim=2)[:, None]
        shares = (backgrounds * own_probs[block] + own.transpose(1, 2)) / masses  # (n_bandwidths, n_backgrounds, rows)
        losses -= shares.clamp_min(torch.finfo(torch.float64).tiny).log() @ weights[block]
    best = int(losses.argmin())
    return bandwidths[best // len(BACKGROUNDS)], BACKGROUNDS[best % len(BACKGROUNDS)]


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
