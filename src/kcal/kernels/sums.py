"""Class sums over support points, streamed in blocks, in log space; knows no networks.

    log S_k(q) = log Σ_{i: y_i = k} w_i·φ(‖z_i − q‖² / (d·b²))

The one hot loop of kcal: one matrix product, one exponential and one addition by class for each block of support
points × queries. Besides the answer only a few blocks are held, however many points and queries there are.

For the RBF kernel the exponent splits into −½‖q‖², which all sums of a query share and which therefore stays outside
the loop, and aᵢ·q + biasᵢ, which the product gives (a and q centred, in units of b·√d). A shift per query, the
largest exponent over a few pilot points, keeps its largest sum at 1 or more; the rare query for which a sum
overflows all the same is taken again with the exact maximum.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, exp, inf, log, sqrt
from typing import NamedTuple, Self

import torch

from kcal.kernels.mother import KERNELS, MotherKernel
from kcal.kernels.support import ROWS_AT_ONCE, SortedSupport

SUPPORT_BLOCK = 1024
QUERY_BLOCK = 1024
NUMBERS_AT_ONCE = 2_000_000
"""Bound on (queries in hand) × dimensions."""
SUMS_AT_ONCE = 5_000_000
"""Bound on (queries in hand) × classes."""
POINTS_AT_ONCE = 32 * SUPPORT_BLOCK
"""Support points summed in single precision before float64 takes over."""
PILOT_POINTS = 128
LONG_RUN = 64
"""Rows of a class in a block, on average, from which on classes are summed one by one, which is faster then."""
FAR = 1e5
"""Distance from the centre, in support radii or bandwidths, beyond which a radial kernel's posteriors stand still."""
FINEST = 1e18
"""Bandwidths in an extent of the support; a finer one could not tell more points apart."""
LARGEST_EXPONENT_ERROR = 1e-4
"""Where the working precision could miss an exponent by more than this, float64 takes over."""


class ClassSums(NamedTuple):
    """S_k(q) = ``sums`` · exp(``offsets``); the parts apart, since far from the support the offset is huge.

    Of several bandwidths: (n_bandwidths, n_classes, n_query) and (n_bandwidths, n_query).
    """

    sums: torch.Tensor  # (n_query, n_classes); the largest of a row is near 1 or above, unless all are 0
    offsets: torch.Tensor  # (n_query,)


@dataclass(frozen=True)
class LeaveOut:
    """Which support points a query must not see: those that have its key."""

    query_keys: torch.Tensor  # (n_query,)
    support_keys: torch.Tensor  # (n_support,)
    by_position: bool
    """The keys are positions in the support (leave-one-out), not codes of groups or folds."""

    def rows(self, index: torch.Tensor | slice) -> LeaveOut:
        """Return the same rule for some of the queries."""
        return LeaveOut(self.query_keys[index], self.support_keys, self.by_position)

    def fill(self, block: torch.Tensor, start: int, columns: slice, value: float) -> None:
        """Put ``value`` where a block, (support from ``start``) × (queries in ``columns``), must not be seen."""
        keys = self.query_keys[columns].to(block.device)
        if not self.by_position:
            same = self.support_keys[start : start + block.shape[0], None].to(block.device) == keys[None, :]
            block.masked_fill_(same, value)
            return
        own = keys - start
        inside = ((own >= 0) & (own < block.shape[0])).nonzero().squeeze(1)
        block[own[inside], inside] = value


def class_sums(
    queries: torch.Tensor,
    support: SortedSupport,
    bandwidth: float,
    *,
    kernel: MotherKernel = KERNELS["rbf"],
    leave_out: LeaveOut | None = None,
) -> ClassSums:
    """Return S_k(q) in two parts; 0 for a class with no point within the kernel's reach.

    Parameters
    ----------
    queries : (n_query, d) tensor
        Same device and precision as the support.
    support : SortedSupport
        Points sorted by class.
    bandwidth : float
        b, a length.
    kernel : MotherKernel
        Any kernel of the table.
    leave_out : LeaveOut, optional
        Support points that a query must not see.
    """
    sums_of = _rbf_sums if kernel.name == "rbf" else _radial_sums
    at_once = min(NUMBERS_AT_ONCE // (support.dimension + 2), SUMS_AT_ONCE // support.n_classes)
    at_once = max(QUERY_BLOCK, at_once)
    if 0 < queries.shape[0] <= at_once:
        return sums_of(queries, support, bandwidth, kernel, leave_out)
    sums = queries.new_empty(queries.shape[0], support.n_classes)
    offsets = queries.new_empty(queries.shape[0])
    for start in range(0, queries.shape[0], at_once):
        rows = slice(start, min(start + at_once, queries.shape[0]))
        sums[rows], offsets[rows] = sums_of(queries[rows], support, bandwidth, kernel, _rule(leave_out, rows))
    return ClassSums(sums, offsets)


def _rbf_sums(
    queries: torch.Tensor,
    support: SortedSupport,
    bandwidth: float,
    kernel: MotherKernel,
    leave_out: LeaveOut | None,
) -> ClassSums:
    """Sum in the queries' precision; what that cannot resolve (small b, far queries) in float64."""
    if queries.dtype == torch.float64:
        return _shifted_sums(queries, support, bandwidth, leave_out)
    delicate = ~(exponent_errors(queries, support, bandwidth, queries.dtype) < LARGEST_EXPONENT_ERROR)
    if not bool(delicate.any()):
        return _shifted_sums(queries, support, bandwidth, leave_out)
    sums = queries.new_empty(queries.shape[0], support.n_classes)
    offsets = queries.new_empty(queries.shape[0])
    for chosen, precise in ((~delicate, False), (delicate, True)):
        index = chosen.nonzero().squeeze(1)
        if len(index):
            rows = in_double(queries[index]) if precise else queries[index]
            part = _shifted_sums(rows, support, bandwidth, _rule(leave_out, index))
            largest = part.sums.amax(dim=1, keepdim=True).clamp_min(torch.finfo(part.sums.dtype).tiny)
            sums[index] = (part.sums / largest).to(sums)  # single precision could not hold the largest ones
            offsets[index] = (part.offsets + largest.log().squeeze(1)).to(offsets)
    return ClassSums(sums, offsets)


def exponent_errors(
    queries: torch.Tensor, support: SortedSupport, bandwidth: float, dtype: torch.dtype
) -> torch.Tensor:
    """Return by how much rounding in a precision may disturb the exponents of each query, (n_query,)."""
    unit = 1.0 / (bandwidth * sqrt(support.dimension))
    distances = queries.new_empty(queries.shape[0])
    for start in range(0, queries.shape[0], ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        distances[rows] = ((queries[rows] - support.centre) * unit).norm(dim=1)
    return torch.finfo(dtype).eps * (support.radius * unit) * (distances + support.radius * unit)


def _shifted_sums(
    queries: torch.Tensor, support: SortedSupport, bandwidth: float, leave_out: LeaveOut | None
) -> ClassSums:
    """Sum with a shift from the pilot points, and again with the exact one where that was not enough."""
    exponents = RbfExponents(queries, support, bandwidth, leave_out)
    shift = exponents.pilot_shift()
    sums = exponents.sums(shift)  # (n_classes, n_query)
    again = (~torch.isfinite(shift) | ~torch.isfinite(sums.sum(dim=0))).nonzero().squeeze(1)
    offsets = shift + exponents.common
    if len(again):
        exponents = RbfExponents(queries[again], support, bandwidth, _rule(leave_out, again))
        shift = exponents.exact_shift()
        # rounding of huge exponents could lift one above the maximum
        sums[:, again], offsets[again] = exponents.sums(shift, at_most=0.0), shift + exponents.common
    return ClassSums(sums.T, offsets)


class RbfExponents:
    """The exponents aᵢ·q + biasᵢ − shift of all support points and queries, a block at a time.

    Weights are part of the exponents, unless ``weighed`` is False.
    """

    def __init__(
        self,
        queries: torch.Tensor,
        support: SortedSupport,
        bandwidth: float,
        leave_out: LeaveOut | None,
        *,
        weighed: bool = True,
    ) -> None:
        self.support, self.leave_out = support, leave_out
        self.log_weights = support.log_weights if weighed else None
        self.unit = 1.0 / (bandwidth * sqrt(support.dimension))
        self.centre = support.centre.to(queries)
        dimension, self.n_query = support.dimension, queries.shape[0]
        scaled = (queries - self.centre) * self.unit
        self.common = -0.5 * scaled.square().sum(dim=1)  # (n_query,)
        self.right = queries.new_empty(dimension + 2, self.n_query)  # rows: q, 1, −shift
        self.right[:dimension] = scaled.T
        self.right[dimension] = 1.0
        self.right[dimension + 1] = 0.0
        self.buffer = queries.new_empty(SUPPORT_BLOCK * min(QUERY_BLOCK, self.n_query))

    def left(self, rows: slice | torch.Tensor) -> torch.Tensor:
        """Return the rows (a, bias, 1) of some support points, (n_rows, d + 2)."""
        scaled = (self.support.points[rows].to(self.right) - self.centre) * self.unit
        bias = -0.5 * scaled.square().sum(dim=1)
        if self.log_weights is not None:
            bias += self.log_weights[rows].to(bias)
        return torch.cat([scaled, bias[:, None], torch.ones_like(bias)[:, None]], dim=1)

    def query_blocks(self) -> Iterator[slice]:
        """Yield the places of the queries, a block at a time."""
        for start in range(0, self.n_query, QUERY_BLOCK):
            yield slice(start, min(start + QUERY_BLOCK, self.n_query))

    def shifted_by(self, shift: torch.Tensor) -> Self:
        """Reduce the exponents of each query by a shift, (n_query,)."""
        self.right[-1] = -torch.nan_to_num(shift, neginf=0.0)
        return self

    def blocks(self) -> Iterator[tuple[int, slice, torch.Tensor]]:
        """Yield the first support point of a block, its queries, and their exponents, overwritten by the next."""
        for start in range(0, len(self.support), SUPPORT_BLOCK):
            left = self.left(slice(start, start + SUPPORT_BLOCK))
            for columns in self.query_blocks():
                right = self.right[:, columns]
                block = self.buffer[: left.shape[0] * right.shape[1]].view(left.shape[0], right.shape[1])
                yield start, columns, torch.mm(left, right, out=block)

    def sums(self, shift: torch.Tensor, at_most: float | None = None) -> torch.Tensor:
        """Return Σ exp(exponent − shift) by class, (n_classes, n_query)."""
        sums = BlockedSums(self.support, self.query_blocks(), like=self.right)
        lowest = least_exponent(self.right.dtype)
        at_least = None if self.least(shift) > lowest else lowest
        for start, columns, block in self.shifted_by(shift).blocks():
            if at_least is not None or at_most is not None:
                block.clamp_(at_least, at_most)
            block.exp_()
            if self.leave_out is not None:
                self.leave_out.fill(block, start, columns, 0.0)
            sums.add(block, start, columns)
        if at_least is None:
            return sums.whole()
        nothing = 2.0 * exp(at_least) * self.support.class_counts.to(self.right)
        return torch.threshold_(sums.whole().sub_(nothing[:, None]), 0.0, 0.0)

    def least(self, shift: torch.Tensor) -> float:
        """Return a bound that no exponent lies below: exponentials that are no normal numbers are many times slower."""
        if self.log_weights is not None:
            return -inf
        farthest = (-2.0 * self.common).sqrt() + self.support.radius * self.unit  # bounds every distance, (n_query,)
        bounds = -0.5 * farthest.square() - self.common - shift
        return float(bounds.nan_to_num(nan=-inf).min())

    def pilot_shift(self) -> torch.Tensor:
        """Return the largest exponent of each query over a few points spread over the support, (n_query,)."""
        n_pilot = min(PILOT_POINTS, len(self.support))
        steps = torch.arange(n_pilot, device=self.support.points.device)
        pilot = steps * (len(self.support) - 1) // max(n_pilot - 1, 1)
        left = self.left(pilot)
        shift = self.right.new_empty(self.n_query)
        for columns in self.query_blocks():
            block = left @ self.right[:, columns]
            if self.leave_out is not None:
                same = self.leave_out.support_keys[pilot][:, None] == self.leave_out.query_keys[columns][None, :]
                block.masked_fill_(same.to(block.device), -torch.inf)
            shift[columns] = block.amax(dim=0)
        return shift

    def exact_shift(self) -> torch.Tensor:
        """Return the largest exponent of each query over the whole support, (n_query,)."""
        shift = self.right.new_full((self.n_query,), -torch.inf)
        for start, columns, block in self.shifted_by(torch.zeros_like(shift)).blocks():
            if self.leave_out is not None:
                self.leave_out.fill(block, start, columns, -torch.inf)
            shift[columns] = torch.maximum(shift[columns], block.amax(dim=0))
        return shift


class BlockedSums:
    """Sums by class, gathered block by block: in the blocks' precision over a few thousand points, then in float64."""

    def __init__(self, support: SortedSupport, query_blocks: Iterable[slice], like: torch.Tensor) -> None:
        self.support, self.dtype = support, like.dtype
        wide = torch.float32 if like.device.type == "mps" else torch.float64
        self.parts, self.totals = {}, {}
        for columns in query_blocks:
            size = (support.n_classes, columns.stop - columns.start)
            self.parts[columns.start] = like.new_zeros(size)
            if len(support) > POINTS_AT_ONCE:
                self.totals[columns.start] = like.new_zeros(size, dtype=wide)

    def add(self, block: torch.Tensor, start: int, columns: slice) -> None:
        """Add a block's rows, the support points from ``start`` on, to the sums of their classes."""
        part = self.parts[columns.start]
        if self.totals and start % POINTS_AT_ONCE == 0:
            self._flush(columns.start)
        add_by_class(part, block, self.support, start)

    def whole(self) -> torch.Tensor:
        """Return all sums, (n_classes, n_query)."""
        if not self.totals:
            parts = list(self.parts.values())
            return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        for place in self.parts:
            self._flush(place)
        return torch.cat(list(self.totals.values()), dim=1).to(self.dtype)

    def _flush(self, place: int) -> None:
        self.totals[place] += self.parts[place]
        self.parts[place].zero_()


def add_by_class(sums: torch.Tensor, block: torch.Tensor, support: SortedSupport, start: int) -> None:
    """Add a block's rows, support points from ``start`` on, to the row of ``sums`` (n_classes, n) of their class."""
    stop, starts = start + block.shape[0], support.class_starts
    first, last = bisect_right(starts, start) - 1, bisect_left(starts, stop)
    if (
        stop - start < LONG_RUN * (last - first) and block.device.type == "cpu"
    ):  # elsewhere index_add_ is not deterministic
        sums.index_add_(0, support.codes[start:stop].cpu(), block)
        return
    for k in range(first, last):
        low, high = max(starts[k], start), min(starts[k + 1], stop)
        if low < high:
            sums[k] += block[low - start : high - start].sum(dim=0)


def _radial_sums(
    queries: torch.Tensor,
    support: SortedSupport,
    bandwidth: float,
    kernel: MotherKernel,
    leave_out: LeaveOut | None,
) -> ClassSums:
    """Sum any kernel of the distance, in float64 (roots of small distances need it), with a running maximum."""
    bandwidth = max(bandwidth, support.extent / FINEST, sqrt(torch.finfo(torch.float64).tiny))
    points = in_double(queries)
    limit = FAR * max(support.radius, bandwidth * sqrt(support.dimension))
    points, norms = _pull_near(points - support.centre.to(points), limit)
    sums = points.new_zeros(support.n_classes, points.shape[0])
    largest = points.new_full((points.shape[0],), -torch.inf)
    for start in range(0, len(support), SUPPORT_BLOCK):
        rows = slice(start, start + SUPPORT_BLOCK)
        left = support.points[rows].to(points) - support.centre.to(points)
        for low in range(0, points.shape[0], QUERY_BLOCK):
            columns = slice(low, low + QUERY_BLOCK)
            distances = squared_distances(left, points[columns])
            block = kernel.log_profile(distances / (support.dimension * bandwidth**2), support.dimension)
            if support.log_weights is not None:
                block += support.log_weights[rows, None].to(block)
            if leave_out is not None:
                leave_out.fill(block, start, columns, -torch.inf)
            highest = torch.maximum(largest[columns], block.amax(dim=0))
            shift = torch.nan_to_num(highest, neginf=0.0)
            sums[:, columns] *= torch.exp(largest[columns] - shift)
            add_by_class(sums[:, columns], block.sub_(shift).exp_(), support, start)
            largest[columns] = highest
    edges = torch.stack([norms, norms.clamp_max(limit)]).square() / (support.dimension * bandwidth**2)
    beyond = kernel.log_profile(edges[0], support.dimension) - kernel.log_profile(edges[1], support.dimension)
    offsets = torch.where(norms > limit, largest + beyond, largest)
    return ClassSums(sums.T.to(queries), torch.nan_to_num(offsets, neginf=0.0).to(queries))


def _pull_near(points: torch.Tensor, limit: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries no farther than ``limit`` from the centre, in the same direction, and their true distances.

    From there on the posteriors no longer change, while the squares of larger distances would swallow the
    differences that decide.
    """
    largest = points.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(points.dtype).tiny)
    norms = largest * (points / largest).norm(dim=1, keepdim=True)
    return points * (limit / norms).clamp_max(1.0), norms.squeeze(1)


def squared_distances(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return ‖left_i − right_j‖², (n_left, n_right), by one matrix product; centre both first."""
    rows, columns = left.square().sum(dim=1, keepdim=True), right.square().sum(dim=1, keepdim=True)
    wide_left = torch.cat([left * -2.0, rows, torch.ones_like(rows)], dim=1)
    wide_right = torch.cat([right, torch.ones_like(columns), columns], dim=1)
    return torch.mm(wide_left, wide_right.T).clamp_min_(0.0)


def _rule(leave_out: LeaveOut | None, index: torch.Tensor | slice) -> LeaveOut | None:
    return None if leave_out is None else leave_out.rows(index)


def least_exponent(dtype: torch.dtype) -> float:
    """Return an exponent whose exponential is as good as 0 and still a normal number: those below are slow to take."""
    return ceil(log(torch.finfo(dtype).tiny))


def in_double(points: torch.Tensor) -> torch.Tensor:
    """Return the points in float64, on the processor where their device has no such thing."""
    return (points.cpu() if points.device.type == "mps" else points).double()
