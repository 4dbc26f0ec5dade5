"""Class sums, posteriors and densities of queries.

    S_k(q; b) = Σ_{i: y_i = k} w_i·φ(‖z_i − q‖² / (d·b²))
    p_k(q) = S_k(q) / Σ_j S_j(q)        density(q) = Σ_k S_k(q) / (Σ_i w_i · ∫φ_b)

Beside the result only a few blocks are held, for any number of points and queries. Rows of posteriors are valid
everywhere: where the kernel reaches no point, the nearest points decide. ``numerics`` states the precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, sqrt
from typing import NamedTuple

import torch

from kcal.kernels import numerics
from kcal.kernels.blocks import Queries, ScaledSupport, slices
from kcal.kernels.ladder import KernelLadder
from kcal.kernels.mother import KERNELS, MotherKernel
from kcal.kernels.numerics import in_double
from kcal.kernels.reducers import class_mass
from kcal.kernels.support import LeaveOut, SortedSupport
from kcal.threads import map_blocks


class ClassSums(NamedTuple):
    """S_k(q; b) = ``sums`` · exp(``offsets``), in two parts because far from the support the offset is huge.

    The largest sum of a query is near 1 or above (times a weight) and far below the largest number. The offset is −inf
    where the kernel reaches no point: then the sums are the weights of the nearest points, or 0 if it sees none at all.
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

    def with_largest_one(self) -> ClassSums:
        """Return the same with a largest sum of 1 for each query, which a lower precision can hold."""
        largest = self.sums.amax(dim=1)
        largest = torch.where(largest > 0, largest, 1.0)
        return ClassSums(self.sums / largest[:, None], self.offsets + largest.log())


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
        The sums are added to those of other supports: they and their offsets are in the widest precision of the device,
        as are the sums of block sums, however few the points of this part are.
    """

    support: SortedSupport
    bandwidths: Sequence[float]
    kernel: MotherKernel = KERNELS["rbf"]
    is_part: bool = False

    def class_sums(self, queries: torch.Tensor, *, leave_out: LeaveOut | None = None) -> ClassSums:
        """Return the class sums of ``queries`` (n_query, d), of the same device and precision as the support.

        Each query gets the precision that it needs, independently of the queries beside it.
        """
        dtype = numerics.widest_dtype(queries.device) if self.is_part else queries.dtype
        sums = queries.new_empty(len(self.bandwidths), self.support.n_classes, queries.shape[0], dtype=dtype)
        offsets = queries.new_empty(len(self.bandwidths), queries.shape[0], dtype=dtype)

        def compute(block: slice) -> None:
            sums[:, :, block], offsets[:, block] = self._block_sums(queries[block], _select(leave_out, block))

        self._prepare()
        map_blocks(compute, list(slices(queries.shape[0], numerics.QUERY_BLOCK)), queries.device)
        return ClassSums(sums, offsets)

    def posteriors(self, queries: torch.Tensor, *, leave_out: LeaveOut | None = None) -> torch.Tensor:
        """Return p_k(q; b), (n_bandwidths, n_query, n_classes): uniform where a query sees no point at all."""
        return self.class_sums(queries, leave_out=leave_out).posteriors()

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

    def _block_sums(self, points: torch.Tensor, leave_out: LeaveOut | None, level: int = 0) -> ClassSums:
        """Return the class sums of a block, each query in the first precision from ``level`` on that resolves it."""
        if level == len(self._precisions):
            return self._unresolved_sums(points, leave_out)
        scaled, lowest = self._precisions[level]
        queries = scaled.queries(points.to(scaled.like))
        if float(queries.common.min()) >= lowest:
            computed = self._resolved_sums(scaled, queries, points, leave_out)
            return computed if scaled.like.dtype == points.dtype else computed.with_largest_one()
        widest = numerics.widest_dtype(points.device)
        dtype = widest if self.is_part else points.dtype
        sums = points.new_empty(len(self.bandwidths), self.support.n_classes, len(points), dtype=dtype)
        offsets = sums.new_empty(len(self.bandwidths), len(points), dtype=widest)
        resolved = queries.common >= lowest
        for chosen, its_level in ((resolved, level), (~resolved, level + 1)):
            index = chosen.nonzero().squeeze(1).to(points.device)
            if len(index):
                part = self._block_sums(points[index], _select(leave_out, index), its_level)
                sums[:, :, index], offsets[:, index] = part.sums.to(sums), part.offsets.to(offsets)
        return ClassSums(sums, offsets)

    def _unresolved_sums(self, points: torch.Tensor, leave_out: LeaveOut | None) -> ClassSums:
        """Return the class sums of queries that no precision resolves at the smallest bandwidth."""
        if len(self.bandwidths) == 1:
            return self._nearest_sums(points, leave_out).with_largest_one()
        each = [replace(self, bandwidths=[bandwidth]) for bandwidth in self.bandwidths]
        parts = [prepared.class_sums(points, leave_out=leave_out) for prepared in each]
        return ClassSums(torch.cat([part.sums for part in parts]), torch.cat([part.offsets for part in parts]))

    def prepare(self) -> None:
        """Compute what queries share."""
        self._prepare()

    def _prepare(self) -> None:
        """Compute what queries share before threads ask for it."""
        for scaled, _ in self._precisions[:1]:
            scaled.prepare()

    @cached_property
    def _precisions(self) -> list[tuple[ScaledSupport, float]]:
        """The support in each precision, from the fastest on, and the lowest −½‖q‖² of a query that it resolves."""
        points = self.support.points[:0]
        length = sqrt(self.support.dimension)
        if self.kernel.log_linear:
            unit = 1.0 / (max(self.bandwidths) * length)
            supports = {like.dtype: ScaledSupport(self.support, unit, like) for like in (points, in_double(points))}
        else:
            supports = {torch.float64: self._unscaled}
        result = []
        for dtype, scaled in supports.items():
            # R·(R + r)/(d·b²) ≤ resolution/ε, solved for r in the unit
            radius = max(scaled.radius, torch.finfo(torch.float64).tiny)
            narrowest = min(self.bandwidths) * length * scaled.unit
            farthest = numerics.RESOLUTION / torch.finfo(dtype).eps * narrowest * (narrowest / radius) - radius
            result.append((scaled, -0.5 * farthest * farthest if farthest >= 0 else inf))
        return result

    @cached_property
    def _unscaled(self) -> ScaledSupport:
        return ScaledSupport(self.support, 1.0, in_double(self.support.points[:0]))

    @cached_property
    def _ladder(self) -> KernelLadder:
        if self.kernel.log_linear:
            widest = max(self.bandwidths)
            factors = [(widest / bandwidth) ** 2 for bandwidth in self.bandwidths]
        else:
            factors = [1.0 / (self.support.dimension * bandwidth**2) for bandwidth in self.bandwidths]
        return KernelLadder(self.kernel, self.support.dimension, factors)

    @cached_property
    def _factors(self) -> torch.Tensor:
        """f_j of each bandwidth, (n_bandwidths, 1)."""
        return torch.tensor(self._ladder.factors, dtype=torch.float64)[:, None]

    def _resolved_sums(
        self, scaled: ScaledSupport, queries: Queries, points: torch.Tensor, leave_out: LeaveOut | None
    ) -> ClassSums:
        """Sum with a shift from pilot points, and with the exact one where that is not enough."""
        if self.kernel.is_compact:  # its values are never too small for a number
            return self._with_nearest(self._profile_sums(scaled, queries, None, leave_out), points, leave_out)
        shifted_sums = self._log_linear_sums if self.kernel.log_linear else self._profile_sums
        largest = scaled.pilot_maximum(queries, leave_out)
        result = shifted_sums(scaled, queries, largest, leave_out)
        room = torch.finfo(queries.right.dtype).max * numerics.ROOM / result.sums[..., 0].numel()
        if float(result.sums.amax()) < room and float(largest.amin()) > -inf:
            return result
        again = torch.isneginf(largest) | ~(result.sums.flatten(0, 1).amax(dim=0) < room)
        index = again.nonzero().squeeze(1)
        queries, rule = queries.select(index), _select(leave_out, index)
        largest = scaled.exact_maximum(queries, rule)
        result.sums[:, :, index], result.offsets[:, index] = shifted_sums(scaled, queries, largest, rule)
        return result

    def _log_linear_sums(
        self, scaled: ScaledSupport, queries: Queries, largest: torch.Tensor, leave_out: LeaveOut | None
    ) -> ClassSums:
        """Sum with exponents less ``largest``, a product with c = 0."""
        shift = largest if leave_out is None else largest.nan_to_num(neginf=0.0)
        least = -inf
        if leave_out is None or not leave_out.grouped:  # no product is below −½R² − r·R
            farthest = sqrt(max(-2.0 * float(queries.common.min()), 0.0))
            least = -scaled.radius * (0.5 * scaled.radius + farthest) - float(shift.amax())
        sums = self._class_mass(scaled, queries.with_constant(-shift), leave_out, least)
        widest = numerics.widest_dtype(sums.device)
        offsets = self._factors.to(sums.device, widest) * (largest.to(widest) + queries.common.to(widest))
        return ClassSums(sums, offsets)

    def _profile_sums(
        self, scaled: ScaledSupport, queries: Queries, largest: torch.Tensor | None, leave_out: LeaveOut | None
    ) -> ClassSums:
        """Sum with exponents less those at ``largest``, a product with c = 0; None for no shift."""
        shifts, offsets = None, queries.common.new_zeros(len(self.bandwidths), len(queries.common))
        if largest is not None:
            sees_nothing = torch.isneginf(largest)
            shifts = self._ladder.log_profiles(largest + queries.common).masked_fill_(sees_nothing, 0.0)
            offsets = shifts.masked_fill(sees_nothing, -torch.inf)
        queries = queries.with_constant(queries.common)
        return ClassSums(self._class_mass(scaled, queries, leave_out, -torch.inf, shifts), offsets)

    def _class_mass(
        self,
        scaled: ScaledSupport,
        queries: Queries,
        leave_out: LeaveOut | None,
        least: float,
        shifts: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the sums of the products, none of which is below ``least``."""
        return class_mass(
            scaled.blocks(queries, leave_out),
            scaled,
            self._ladder,
            floored=self._ladder.needs_floor(least, queries.common.dtype),
            like=queries.common,
            shifts=shifts,
            is_part=self.is_part,
        )

    def _with_nearest(self, sums: ClassSums, points: torch.Tensor, leave_out: LeaveOut | None) -> ClassSums:
        """Let the nearest points decide where a compact kernel reaches none."""
        unreached = sums.sums.sum(dim=1) == 0  # (n_bandwidths, n_query)
        index = unreached.any(dim=0).nonzero().squeeze(1)
        if len(index):
            place = index.to(points.device)
            nearest = self._nearest_sums(points[place], _select(leave_out, place))
            some = unreached[:, index]
            sums.sums[:, :, index] = torch.where(some[:, None], nearest.sums, sums.sums[:, :, index])
            sums.offsets[:, index] = sums.offsets[:, index].masked_fill(some, -torch.inf)
        return sums

    def _nearest_sums(self, points: torch.Tensor, leave_out: LeaveOut | None) -> ClassSums:
        """Return the limit b → 0: sums over the nearest points only, with the kernel's own offset.

        It is the log-linear kernel at the smallest bandwidth of each query that float64 resolves, by a factor on the
        right side of the product.
        """
        scaled = self._unscaled
        queries = scaled.queries(in_double(points))
        radius = max(scaled.radius, torch.finfo(torch.float64).tiny ** 0.5)
        reach = radius * ((-2.0 * queries.common).sqrt() + radius)
        sharpness = numerics.RESOLUTION / torch.finfo(torch.float64).eps / reach
        queries.right.mul_(sharpness)
        largest = scaled.exact_maximum(queries, leave_out)
        ladder = KernelLadder(KERNELS["rbf"], self.support.dimension, [1.0])
        blocks = scaled.blocks(queries.with_constant(-largest.nan_to_num(neginf=0.0)), leave_out)
        sums = class_mass(blocks, scaled, ladder, floored=[True], like=queries.common)
        distances = (-2.0 * (largest / sharpness + queries.common)).clamp_min(0.0).sqrt()
        lengths = distances.new_tensor(self.bandwidths)[:, None] * sqrt(self.support.dimension)
        offsets = self.kernel.log_profile((distances / lengths).square(), self.support.dimension)
        offsets.masked_fill_(torch.isneginf(largest), -torch.inf)
        return ClassSums(sums.expand(len(self.bandwidths), -1, -1), offsets)


def _select(leave_out: LeaveOut | None, queries: torch.Tensor | slice) -> LeaveOut | None:
    return None if leave_out is None else leave_out.select(queries)


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
