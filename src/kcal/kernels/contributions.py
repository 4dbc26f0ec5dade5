"""The support points that contribute most to the class sums of queries, found block by block.

    S_k(q; b) = Σ_{i: y_i = k} v_i(q; b),   v_i(q; b) = w_i·φ(‖z_i − q‖² / (d·b²))

Kernel values are in float64 and relative to that of the nearest point, by the rule of ``DirectSums``: where float64
does not resolve the bandwidth, or a kernel reaches no point, the nearest points decide. They are computed again for
each pass, because the matrix of all points and queries is never held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from kcal.kernels import numerics
from kcal.kernels.blocks import Queries, ScaledSupport, slices
from kcal.kernels.direct import finest_rates, shifted_exponents
from kcal.kernels.numerics import in_double
from kcal.kernels.reducers import add_by_class
from kcal.kernels.sums import ClassSums, PreparedSupport


class ValueBlock(NamedTuple):
    """Kernel values of some support points at all queries, times their weights."""

    rows: slice
    half_squares: torch.Tensor  # (n_rows, n_query), −½‖z − q‖² less that of the nearest point
    values: torch.Tensor  # (n_bandwidths, n_rows, n_query), 1 at the nearest point if its weight is


@dataclass(frozen=True, eq=False)
class Contributions:
    """What each support point contributes to the class sums of a block of ``queries``, (n_query, d)."""

    prepared: PreparedSupport
    queries: torch.Tensor

    def class_sums(self) -> ClassSums:
        """Return the class sums of the queries, (n_bandwidths, n_classes, n_query), in float64."""
        support, like = self.prepared.support, self._right.common
        sums = like.new_zeros(len(self.prepared.bandwidths), support.n_classes, len(like))
        for block in self.blocks():
            for total, values in zip(sums, block.values, strict=True):
                add_by_class(total, values, support, block.rows, None)
        return ClassSums(sums, self._offsets)

    def blocks(self) -> Iterator[ValueBlock]:
        """Yield all support points in blocks, which depend on the numbers of points and queries only."""
        kernel, dimension = self.prepared.kernel, self.prepared.support.dimension
        joined = min(max(numerics.QUERY_BLOCK // max(len(self.queries), 1), 1), numerics.MOST_SUPPORT_BLOCKS)
        row_blocks = slices(len(self.prepared.support), joined * numerics.SUPPORT_BLOCK)
        lowest, weights = numerics.lowest_exponent(torch.float64), self._scaled.weights
        right = self._right.with_constant(-self._largest)
        for block in self._scaled.blocks(right, row_blocks=row_blocks):
            below = block.half_squares.clone()  # the next block overwrites it
            exponents, _ = shifted_exponents(kernel, dimension, below, self._nearest, self._finest, self._rates)
            values = torch.threshold_(exponents, lowest, -torch.inf).exp_()
            yield ValueBlock(block.rows, below, values if weights is None else values * weights[block.rows, None])

    def distances(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the distances of the queries to support points at ``positions``, (n_query, k), in float64."""
        points = in_double(self.prepared.support.points[positions.to(self.prepared.support.points.device)])
        distances: torch.Tensor = torch.linalg.vector_norm(points - in_double(self.queries)[:, None], dim=2)
        return distances

    @cached_property
    def _scaled(self) -> ScaledSupport:
        return ScaledSupport(self.prepared.support, 1.0, in_double(self.prepared.support.points[:0]))

    @cached_property
    def _right(self) -> Queries:
        return self._scaled.queries(in_double(self.queries))

    @cached_property
    def _largest(self) -> torch.Tensor:
        """Largest product of each query with c = 0, (n_query,)."""
        return self._scaled.exact_maximum(self._right)

    @cached_property
    def _nearest(self) -> torch.Tensor:
        """−½‖z − q‖² of the nearest point, (n_query,)."""
        return (self._largest + self._right.common).clamp_max(0.0)

    @cached_property
    def _rates(self) -> torch.Tensor:
        """1/(d·b²) of each bandwidth, (n_bandwidths, 1, 1)."""
        lengths = [self.prepared.support.dimension * bandwidth**2 for bandwidth in self.prepared.bandwidths]
        return 1.0 / self._right.common.new_tensor(lengths)[:, None, None]

    @cached_property
    def _finest(self) -> torch.Tensor:
        return finest_rates((-2.0 * self._right.common).sqrt(), self.prepared.support.radius)

    @cached_property
    def _offsets(self) -> torch.Tensor:
        kernel, dimension = self.prepared.kernel, self.prepared.support.dimension
        zeros = torch.zeros_like(self._nearest)[None]
        offsets = shifted_exponents(kernel, dimension, zeros, self._nearest, self._finest, self._rates)[1]
        return offsets.squeeze(1)


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
    scores = positions = None
    for blocks in zip(*(part.blocks() for part in contributions), strict=True):
        rows = blocks[0].rows
        codes = support.codes[rows].to(blocks[0].values.device)
        totals = torch.zeros_like(blocks[0].half_squares)
        for block, factor in zip(blocks, factors, strict=True):
            for values, of_classes in zip(block.values, factor, strict=True):
                totals += values * of_classes[codes]
        found = torch.where(totals > 0, totals, blocks[0].half_squares)
        places = torch.arange(rows.start, rows.stop, device=found.device)[:, None].expand_as(found)
        if scores is not None and positions is not None:
            found, places = torch.cat([scores, found]), torch.cat([positions, places])
        scores, chosen = found.topk(min(k, len(found)), dim=0)
        positions = places.gather(0, chosen)
    assert scores is not None
    assert positions is not None
    return positions.T, scores.clamp_min(0.0).T
