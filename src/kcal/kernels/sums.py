"""Class sums, posteriors and densities of queries: the engine.

    S_k(q; b) = Σ_{i: y_i = k} w_i·φ(‖z_i − q‖² / (d·b²))
    p_k(q) = S_k(q) / Σ_j S_j(q)        density(q) = Σ_k S_k(q) / (Σ_i w_i · ∫φ_b)

Distances come from one matrix product of centred points and queries, in units of the widest bandwidth:

    (z, −½‖z‖²) · (q, 1) = −½‖z − q‖² + ½‖q‖²

There are two loops over it. The blocked one holds a few blocks beside the result, for any number of points and queries.
The dense one is a single product without a branch that depends on numbers: it is exported, compiled and differentiated.

Numerical policy
    Rounding moves an exponent by about ε·R·(R + r)/(d·b²), with R the radius of the support and r the distance of the
    query from its centre. Products are in float32 if this is below ``RESOLUTION`` at r = ``QUERY_RADII``·R, and in
    float64 otherwise, or if the support is, or if the profile is not log-linear. That is decided once for a support and
    its bandwidths. Where float64 does not resolve a bandwidth, only the nearest points count, as where a compact
    kernel reaches no point. Exponentials are powers of 2 of exponents less the largest one of each query, unless all
    exponents of a block are small. Values are summed in the precision of the support, sums of blocks in float64 if
    there are many.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
LOG2_E = 1.0 / log(2.0)

SUPPORT_BLOCK = QUERY_BLOCK = 1024
"""Support points × queries of a block: a few MB, which stay in the cache. Few queries get more points."""
PART_BLOCKS = 32
"""Blocks of support points that one thread sums for a block of queries."""
MAX_KEPT_NUMBERS = 4_000_000
"""Numbers of a scaled support up to which it is kept, and of a dense product where nearest points are sought."""


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

    def posteriors(self) -> torch.Tensor:
        """Return p_k(q; b), (n_bandwidths, n_query, n_classes): uniform where a query sees no point at all."""
        totals = self.sums.sum(dim=1, keepdim=True)
        return torch.where(totals == 0, 1.0 / self.sums.shape[1], self.sums / totals).transpose(1, 2)

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


class SupportTensors(NamedTuple):
    """What the dense product needs of a support; constants of a trace."""

    centre: torch.Tensor  # (d,), in float64
    points: torch.Tensor  # (n_support, d), z, in the precision of the products
    half_squares: torch.Tensor  # (n_support,), −½‖z‖²; −inf for a point of weight 0
    codes: torch.Tensor  # (n_support,)
    weights: torch.Tensor  # (n_support, n_classes), 0 outside the class of the point; (n_support,) if that is too large
    rates: torch.Tensor  # (n_bandwidths,), factor of −½‖z − q‖² in the exponents
    log_volumes: torch.Tensor  # (n_bandwidths,), log(Σ_i w_i · ∫φ_b)


class Queries(NamedTuple):
    """Queries in the unit of length of a support."""

    points: torch.Tensor  # (n_query, d)
    half_squares: torch.Tensor  # (n_query,), −½‖q‖², in float64
    stretch: torch.Tensor  # (n_query,), factor by which a query was moved towards the centre


@dataclass(frozen=True, eq=False)
class ScaledSupport:
    """A support in the precision and the unit of length that its bandwidths need; parameters of ``PreparedSupport``."""

    support: SortedSupport
    bandwidths: Sequence[float]
    kernel: MotherKernel

    @cached_property
    def dtype(self) -> torch.dtype:
        """Precision of the products."""
        error = torch.finfo(self.support.points.dtype).eps * (1.0 + QUERY_RADII) * self.radius**2
        length = min(self.clipped) * sqrt(self.support.dimension)
        is_enough = self.kernel.log_linear and error <= RESOLUTION * length**2
        return self.support.points.dtype if is_enough else torch.float64

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
    def rates(self) -> list[float]:
        """Factor of −½‖z − q‖² in the exponents at each bandwidth."""
        return [(max(self.clipped) / bandwidth) ** 2 for bandwidth in self.clipped]

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
    def log_volumes(self) -> list[float]:
        """Logarithm of ∫φ_b at each bandwidth."""
        return [self.kernel.log_volume(bandwidth, self.support.dimension) for bandwidth in self.bandwidths]

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
    def left(self) -> torch.Tensor:
        """Left factor of the product, (n_support, d + 1)."""
        return self._left(slice(None))

    def left_rows(self, rows: slice) -> torch.Tensor:
        """Return rows of the left factor; a large one is computed block by block, unless it is there."""
        n_numbers = len(self.support) * (self.support.dimension + 1)
        return self.left[rows] if n_numbers <= MAX_KEPT_NUMBERS or "left" in self.__dict__ else self._left(rows)

    def _left(self, rows: slice) -> torch.Tensor:
        points = self.support.points[rows]
        points = in_double(points) if self.dtype == torch.float64 else points
        left = points.new_empty(points.shape[0], self.support.dimension + 1)
        scaled = torch.sub(points, self.centre.to(points), out=left[:, :-1]).mul_(self.unit)
        left[:, -1] = scaled.square().sum(dim=1).mul_(-0.5)
        if self.support.log_weights is not None:
            left[:, -1].masked_fill_(torch.isneginf(self.support.log_weights[rows]).to(left.device), -torch.inf)
        return left

    @cached_property
    def tensors(self) -> SupportTensors:
        """What the dense product needs."""
        support, like = self.support, self.support.points
        weights = torch.ones_like(like[:, 0]) if self.weights is None else self.weights
        if len(support) * support.n_classes <= MAX_KEPT_NUMBERS:
            one_hot = torch.nn.functional.one_hot(support.codes, support.n_classes)
            weights = one_hot.to(weights) * weights[:, None]
        log_volumes = [support.log_total_weight + volume for volume in self.log_volumes]
        numbers = (self.centre.new_tensor(row) for row in (self.rates, log_volumes))
        return SupportTensors(self.centre, self.left[:, :-1], self.left[:, -1], support.codes, weights, *numbers)

    def place(self, queries: torch.Tensor, centre: torch.Tensor) -> Queries:
        """Return queries in the unit, moved towards the ``centre`` if they are too far."""
        centred = (in_double(queries) - centre) * self.unit
        lengths = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
        farthest = FARTHEST_QUERY * max(self.radius * self.unit, 1.0)
        stretch = lengths.clamp_min(farthest) / farthest
        points = (centred / stretch).to(self.dtype)
        return Queries(points, -0.5 * (lengths / stretch).square()[:, 0], stretch[:, 0])

    def log_profile(self, half_squares: torch.Tensor, rate: float | torch.Tensor) -> torch.Tensor:
        """Return log φ from −½‖z − q‖², for a kernel that is not log-linear."""
        return self.kernel.log_profile(half_squares.clamp_max(0.0) * (-2.0 * rate), self.support.dimension)

    def offsets(self, nearest: torch.Tensor, rates: torch.Tensor, stretch: torch.Tensor) -> torch.Tensor:
        """Return log φ of the nearest points from −½‖z − q‖² of queries that were moved by ``stretch``."""
        nearest = nearest.clamp_max(0.0) * stretch.square()
        return nearest * rates / LOG2_E if self.kernel.log_linear else self.log_profile(nearest, rates)

    def finest(self, half_squares: torch.Tensor) -> torch.Tensor:
        """Return the largest rates that float64 resolves for queries of these −½‖q‖²; there is no limit in float32."""
        radius, epsilon = self.radius * self.unit, torch.finfo(torch.float64).eps
        if self.dtype != torch.float64:
            return torch.full_like(half_squares, torch.inf)
        return RESOLUTION / epsilon / radius / ((-2.0 * half_squares).sqrt() + radius)

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


class Distances(NamedTuple):
    """−½‖z − q‖² of a support and queries, in the precision of the support, kept for other bandwidths."""

    unit: float
    blocks: list[torch.Tensor]  # (n_support, queries of a block); −inf where hidden


@dataclass(frozen=True, eq=False)
class BlockLoop:
    """The loop over blocks of support points for one block of queries."""

    scaled: ScaledSupport
    queries: Queries
    leave_out: LeaveOut | None
    kept: torch.Tensor | None = None  # −½‖z − q‖², (n_support, n_query), in a unit of its own
    kept_factor: float = 1.0

    @cached_property
    def right(self) -> torch.Tensor:
        """Right factor of the product, (d + 1, n_query)."""
        points = self.queries.points
        right = points.new_ones(points.shape[1] + 1, points.shape[0])
        right[:-1] = points.T
        return right

    @cached_property
    def missing(self) -> torch.Tensor:
        """What the products lack to −½‖z − q‖², (n_query,), in float64."""
        half_squares = self.queries.half_squares
        return half_squares if self.kept is None else torch.zeros_like(half_squares)

    @cached_property
    def is_shifted(self) -> bool:
        """Whether values could be too small or too large for a number without a shift; a compact kernel's are not."""
        scaled = self.scaled
        if not scaled.kernel.log_linear:
            return not scaled.kernel.is_compact
        reach = scaled.radius * scaled.unit + sqrt(-2.0 * float(self.queries.half_squares.amin()))
        room = -log2(torch.finfo(scaled.support.points.dtype).tiny) / 3.0
        return not 0.5 * reach**2 * max(scaled.rates) < room

    def shifts(self, top: torch.Tensor) -> torch.Tensor:
        """Return log₂ φ at the largest product of each query, (n_bandwidths, n_query)."""
        if not self.is_shifted:
            return top.new_zeros(len(self.scaled.rates), len(top))
        rates = top.new_tensor(self.scaled.rates)[:, None]
        if self.scaled.kernel.log_linear:
            return top * rates
        shifts = self.scaled.log_profile(top + self.missing, rates) * LOG2_E
        return torch.where(shifts > -0.5 * FARTHEST, shifts, 0.0)

    def sums(self, part: slice, *, wide: bool) -> tuple[slice, torch.Tensor, torch.Tensor]:
        """Return the classes of some support points, their sums (``wide`` for float64), and the largest products.

        Sums are (n_bandwidths, n_classes, n_query) and relative to the ``shifts`` of these products.
        """
        support, n_query = self.scaled.support, self.right.shape[1]
        classes = class_range(support, part)
        shape = len(self.scaled.rates), classes.stop - classes.start, n_query
        dtype = widest_dtype(self.right.device) if wide else support.points.dtype
        total = self.right.new_zeros(shape, dtype=dtype)
        top = self.right.new_full((n_query,), torch.finfo(self.right.dtype).min if self.is_shifted else 0.0)
        step = SUPPORT_BLOCK * max(QUERY_BLOCK // n_query, 1)
        buffer = self.right.new_empty(min(step, part.stop - part.start), n_query)
        for rows in slices(part.stop, step, part.start):
            block = self.products(rows, buffer[: rows.stop - rows.start])
            if self.is_shifted:
                before, top = top, torch.maximum(top, block.amax(dim=0))
                if rows.start > part.start:
                    total *= (self.shifts(before) - self.shifts(top)).clamp_max_(0.0).exp2_()[:, None].to(dtype)
            inside = class_range(support, rows)
            place = slice(inside.start - classes.start, inside.stop - classes.start)
            for index, values in self._values(block, top):
                total[index, place] += self._by_class(values, rows, inside)
        return classes, total, top

    def products(self, rows: slice, out: torch.Tensor) -> torch.Tensor:
        """Return −½‖z − q‖² less what is ``missing``, (n_rows, n_query), in ``out``; −inf where hidden."""
        if self.kept is not None:
            return torch.mul(self.kept[rows], self.kept_factor, out=out)
        block = torch.mm(self.scaled.left_rows(rows), self.right, out=out)
        if self.leave_out is not None:
            self.leave_out.hide(block, rows.start)
        return block

    def _values(self, block: torch.Tensor, top: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the index of each bandwidth with its kernel values, which the next ones overwrite."""
        scaled, dtype = self.scaled, self.scaled.support.points.dtype
        if not scaled.kernel.log_linear:
            block.add_(self.missing)
            for index, shift in enumerate(self.shifts(top)):
                exponents = scaled.log_profile(block, scaled.rates[index]).mul_(LOG2_E)
                yield index, exponents.sub_(shift).to(dtype).exp2_()
            return
        if self.is_shifted:
            block.sub_(top)
        if len(scaled.rates) == 1:
            yield 0, block.to(dtype).exp2_()
            return
        values = torch.empty_like(block, dtype=dtype)
        for index, squares in scaled.steps:
            if squares == 0:
                torch.mul(block, scaled.rates[index], out=values).exp2_()
            for _ in range(squares):
                values.square_()
            yield index, values

    def _by_class(self, values: torch.Tensor, rows: slice, classes: slice) -> torch.Tensor:
        """Return Σ w_i·values_i of each of the classes of the support points ``rows``."""
        codes, n_classes = self.scaled.support.codes[rows].to(values.device), classes.stop - classes.start
        weights = None if self.scaled.weights is None else self.scaled.weights[rows, None].to(values)
        if values.device.type == "cpu":
            sums = values.new_zeros(n_classes, values.shape[1])
            return sums.index_add_(0, codes - classes.start, values if weights is None else values * weights)
        one_hot = torch.nn.functional.one_hot(codes - classes.start, n_classes).to(values)
        return (one_hot if weights is None else one_hot * weights).T @ values  # index_add_ is not deterministic there


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
    """

    support: SortedSupport
    bandwidths: Sequence[float]
    kernel: MotherKernel = KERNELS["rbf"]
    is_part: bool = False

    @cached_property
    def scaled(self) -> ScaledSupport:
        """The support in the precision and unit of the bandwidths."""
        return ScaledSupport(self.support, self.bandwidths, self.kernel)

    def prepare(self) -> PreparedSupport:
        """Compute everything that does not depend on queries now, so that a trace finds constants; return self."""
        _ = self.scaled.tensors, self.scaled.radius
        return self

    def class_sums(self, queries: torch.Tensor, *, leave_out: LeaveOut | None = None) -> ClassSums:
        """Return the class sums of ``queries`` (n_query, d), of the device and precision of the support."""
        if _needs_dense(queries):
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
        if _needs_dense(queries):
            return self.dense_sums(queries, leave_out=leave_out).posteriors()
        result = queries.new_empty(len(self.bandwidths), len(queries), self.support.n_classes)

        def write(block: slice, found: ClassSums) -> None:
            result[:, block] = found.posteriors()

        self._in_blocks(write, queries, leave_out)
        return result

    def own_shares(
        self,
        queries: torch.Tensor,
        codes: torch.Tensor,
        *,
        leave_out: LeaveOut | None = None,
        kept: Distances | None = None,
    ) -> torch.Tensor:
        """Return p_k(q; b) of one class k of each query, (n_bandwidths, n_query); ``kept`` are their distances."""
        result = queries.new_empty(len(self.bandwidths), len(queries), dtype=widest_dtype(queries.device))

        def write(block: slice, found: ClassSums) -> None:
            own = codes[block].to(found.sums.device).expand(len(self.bandwidths), 1, -1)
            totals = found.sums.sum(dim=1, dtype=result.dtype)
            shares = found.sums.gather(1, own)[:, 0] / totals
            result[:, block] = shares.masked_fill_(totals == 0, 1.0 / self.support.n_classes)

        self._in_blocks(write, queries, leave_out, kept)
        return result

    def log_densities(self, queries: torch.Tensor, *, leave_out: LeaveOut | None = None) -> torch.Tensor:
        """Return the log density of the support that each query sees, (n_bandwidths, n_query).

        It is −inf where the kernel reaches no point.
        """
        sums = self.class_sums(queries, leave_out=leave_out)
        log_weight: float | torch.Tensor = self.support.log_total_weight
        if leave_out is not None:
            log_weight = leave_out.log_visible_weights(self.support).to(sums.offsets)
        return sums.log_densities(log_weight + sums.offsets.new_tensor(self.scaled.log_volumes)[:, None])

    def distances(self, queries: torch.Tensor, *, leave_out: LeaveOut | None = None) -> Distances:
        """Return the distances of all points and queries, to be used at other bandwidths too."""
        scaled, rows = self.scaled, slice(0, len(self.support))
        _ = scaled.centre, scaled.left

        def compute(block: slice) -> torch.Tensor:
            loop = BlockLoop(scaled, scaled.place(queries[block], scaled.centre), _select(leave_out, block))
            products = loop.products(rows, scaled.left.new_empty(rows.stop, block.stop - block.start))
            return products.add_(loop.missing).clamp_max_(0.0).to(queries.dtype)

        return Distances(scaled.unit, map_blocks(compute, slices(len(queries), QUERY_BLOCK), queries.device))

    def dense_sums(
        self, queries: torch.Tensor, *, leave_out: LeaveOut | None = None, tensors: SupportTensors | None = None
    ) -> ClassSums:
        """Return the class sums from one product of all points and queries; ``tensors`` default to the support's."""
        scaled, tensors = self.scaled, self.scaled.tensors if tensors is None else tensors
        placed = scaled.place(queries, tensors.centre)
        products = torch.addmm(tensors.half_squares, placed.points, tensors.points.T)  # (n_query, n_support)
        if leave_out is not None:
            hidden = leave_out.query_keys[:, None] == leave_out.support_keys[None, :]
            products = products.masked_fill(hidden.to(products.device), -torch.inf)
        largest = products.amax(dim=1, keepdim=True).clamp_min(torch.finfo(products.dtype).min)
        below, half_squares = products - largest, placed.half_squares[:, None]
        nearest = (largest + half_squares).clamp_max(0.0)  # in float64
        rates = tensors.rates[:, None, None].to(below.dtype)
        exponents = scaled.relative_exponents(below, nearest, half_squares, rates)
        values = exponents.to(tensors.weights.dtype).exp2()  # (n_bandwidths, n_query, n_support)
        if tensors.weights.ndim == 2:
            sums = values @ tensors.weights
        else:
            sums = values.new_zeros(*values.shape[:2], self.support.n_classes)
            sums = sums.scatter_add(2, tensors.codes.expand(values.shape), values * tensors.weights)
        offsets = scaled.offsets(nearest[:, 0], tensors.rates[:, None], placed.stretch)
        return ClassSums(sums.transpose(1, 2), offsets.to(offsets.dtype if self.is_part else sums.dtype))

    def _in_blocks(
        self,
        write: Callable[[slice, ClassSums], None],
        queries: torch.Tensor,
        leave_out: LeaveOut | None,
        kept: Distances | None = None,
    ) -> None:
        """Call ``write`` with the class sums of each block of queries; threads share the queries or the points."""
        scaled, blocks = self.scaled, slices(len(queries), QUERY_BLOCK)
        parts = slices(len(self.support), PART_BLOCKS * SUPPORT_BLOCK)
        map_blocks(scaled.left_rows, [slice(0, 1)], queries.device)  # once, not by each thread
        by_points = len(parts) > len(blocks)

        def compute(place: int) -> None:
            points, rule = queries[blocks[place]], _select(leave_out, blocks[place])
            loop = BlockLoop(scaled, scaled.place(points, scaled.centre), rule)
            if kept is not None:
                loop = replace(loop, kept=kept.blocks[place], kept_factor=(scaled.unit / kept.unit) ** 2)

            def part_sums(part: slice) -> tuple[slice, torch.Tensor, torch.Tensor]:
                return loop.sums(part, wide=self.is_part or len(parts) > 1)

            found = map_blocks(part_sums, parts, points.device) if by_points else [part_sums(part) for part in parts]
            write(blocks[place], self._added(loop, found, points))

        if by_points:
            for place in range(len(blocks)):
                compute(place)
        else:
            map_blocks(compute, range(len(blocks)), queries.device)

    def _added(
        self, loop: BlockLoop, found: list[tuple[slice, torch.Tensor, torch.Tensor]], points: torch.Tensor
    ) -> ClassSums:
        """Return the class sums of a block of queries, ``points``, from those of parts of the support."""
        top = torch.stack([part_top for _, _, part_top in found]).amax(dim=0)
        like = found[0][1]
        sums = like.new_zeros(like.shape[0], self.support.n_classes, like.shape[2])
        for classes, part, part_top in found:
            sums[:, classes] += (
                part
                if len(found) == 1
                else part * (loop.shifts(part_top) - loop.shifts(top)).clamp_max_(0.0).exp2_()[:, None]
            )
        rates = loop.missing.new_tensor(self.scaled.rates)[:, None]
        offsets = self.scaled.offsets(top + loop.missing, rates, loop.queries.stretch)
        if self.kernel.is_compact:
            offsets.zero_()
        unreached = (sums.sum(dim=1) == 0) | (rates > self.scaled.finest(loop.queries.half_squares))
        index = unreached.any(dim=0).nonzero().squeeze(1)
        for some in torch.split(index, max(MAX_KEPT_NUMBERS // len(self.support), 1)):  # the nearest points decide
            nearest = self.dense_sums(points[some.to(points.device)], leave_out=_select(loop.leave_out, some))
            there = unreached[:, some]
            sums[:, :, some] = torch.where(there[:, None], nearest.sums.to(sums), sums[:, :, some])
            offsets[:, some] = torch.where(there, nearest.offsets.to(offsets), offsets[:, some])
        offsets.masked_fill_(sums.sum(dim=1) == 0, -torch.inf)
        return ClassSums(sums, offsets)


def _needs_dense(queries: torch.Tensor) -> bool:
    """Return whether sums are traced or differentiated."""
    return torch.compiler.is_compiling() or (torch.is_grad_enabled() and queries.requires_grad)


def _select(leave_out: LeaveOut | None, queries: torch.Tensor | slice) -> LeaveOut | None:
    return None if leave_out is None else leave_out.select(queries)


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
    pass, because the matrix of all points and queries is never held.
    """

    prepared: PreparedSupport
    queries: torch.Tensor

    def class_sums(self) -> ClassSums:
        """Return the class sums of the queries, (n_bandwidths, n_classes, n_query)."""
        support = self.prepared.support
        sums = self._nearest.new_zeros(len(self.prepared.bandwidths), support.n_classes, len(self.queries))
        for block in self.blocks():
            sums.index_add_(1, support.codes[block.rows].to(sums.device), block.values)
        rates = self._nearest.new_tensor(self._double.rates)[:, None]
        return ClassSums(sums, self._double.offsets(self._nearest, rates, self._loop.queries.stretch))

    def blocks(self) -> Iterator[ValueBlock]:
        """Yield all support points in blocks, which depend on the numbers of points and queries only."""
        double, weights, rates = self._double, self._double.weights, self._nearest.new_tensor(self._double.rates)
        nearest, half_squares = self._nearest, self._loop.queries.half_squares
        for rows, products in self._products():
            below = products - self._largest
            exponents = double.relative_exponents(below, nearest, half_squares, rates[:, None, None])
            values = exponents.exp2_()
            yield ValueBlock(rows, below, values if weights is None else values * weights[rows, None].to(values))

    def distances(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the distances of the queries to support points at ``positions``, (n_query, k)."""
        points = in_double(self.prepared.support.points[positions.to(self.prepared.support.points.device)])
        distances: torch.Tensor = torch.linalg.vector_norm(points - in_double(self.queries)[:, None], dim=2)
        return distances

    def _products(self) -> Iterator[tuple[slice, torch.Tensor]]:
        step = SUPPORT_BLOCK * min(max(QUERY_BLOCK // max(len(self.queries), 1), 1), PART_BLOCKS)
        for rows in slices(len(self.prepared.support), step):
            out = self._loop.right.new_empty(rows.stop - rows.start, len(self.queries))
            yield rows, self._loop.products(rows, out)

    @cached_property
    def _double(self) -> ScaledSupport:
        prepared = self.prepared
        return ScaledSupport(prepared.support.to(dtype=torch.float64), prepared.bandwidths, prepared.kernel)

    @cached_property
    def _loop(self) -> BlockLoop:
        return BlockLoop(self._double, self._double.place(self.queries, self._double.centre), None)

    @cached_property
    def _largest(self) -> torch.Tensor:
        """Largest product of each query, (n_query,)."""
        return torch.stack([products.amax(dim=0) for _, products in self._products()]).amax(dim=0)

    @cached_property
    def _nearest(self) -> torch.Tensor:
        """−½‖z − q‖² of the nearest point, (n_query,)."""
        return (self._largest + self._loop.queries.half_squares).clamp_max(0.0)


def largest_contributions(
    contributions: Sequence[Contributions], factors: Sequence[torch.Tensor], k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the positions of the k support points of the largest total, and these totals, both (n_query, k).

    The total of a point is Σ_m Σ_b factors_m[b, class]·v_i over supports m with the same points in the same order (in
    several metrics). Each of ``factors`` is (n_bandwidths, n_classes, n_query) and not negative. Among points with a
    total of 0 the nearest ones (in the first metric) come first. No more points than have a weight are returned.
    """
    support = contributions[0].prepared.support
    k = min(k, len(support.counted))
    scores = factors[0].new_empty(0, factors[0].shape[2])
    positions = torch.empty_like(scores, dtype=torch.int64)
    for blocks in zip(*(part.blocks() for part in contributions), strict=True):
        rows, half_squares = blocks[0].rows, blocks[0].half_squares
        codes = support.codes[rows].to(half_squares.device)
        totals = sum(
            (block.values * factor[:, codes]).sum(dim=0) for block, factor in zip(blocks, factors, strict=True)
        )
        found = torch.cat([scores, torch.where(totals > 0, totals, half_squares)])
        places = torch.arange(rows.start, rows.stop, device=found.device)[:, None].expand_as(half_squares)
        scores, chosen = found.topk(min(k, len(found)), dim=0)
        positions = torch.cat([positions, places]).gather(0, chosen)
    return positions.T, scores.clamp_min(0.0).T
