"""Class sums, posteriors and densities of queries: the engine.

    S_k(q; b) = Σ_{i: y_i = k} w_i·φ(‖z_i − q‖² / (d·b²))
    p_k(q) = S_k(q) / Σ_j S_j(q)        density(q) = Σ_k S_k(q) / (Σ_i w_i · ∫φ_b)

Distances come from one matrix product of centred points and queries, in units of the widest bandwidth:

    (z, −½‖z‖², 1) · (q, 1, −s) = −½‖z − q‖² + ½‖q‖² − s

Three loops use it. The blocked one, for log-linear kernels, holds a few blocks beside the result, for any number of
points and queries. The exact one, for other kernels and for what each point contributes, looks for the nearest point of
each query first, and computes values relative to it in float64. The dense one is a single product without a branch that
depends on numbers: it is exported, compiled and differentiated, and serves few queries.

Numerical policy
    Rounding moves an exponent by about ε·R·(R + r)/(d·b²), with R the radius of the support and r the distance of the
    query from its centre. Products are in float32 if this is below ``RESOLUTION`` at r = ``QUERY_RADII``·R, and in
    float64 otherwise, or if the support is, or if the profile is not log-linear. That is decided once for a support and
    its bandwidths. Where float64 does not resolve a bandwidth, only the nearest points count, as where a compact
    kernel reaches no point. Exponentials are powers of 2 of exponents less that of a near point of each query. Values
    are summed in the precision of the support, sums of blocks in float64 if there are many.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from math import isclose, log, log2, sqrt
from typing import NamedTuple

import torch

from kcal.kernels.mother import FARTHEST, KERNELS, MotherKernel
from kcal.kernels.support import LeaveOut, SortedSupport, in_double, widest_dtype
from kcal.threads import map_blocks

RESOLUTION = 1e-4
"""Largest rounding error of an exponent: log odds of two classes are off by no more than about twice this."""
QUERY_RADII = 1.0
"""Distance of queries, in units of the support's radius, for which single precision is enough if it is used."""
MAX_BANDWIDTH, MAX_RADII = 1e140, 1e60
"""Bounds of a bandwidth, and of the radius of the support in units of it: their squares are finite."""
FARTHEST_QUERY = 1e15
"""Distance of queries, in units of the support's radius or the bandwidth, to which those beyond it are moved."""
MAX_SQUARES = 6
"""Squares in a row by which a narrower kernel is made of a wider one: each doubles its relative error."""
ROOM = 64.0
"""Logarithm to base 2 of the largest value relative to that of a near point: sums are far below the largest number."""
LOG2_E = 1.0 / log(2.0)

SUPPORT_BLOCK = QUERY_BLOCK = 1024
"""Support points × queries of a block: a few MB, which stay in the cache. Few queries get more points."""
NEAR_STEP = 64
"""One of so many support points is looked at for a near point of each query before the others."""
PART_BLOCKS = 32
"""Blocks of support points that one thread sums for a block of queries."""
MAX_KEPT_NUMBERS = 4_000_000
"""Numbers of a scaled support, or of weights by class, up to which they are kept."""
MAX_DENSE_QUERIES, MAX_DENSE_NUMBERS = 8, 800_000
"""Queries, and numbers of a product of them or of weights by class, up to which the dense product is the fastest."""


class ClassSums(NamedTuple):
    """S_k(q; b) = ``sums`` · exp(``offsets``), in two parts because far from the support the offset is huge.

    Sums and their products are far below the largest number. The offset is −inf where the kernel reaches no point: then
    the sums are the weights of the nearest points, or 0 if it sees none at all.
    """

    sums: torch.Tensor  # (n_bandwidths, n_classes, n_query)
    offsets: torch.Tensor  # (n_bandwidths, n_query)

    def log(self) -> torch.Tensor:
        """Return log S_k(q; b), (n_bandwidths, n_query, n_classes).

        A class too far to count beside the nearest point of any class gets the smallest normal number in place of 0.
        """
        smallest = torch.finfo(self.sums.dtype).tiny
        return self.sums.clamp_min(smallest).log_().add_(self.offsets[:, None]).transpose(1, 2)

    def posteriors(self, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return p_k(q; b), (n_bandwidths, n_query, n_classes): uniform where a query sees no point at all.

        ``out`` is memory for them that may be that of the sums.
        """
        totals = self.sums.sum(dim=1, keepdim=True)
        even = (totals == 0).to(totals) / self.sums.shape[1]
        return torch.addcdiv(even, self.sums, torch.where(totals == 0, 1.0, totals), out=out).transpose(1, 2)

    def counts(self, log_scale: float | torch.Tensor) -> torch.Tensor:
        """Return S_k(q; b), (n_bandwidths, n_query, n_classes), times exp(``log_scale``)."""
        return (self.sums * torch.exp(self.offsets + log_scale)[:, None]).transpose(1, 2)

    def in_double(self) -> ClassSums:
        """Return the same in float64 on the CPU."""
        return ClassSums(self.sums.cpu().double(), self.offsets.cpu().double())

    def log_densities(self, log_volumes: torch.Tensor) -> torch.Tensor:
        """Return log densities, (n_bandwidths, n_query), from log(Σ_i w_i · ∫φ_b), (n_bandwidths, 1 or n_query)."""
        return self.sums.sum(dim=1).log() + self.offsets - log_volumes


def add_sums(parts: Sequence[ClassSums]) -> ClassSums:
    """Return the class sums of a support from those of its parts, of the same classes and queries.

    log S_k = log Σ_parts exp(log S_k of the part). A part whose kernel reaches no point adds nothing to one that does;
    where none does, the offset is −inf and the sums are 0: which points are nearest, sums alone do not tell.
    """
    largest = torch.stack([part.offsets for part in parts]).amax(dim=0)
    total = torch.zeros_like(parts[0].sums, dtype=largest.dtype)
    for part in parts:
        factors = torch.where(torch.isfinite(largest), part.offsets - largest, -torch.inf).exp()
        total += part.sums * factors[:, None]
    return ClassSums(total, largest)


class Queries(NamedTuple):
    """Queries in the unit of length of a support."""

    points: torch.Tensor  # (n_query, d)
    half_squares: torch.Tensor  # (n_query,), −½‖q‖², in float64
    stretch: torch.Tensor  # (n_query,), factor by which a query was moved towards the centre

    def right(self) -> torch.Tensor:
        """Return the right factor of the product, (d + 2, n_query), for products relative to 0."""
        right = self.points.new_empty(self.points.shape[1] + 2, self.points.shape[0])
        right[:-2], right[-2], right[-1] = self.points.T, 1.0, 0.0
        return right


class PartSums(NamedTuple):
    """Sums of a part of the support, relative to the exponents of one near point of each query, or to 0."""

    classes: slice
    sums: torch.Tensor  # (n_bandwidths, classes of the part, n_query)
    near: torch.Tensor  # (n_query,), product of the near point; −inf if the query sees none


@dataclass(frozen=True, eq=False)
class PreparedSupport:
    """A support at fixed bandwidths: whatever does not depend on the queries is computed once.

    Parameters
    ----------
    support : SortedSupport
        Points sorted by class.
    bandwidths : sequence of float
        b, lengths.
    kernel : MotherKernel
        Any kernel of the table.
    is_part : bool
        The sums are added to those of other supports: they and their offsets are in the widest precision.
    in_float64 : bool
        Products are in float64, whatever the bandwidths need.
    """

    support: SortedSupport
    bandwidths: Sequence[float]
    kernel: MotherKernel = KERNELS["rbf"]
    is_part: bool = False
    in_float64: bool = False

    # What queries ask for

    def class_sums(self, queries: torch.Tensor, *, leave_out: LeaveOut | None = None) -> ClassSums:
        """Return the class sums of ``queries`` (n_query, d), of the device and precision of the support."""
        if self._takes_dense(queries):
            return self.dense_sums(queries, leave_out=leave_out)
        dtype = widest_dtype(queries.device) if self.is_part else queries.dtype
        sums = queries.new_empty(len(self.bandwidths), self.support.n_classes, len(queries), dtype=dtype)
        offsets = queries.new_empty(len(self.bandwidths), len(queries), dtype=dtype)

        def write(block: slice, found: ClassSums) -> None:
            sums[:, :, block], offsets[:, block] = found

        self._in_blocks(write, queries, leave_out)
        return ClassSums(sums, offsets)

    def posteriors(self, queries: torch.Tensor, *, leave_out: LeaveOut | None = None) -> torch.Tensor:
        """Return p_k(q; b), (n_bandwidths, n_query, n_classes): uniform where a query sees no point at all."""
        if self._takes_dense(queries):
            return self.dense_sums(queries, leave_out=leave_out).posteriors()
        result = queries.new_empty(len(self.bandwidths), len(queries), self.support.n_classes)

        def write(block: slice, found: ClassSums) -> None:
            for of_bandwidth, posteriors in zip(result, found.posteriors(out=found.sums), strict=True):
                of_bandwidth[block] = posteriors  # of two dimensions: transposed copies of three are slow

        self._in_blocks(write, queries, leave_out)
        return result

    def own_shares(
        self, queries: torch.Tensor, codes: torch.Tensor, *, leave_out: LeaveOut | None = None
    ) -> torch.Tensor:
        """Return p_k(q; b) of one class k of each query, (n_bandwidths, n_query), in the widest precision."""
        result = queries.new_empty(len(self.bandwidths), len(queries), dtype=widest_dtype(queries.device))

        def write(block: slice, found: ClassSums) -> None:
            own = codes[block].to(found.sums.device).expand(len(self.bandwidths), 1, -1)
            totals = found.sums.sum(dim=1, dtype=result.dtype)
            shares = found.sums.gather(1, own)[:, 0] / totals
            result[:, block] = shares.masked_fill_(totals == 0, 1.0 / self.support.n_classes)

        self._in_blocks(write, queries, leave_out)
        return result

    def log_densities(self, queries: torch.Tensor, *, leave_out: LeaveOut | None = None) -> torch.Tensor:
        """Return the log density of the support that each query sees, (n_bandwidths, n_query).

        It is −inf where the kernel reaches no point.
        """
        sums = self.class_sums(queries, leave_out=leave_out)
        volumes = [self.kernel.log_volume(bandwidth, self.support.dimension) for bandwidth in self.bandwidths]
        log_weight: float | torch.Tensor = self.support.log_total_weight
        if leave_out is not None:
            log_weight = leave_out.log_visible_weights(self.support).to(sums.offsets)
        return sums.log_densities(log_weight + sums.offsets.new_tensor(volumes)[:, None])

    def prepare(self) -> PreparedSupport:
        """Compute everything that does not depend on queries now, so that a trace finds constants; return self."""
        _ = self.left, self.rate_column, self.class_weights, self.farthest
        return self

    # The support in the precision and the unit of length that its bandwidths need

    @cached_property
    def dtype(self) -> torch.dtype:
        """Precision of the products."""
        length = min(self.clipped) * sqrt(self.support.dimension)
        is_enough = self.kernel.log_linear and not self.in_float64 and self.resolves(length)
        return self.support.points.dtype if is_enough else torch.float64

    def resolves(self, length: float) -> bool:
        """Return whether products in the precision of the support resolve a length."""
        error = torch.finfo(self.support.points.dtype).eps * (1.0 + QUERY_RADII) * self.radius**2
        return error <= RESOLUTION * length**2

    @cached_property
    def radius(self) -> float:
        """Largest distance of a point from the centre; never 0."""
        return max(self.support.radius, sqrt(sqrt(torch.finfo(torch.float64).tiny)))

    @cached_property
    def clipped(self) -> list[float]:
        """Bandwidths by which squares of distances can be divided."""
        least = self.support.radius / MAX_RADII
        return [min(max(bandwidth, least), MAX_BANDWIDTH) for bandwidth in self.bandwidths]

    @cached_property
    def unit(self) -> float:
        """Factor of lengths: exponents of a log-linear kernel at the widest bandwidth are then powers of 2."""
        unit = 1.0 / (sqrt(self.support.dimension) * max(self.clipped))
        return unit * sqrt(LOG2_E) if self.kernel.log_linear else unit

    @cached_property
    def farthest(self) -> float:
        """Distance from the centre, in the unit, to which queries beyond it are moved."""
        return FARTHEST_QUERY * max(self.radius * self.unit, 1.0)

    @cached_property
    def rates(self) -> list[float]:
        """Factor of −½‖z − q‖² in the exponents at each bandwidth."""
        return [(max(self.clipped) / bandwidth) ** 2 for bandwidth in self.clipped]

    @cached_property
    def rate_column(self) -> torch.Tensor:
        """The same, (n_bandwidths, 1), in float64."""
        return self.centre.new_tensor(self.rates)[:, None]

    @cached_property
    def steps(self) -> list[tuple[int, int]]:
        """Index of each bandwidth, the widest first, and how often its kernel is the one before squared; 0 for exp2."""
        order = sorted(range(len(self.rates)), key=self.rates.__getitem__)
        steps, in_a_row = [(order[0], 0)], 0
        for wider, narrower in pairwise(order):
            ratio = self.rates[narrower] / self.rates[wider]
            count = round(log2(ratio))
            is_power = count > 0 and isclose(2.0**count, ratio, rel_tol=1e-9)
            in_a_row = in_a_row + count if is_power and in_a_row + count <= MAX_SQUARES else 0
            steps.append((narrower, count if in_a_row else 0))
        return steps

    @cached_property
    def centre(self) -> torch.Tensor:
        """Centre of the support, (d,), in float64."""
        return in_double(self.support.centre).clone()

    @cached_property
    def weights(self) -> torch.Tensor | None:
        """Weights of the points, (n_support,); None if all are 1."""
        log_weights = self.support.log_weights
        return None if log_weights is None else in_double(log_weights).exp().to(self.support.points.dtype)

    @cached_property
    def class_weights(self) -> torch.Tensor:
        """Weights of the points, (n_support, n_classes), 0 outside their classes; (n_support, 1) if that is large."""
        support = self.support
        weights = (support.points.new_ones(len(support)) if self.weights is None else self.weights)[:, None]
        if len(support) * support.n_classes > MAX_KEPT_NUMBERS:
            return weights
        return torch.nn.functional.one_hot(support.codes, support.n_classes).to(weights) * weights

    @cached_property
    def left(self) -> torch.Tensor:
        """Left factor of the product, (n_support, d + 2)."""
        return self._left(slice(None))

    def left_rows(self, rows: slice) -> torch.Tensor:
        """Return rows of the left factor; a large one is computed part by part, unless it is there."""
        is_small = self.support.points.numel() <= MAX_KEPT_NUMBERS
        return self.left[rows] if is_small or "left" in self.__dict__ else self._left(rows)

    def _left(self, rows: slice) -> torch.Tensor:
        points = self.support.points[rows]
        points = in_double(points) if self.dtype == torch.float64 else points
        left = points.new_ones(points.shape[0], self.support.dimension + 2)
        scaled = torch.sub(points, self.centre.to(points), out=left[:, :-2]).mul_(self.unit)
        left[:, -2] = scaled.square().sum(dim=1).mul_(-0.5)
        if self.support.log_weights is not None:
            left[:, -2].masked_fill_(torch.isneginf(self.support.log_weights[rows]).to(left.device), -torch.inf)
        return left

    def place(self, queries: torch.Tensor) -> Queries:
        """Return queries in the unit, moved towards the centre if they are too far."""
        centred = in_double(queries) - self.centre
        lengths = self.unit * torch.linalg.vector_norm(centred, dim=1, keepdim=True)
        stretch = lengths.clamp_min(self.farthest) / self.farthest
        points = (centred * (self.unit / stretch)).to(self.dtype)
        return Queries(points, -0.5 * (lengths / stretch).square()[:, 0], stretch[:, 0])

    # Exponents relative to that of the nearest point

    def log_profile(self, half_squares: torch.Tensor, rates: torch.Tensor) -> torch.Tensor:
        """Return log φ from −½‖z − q‖², for a kernel that is not log-linear."""
        return self.kernel.log_profile(half_squares.clamp_max(0.0) * (-2.0 * rates), self.support.dimension)

    def offsets(self, nearest: torch.Tensor, stretch: torch.Tensor) -> torch.Tensor:
        """Return log φ, (n_bandwidths, n_query), from −½‖z − q‖² of queries that were moved by ``stretch``."""
        nearest = nearest.clamp_max(0.0) * stretch.square()
        if self.kernel.log_linear:
            return nearest * self.rate_column / LOG2_E
        return self.log_profile(nearest, self.rate_column)

    def finest(self, half_squares: torch.Tensor) -> torch.Tensor:
        """Return the largest rates that float64 resolves for queries of these −½‖q‖²; there is no limit in float32."""
        radius, epsilon = self.radius * self.unit, torch.finfo(torch.float64).eps
        if self.dtype != torch.float64:
            return torch.full_like(half_squares, torch.inf)
        return RESOLUTION / epsilon / radius / ((-2.0 * half_squares).sqrt() + radius)

    def _are_small(self, placed: Queries) -> bool:
        """Return whether no product, −½R² − R·r ≤ z·q − ½‖z‖² ≤ ½r², has too large or too small a power of 2."""
        radius, reach = self.radius * self.unit, sqrt(-2.0 * float(placed.half_squares.amin()))
        rate, smallest = max(self.rates), torch.finfo(self.support.points.dtype).tiny
        return 0.5 * reach**2 * rate <= ROOM and (0.5 * radius + reach) * radius * rate <= -log2(smallest)

    def _unresolved(self, placed: Queries) -> torch.Tensor:
        """Return the positions of queries at which float64 does not resolve the narrowest bandwidth."""
        return (max(self.rates) > self.finest(placed.half_squares)).nonzero().squeeze(1)

    def relative_exponents(
        self, below: torch.Tensor, nearest: torch.Tensor, half_squares: torch.Tensor, rates: torch.Tensor
    ) -> torch.Tensor:
        """Return log₂ φ less that of the nearest point, from −½‖z − q‖² less that of the nearest point, ``nearest``.

        Where a profile reaches no point or a bandwidth is not resolved, only the nearest points count.
        ``half_squares`` are −½‖q‖².
        """
        finest = self.finest(half_squares).to(below.dtype)
        if self.kernel.log_linear:
            return below * torch.minimum(rates, finest)
        largest = self.log_profile(nearest, rates)
        is_reached = (largest > -0.5 * FARTHEST) & (rates <= finest)
        relative = self.log_profile(below + nearest, rates) - torch.where(is_reached, largest, 0.0)
        return torch.where(is_reached, relative, below * finest) * LOG2_E

    # The dense product

    def _takes_dense(self, queries: torch.Tensor) -> bool:
        """Return whether the dense product serves queries: while a graph is built, or if there are few."""
        if torch.compiler.is_compiling() or (torch.is_grad_enabled() and queries.requires_grad):
            return True
        n_query, n_support = queries.shape[0], len(self.support)
        return n_query <= MAX_DENSE_QUERIES and n_support * max(n_query, self.support.n_classes) <= MAX_DENSE_NUMBERS

    def dense_sums(self, queries: torch.Tensor, *, leave_out: LeaveOut | None = None) -> ClassSums:
        """Return the class sums from one product of all points and queries."""
        placed = self.place(queries)
        products = torch.addmm(self.left[:, -2], placed.points, self.left[:, :-2].T)  # (n_query, n_support)
        if leave_out is not None:
            hidden = leave_out.query_keys[:, None] == leave_out.support_keys[None, :]
            products = products.masked_fill(hidden.to(products.device), -torch.inf)
        largest = products.amax(dim=1, keepdim=True).clamp_min(torch.finfo(products.dtype).min)
        below, half_squares = products - largest, placed.half_squares[:, None]
        nearest = (largest + half_squares).clamp_max(0.0)  # in float64
        rates = self.rate_column[:, :, None].to(below.dtype)
        exponents = self.relative_exponents(below, nearest, half_squares, rates)
        values = exponents.to(self.class_weights.dtype).exp2()  # (n_bandwidths, n_query, n_support)
        if self.class_weights.shape[1] == self.support.n_classes:
            sums = values @ self.class_weights
        else:
            sums = values.new_zeros(*values.shape[:2], self.support.n_classes)
            sums = sums.scatter_add(2, self.support.codes.expand(values.shape), values * self.class_weights[:, 0])
        offsets = self.offsets(nearest[:, 0], placed.stretch).masked_fill(sums.sum(dim=2) == 0, -torch.inf)
        return ClassSums(sums.transpose(1, 2), offsets.to(offsets.dtype if self.is_part else sums.dtype))

    # The loop over blocks

    def _in_blocks(
        self, write: Callable[[slice, ClassSums], None], queries: torch.Tensor, leave_out: LeaveOut | None
    ) -> None:
        """Call ``write`` with the class sums of each block of queries; threads share the queries or the points."""
        device, blocks = queries.device, slices(len(queries), QUERY_BLOCK)
        parts = slices(len(self.support), PART_BLOCKS * SUPPORT_BLOCK)
        by_points = self.kernel.log_linear and len(parts) > len(blocks)
        _ = self.left_rows(slice(0, 1)), self.centre  # a small left factor is computed once, not by each thread

        def compute(block: slice) -> None:
            points, rule = queries[block], _select(leave_out, block)
            if not self.kernel.log_linear:
                write(block, Contributions(self, points, rule).class_sums())
                return
            placed = self.place(points)
            near = None if self._are_small(placed) else self._near(placed, rule)
            wide = self.is_part or len(parts) > 1
            part_sums = partial(self._part_sums, placed=placed, near=near, leave_out=rule, wide=wide)
            sums = self._added(map_blocks(part_sums, parts, device) if by_points else map(part_sums, parts), placed)
            if self.dtype == torch.float64 and (unresolved := self._unresolved(placed)).numel():
                index = unresolved.to(device)
                exact = Contributions(self, points[index], _select(rule, index)).class_sums()
                sums.sums[:, :, unresolved], sums.offsets[:, unresolved] = exact.sums.to(sums.sums), exact.offsets
            write(block, sums)

        if by_points:
            for block in blocks:
                compute(block)
        else:
            map_blocks(compute, blocks, device)

    def _near(self, placed: Queries, leave_out: LeaveOut | None) -> torch.Tensor:
        """Return the largest product of each query with a few points of all classes, (n_query,)."""
        n_support = len(self.support)
        rows = slice(0, n_support, max(NEAR_STEP, n_support // SUPPORT_BLOCK))
        block = self.left_rows(rows) @ placed.right()
        if leave_out is not None:
            leave_out.hide(block, rows)
        return block.amax(dim=0)

    def _part_sums(
        self, part: slice, *, placed: Queries, near: torch.Tensor | None, leave_out: LeaveOut | None, wide: bool
    ) -> PartSums:
        """Return the sums of the support points ``part``, of a log-linear kernel; ``wide`` for float64.

        ``near`` are products of a near point of each query, −inf if it saw none; None if all products are small. If a
        point is so much nearer that its value could be too large, the nearest of its block takes the place of the near
        point; none takes the place of points to which the queries themselves would not be so much nearer.
        """
        right, narrowest = placed.right(), max(self.rates)
        classes, n_query = class_range(self.support, part), right.shape[1]
        dtype = widest_dtype(right.device) if wide else self.support.points.dtype
        total = right.new_zeros(len(self.rates), classes.stop - classes.start, n_query, dtype=dtype)
        is_small = is_settled = near is None
        near = right.new_zeros(n_query) if near is None else near
        right[-1] -= near.masked_fill(torch.isneginf(near), 0.0)
        step = min(SUPPORT_BLOCK * max(QUERY_BLOCK // n_query, 1), part.stop - part.start)
        buffer = right.new_empty(step, n_query)
        values = None if len(self.rates) == 1 else torch.empty_like(buffer, dtype=self.support.points.dtype)
        for rows in slices(part.stop, step, part.start):
            block = torch.mm(self.left_rows(rows), right, out=buffer[: rows.stop - rows.start])
            if leave_out is not None:
                leave_out.hide(block, rows)
            is_settled = is_settled or bool(((placed.half_squares + near) * narrowest >= -ROOM).all())
            if not is_settled:
                largest = block.amax(dim=0)
                is_new = (largest * narrowest > ROOM) | (torch.isneginf(near) & (largest > -torch.inf))
                if is_new.any():
                    rise = torch.where(is_new, largest, 0.0)
                    near = torch.where(is_new, rise - right[-1], near)
                    right[-1] -= rise
                    block.sub_(rise)
                    if rows.start > part.start:
                        total *= (-rise * self.rate_column[:, :, None].to(rise)).clamp_max_(0.0).exp2_().to(total)
            room = None if values is None else values[: len(block)]
            self._add_values(total, block, room, rows, classes.start, underflow=not is_small)
        return PartSums(classes, total, near)

    def _add_values(
        self,
        total: torch.Tensor,
        exponents: torch.Tensor,
        values: torch.Tensor | None,
        rows: slice,
        first_class: int,
        *,
        underflow: bool,
    ) -> None:
        """Add the values of the support points ``rows`` to the sums of the classes from ``first_class`` on.

        ``values`` is room for those of several bandwidths; those of one take the place of the exponents. Values
        ``underflow`` where points are much farther than the near one.
        """
        inside = class_range(self.support, rows)
        codes = self.support.codes[rows].to(exponents.device) - inside.start
        some = total[:, inside.start - first_class : inside.stop - first_class]
        weights = None if self.weights is None else self.weights[rows, None].to(exponents.device)
        for index, squares in self.steps:
            if values is None:
                values = exponents.to(self.support.points.dtype)
            elif squares == 0:
                torch.mul(exponents, self.rates[index], out=values)
            if squares == 0:
                values = flushed_exp2_(values) if underflow else values.exp2_()
            for _ in range(squares):
                values.square_()
            weighted = values if weights is None else values * weights
            if values.device.type == "cpu":
                some[index] += values.new_zeros(some.shape[1:]).index_add_(0, codes, weighted)
            else:  # index_add_ is not deterministic there
                some[index] += torch.nn.functional.one_hot(codes, some.shape[1]).to(values).T @ weighted

    def _added(self, parts: Iterable[PartSums], placed: Queries) -> ClassSums:
        """Return the class sums of queries from those of the parts of the support."""
        found = list(parts)
        near = torch.stack([part.near for part in found]).amax(dim=0).clamp_min(torch.finfo(self.dtype).min)
        sums = found[0].sums
        if sums.shape[1] < self.support.n_classes or len(found) > 1:
            rates = self.rate_column[:, :, None].to(near)
            sums = sums.new_zeros(len(self.rates), self.support.n_classes, len(near))
            for part in found:
                sums[:, part.classes] += part.sums * ((part.near - near) * rates).exp2_()
        offsets = self.offsets(near + placed.half_squares, placed.stretch)
        return ClassSums(sums, offsets.masked_fill_(sums.sum(dim=1) == 0, -torch.inf))

    @cached_property
    def exact(self) -> PreparedSupport:
        """The same with products in float64."""
        return self if self.dtype == torch.float64 else replace(self, in_float64=True)


def _select(leave_out: LeaveOut | None, queries: torch.Tensor | slice) -> LeaveOut | None:
    return None if leave_out is None else leave_out.select(queries)


def flushed_exp2_(exponents: torch.Tensor) -> torch.Tensor:
    """Return powers of 2 in place of exponents, 0 below the smallest normal number: ``exp2_`` alone is slow there."""
    return torch.threshold_(exponents, log2(torch.finfo(exponents.dtype).tiny), -torch.inf).exp2_()


def class_range(support: SortedSupport, rows: slice) -> slice:
    """Return the classes from that of the first to that of the last of the support points ``rows``."""
    starts = support.class_starts
    return slice(bisect_right(starts, rows.start) - 1, bisect_left(starts, rows.stop))


def slices(stop: int, step: int, start: int = 0) -> list[slice]:
    """Return slices of ``step`` that cover the range from ``start`` to ``stop``."""
    return [slice(place, min(place + step, stop)) for place in range(start, stop, step)]


def class_posteriors(
    queries: torch.Tensor,
    support: SortedSupport,
    bandwidth: float,
    *,
    kernel: MotherKernel = KERNELS["rbf"],
    leave_out: LeaveOut | None = None,
) -> torch.Tensor:
    """Return p_k(q), (n_query, n_classes).

    ``queries`` are (n_query, d), of the device and precision of the support; ``leave_out`` are the support points that
    a query must not see; other parameters as in ``PreparedSupport``.
    """
    return PreparedSupport(support, [bandwidth], kernel).posteriors(queries, leave_out=leave_out)[0]


class ValueBlock(NamedTuple):
    """Kernel values of some support points at all queries, times their weights."""

    rows: slice
    half_squares: torch.Tensor  # (n_rows, n_query), −½‖z − q‖² less that of the nearest point
    values: torch.Tensor  # (n_bandwidths, n_rows, n_query), 1 at the nearest point if its weight is


@dataclass(frozen=True, eq=False)
class Contributions:
    """What each support point contributes to the class sums of a block of ``queries``, (n_query, d), in float64.

    v_i(q; b) = w_i·φ(‖z_i − q‖² / (d·b²)), relative to that of the nearest point. Values are computed again for each
    pass, because the matrix of all points and queries is never held. ``leave_out`` are points that queries do not see.
    """

    prepared: PreparedSupport
    queries: torch.Tensor
    leave_out: LeaveOut | None = None

    def class_sums(self) -> ClassSums:
        """Return the class sums of the queries, (n_bandwidths, n_classes, n_query)."""
        support = self.prepared.support
        sums = self._nearest.new_zeros(len(self.prepared.bandwidths), support.n_classes, len(self.queries))
        for block in self.blocks():
            sums.index_add_(1, support.codes[block.rows].to(sums.device), block.values)
        offsets = self.prepared.exact.offsets(self._nearest, self._placed.stretch)
        return ClassSums(sums, offsets.masked_fill_(sums.sum(dim=1) == 0, -torch.inf))

    def blocks(self) -> Iterator[ValueBlock]:
        """Yield all support points in blocks, which depend on the numbers of points and queries only."""
        exact, weights = self.prepared.exact, self.prepared.weights
        for rows, products in self._products():
            below = products - self._largest
            exponents = exact.relative_exponents(
                below, self._nearest, self._placed.half_squares, exact.rate_column[:, :, None]
            )
            values = exponents.exp2_()
            yield ValueBlock(rows, below, values if weights is None else values * weights[rows, None].to(values))

    def distances(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the distances of the queries to support points at ``positions``, (n_query, k)."""
        points = in_double(self.prepared.support.points[positions.to(self.prepared.support.points.device)])
        distances: torch.Tensor = torch.linalg.vector_norm(points - in_double(self.queries)[:, None], dim=2)
        return distances

    def _products(self) -> Iterator[tuple[slice, torch.Tensor]]:
        right = self._placed.right()
        step = SUPPORT_BLOCK * min(max(QUERY_BLOCK // max(len(self.queries), 1), 1), PART_BLOCKS)
        for rows in slices(len(self.prepared.support), step):
            block = self.prepared.exact.left_rows(rows) @ right
            if self.leave_out is not None:
                self.leave_out.hide(block, rows)
            yield rows, block

    @cached_property
    def _placed(self) -> Queries:
        return self.prepared.exact.place(self.queries)

    @cached_property
    def _largest(self) -> torch.Tensor:
        """Largest product of each query, (n_query,)."""
        largest = torch.stack([products.amax(dim=0) for _, products in self._products()]).amax(dim=0)
        return largest.clamp_min(torch.finfo(torch.float64).min)  # −inf if a query sees no point

    @cached_property
    def _nearest(self) -> torch.Tensor:
        """−½‖z − q‖² of the nearest point, (n_query,)."""
        return (self._largest + self._placed.half_squares).clamp_max(0.0)


def largest_contributions(
    contributions: Contributions, factors: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the positions of the k support points of the largest total, and these totals, both (n_query, k).

    The total of a point is Σ_b factors[b, class]·v_i; ``factors`` are (n_bandwidths, n_classes, n_query) and not
    negative. Among points with a total of 0 the nearest ones come first. Points without weight are not returned.
    """
    support = contributions.prepared.support
    k = min(k, len(support.counted))
    scores = factors.new_empty(0, factors.shape[2])
    positions = torch.empty_like(scores, dtype=torch.int64)
    for rows, half_squares, values in contributions.blocks():
        codes = support.codes[rows].to(half_squares.device)
        totals = (values * factors[:, codes]).sum(dim=0)
        found = torch.cat([scores, torch.where(totals > 0, totals, half_squares)])
        places = torch.arange(rows.start, rows.stop, device=found.device)[:, None].expand_as(half_squares)
        scores, chosen = found.topk(min(k, len(found)), dim=0)
        positions = torch.cat([positions, places]).gather(0, chosen)
    return positions.T, scores.clamp_min(0.0).T
