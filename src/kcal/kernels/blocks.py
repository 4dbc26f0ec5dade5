"""The blocked loop: squared distances of support points and queries by one matrix product per block.

With points z and queries q centred and in a unit of length,

    (z, −½‖z‖², 1) · (q, 1, c) = −½‖z − q‖² + (½‖q‖² + c)

The left factor does not depend on the queries and is prepared once. c = −½‖q‖² gives squared distances; for a
log-linear kernel c is a shift of the exponents, and the common −½‖q‖², huge for a far query, stays out of the product.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from kcal.kernels import numerics
from kcal.kernels.support import LeaveOut, SortedSupport


class Block(NamedTuple):
    """Part of the matrix of support points × queries."""

    rows: slice
    columns: slice
    half_squares: torch.Tensor  # (n_rows, n_columns): −½‖z − q‖² plus a constant per query; −inf where hidden


class _Buffers(threading.local):
    """Memory that each thread keeps for its next block."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, torch.dtype, torch.device], torch.Tensor] = {}


_buffers = _Buffers()


def buffer(name: str, like: torch.Tensor, shape: tuple[int, ...] | torch.Size) -> torch.Tensor:
    """Return this thread's buffer ``name`` in the precision and on the device of ``like``, with arbitrary content.

    New memory for every block would cost as much time as its exponentials.
    """
    size, key = int(torch.Size(shape).numel()), (name, like.dtype, like.device)
    held = _buffers.held.get(key)
    if held is None or held.numel() < size:
        with torch.inference_mode(False):  # otherwise it could not be written to in another mode
            held = _buffers.held[key] = like.new_empty(size)
    return held[:size].view(shape)


class Queries(NamedTuple):
    """Queries as the right factor of the product."""

    right: torch.Tensor  # (d + 2, n_query): q, 1, c
    common: torch.Tensor  # (n_query,): −½‖q‖²

    def select(self, index: torch.Tensor) -> Queries:
        """Return some of the queries."""
        return Queries(self.right[:, index], self.common[index])

    def with_constant(self, constant: torch.Tensor) -> Queries:
        """Set c, (n_query,), in place."""
        self.right[-1] = constant
        return self


@dataclass(frozen=True, eq=False)
class ScaledSupport:
    """Centred support points in one precision and one unit of length."""

    support: SortedSupport
    unit: float
    """Factor that turns lengths into the unit."""
    like: torch.Tensor
    """Any tensor of the precision and device."""

    @cached_property
    def centre(self) -> torch.Tensor:
        """Centre of the support, (d,)."""
        return self.support.centre.to(self.like)

    @cached_property
    def weights(self) -> torch.Tensor | None:
        """Weights of the points, (n_support,); None if all are 1."""
        log_weights = self.support.log_weights
        return None if log_weights is None else log_weights.to(self.like).exp()

    @cached_property
    def class_weights(self) -> torch.Tensor:
        """Total weight of each class, (n_classes,)."""
        if self.weights is None:
            return self.support.class_counts.to(self.like)
        codes = self.support.codes.to(self.weights.device)
        return self.weights.new_zeros(self.support.n_classes).index_add_(0, codes, self.weights)

    @cached_property
    def radius(self) -> float:
        """Largest distance of a point from the centre, in the unit."""
        return self.support.radius * self.unit

    def prepare(self) -> None:
        """Compute what all queries share now, not at the first query."""
        _ = self.weights, self.class_weights, self._left, self._pilot_left

    def queries(self, points: torch.Tensor) -> Queries:
        """Return queries (n_query, d) as the right factor, with c = 0."""
        scaled = (points - self.centre).mul_(self.unit)
        right = scaled.new_zeros(self.support.dimension + 2, scaled.shape[0])
        right[:-2] = scaled.T
        right[-2] = 1.0
        return Queries(right, scaled.square_().sum(dim=1).mul_(-0.5))

    def left(self, rows: slice | torch.Tensor) -> torch.Tensor:
        """Return the left factor of some support points, (n_rows, d + 2)."""
        return self._compute_left(rows) if self._left is None else self._left[rows]

    def blocks(
        self,
        queries: Queries,
        leave_out: LeaveOut | None = None,
        *,
        columns: slice = slice(None),
        row_blocks: Iterable[slice] | None = None,
    ) -> Iterator[Block]:
        """Yield the blocks of all support points (or ``row_blocks``) and ``queries``; each overwrites the one before.

        ``columns`` is what the blocks call the queries; ``leave_out`` is the rule of these queries.
        """
        for rows in self._row_blocks(queries) if row_blocks is None else row_blocks:
            shape = (rows.stop - rows.start, queries.right.shape[1])
            block = torch.mm(self.left(rows), queries.right, out=buffer("block", queries.right, shape))
            if leave_out is not None:
                leave_out.hide(block, rows.start)
            yield Block(rows, columns, block)

    def exact_maximum(self, queries: Queries, leave_out: LeaveOut | None = None) -> torch.Tensor:
        """Return the largest product of each query with c = 0, (n_query,); −inf if it sees no point."""
        largest = torch.full_like(queries.common, -torch.inf)
        for block in self.blocks(queries.with_constant(torch.zeros_like(queries.common)), leave_out):
            torch.maximum(largest, block.half_squares.amax(dim=0), out=largest)
        return largest

    def pilot_maximum(self, queries: Queries, leave_out: LeaveOut | None = None) -> torch.Tensor:
        """Return the largest product of each query over a few support points, (n_query,); −inf if it sees none."""
        block = self._pilot_left @ queries.right
        if leave_out is not None:
            same = leave_out.support_keys[self._pilots][:, None] == leave_out.query_keys[None, :]
            block.masked_fill_(same.to(block.device), -torch.inf)
        return block.amax(dim=0)

    def _row_blocks(self, queries: Queries) -> Iterator[slice]:
        joined = 1 if self._left is None else numerics.QUERY_BLOCK // max(queries.right.shape[1], 1)
        step = numerics.SUPPORT_BLOCK * min(max(joined, 1), numerics.MOST_SUPPORT_BLOCKS)
        return slices(len(self.support), step)

    def _compute_left(self, rows: slice | torch.Tensor) -> torch.Tensor:
        points = self.support.points[rows].to(self.like)
        left = points.new_ones(points.shape[0], self.support.dimension + 2)
        scaled = torch.sub(points, self.centre, out=left[:, :-2]).mul_(self.unit)
        left[:, -2] = scaled.square().sum(dim=1).mul_(-0.5)
        if self.support.log_weights is not None:  # a point of weight 0 is infinitely far
            left[:, -2].masked_fill_(torch.isneginf(self.support.log_weights[rows]).to(left.device), -torch.inf)
        return left

    @cached_property
    def _left(self) -> torch.Tensor | None:
        if len(self.support) * (self.support.dimension + 2) > numerics.PREPARED_NUMBERS:
            return None
        return self._compute_left(slice(None))

    @cached_property
    def _pilots(self) -> torch.Tensor:
        """Positions spread over the support."""
        n_support = len(self.support)
        n_pilots = min(numerics.PILOT_POINTS, n_support)
        steps = torch.arange(n_pilots, device=self.support.points.device)
        return steps * (n_support - 1) // max(n_pilots - 1, 1)

    @cached_property
    def _pilot_left(self) -> torch.Tensor:
        return self.left(self._pilots)


def slices(length: int, step: int) -> Iterator[slice]:
    """Yield slices of ``step`` that cover ``length``."""
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))
