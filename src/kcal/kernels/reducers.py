"""Sums of kernel values over blocks of squared distances: per class, and from the own class."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from math import exp

import torch

from kcal.kernels import numerics
from kcal.kernels.blocks import Block, ScaledSupport, buffer
from kcal.kernels.ladder import KernelLadder
from kcal.kernels.support import SortedSupport


def class_mass(
    blocks: Iterable[Block],
    scaled: ScaledSupport,
    ladder: KernelLadder,
    *,
    floored: Sequence[bool],
    like: torch.Tensor,
    shifts: torch.Tensor | None = None,
    is_part: bool = False,
) -> torch.Tensor:
    """Return Σ w_i·φ per bandwidth, class and query, (n_bandwidths, n_classes, n_query); blocks are overwritten.

    ``like`` is any tensor of the working precision with one entry per query. Sums that are part of others have the
    widest precision. The rest is as in ``KernelLadder.values``.
    """
    support = scaled.support
    dtype = numerics.widest_dtype(like.device) if is_part else numerics.accumulator_dtype(like, len(support))
    total = like.new_zeros(len(ladder), support.n_classes, len(like), dtype=dtype)
    for block in blocks:
        for index, values in ladder.values(block.half_squares, floored=floored, shifts=shifts):
            add_by_class(total[index], values, support, block.rows, scaled.weights)
    if any(floored):  # subtract what points too far to count have added, twice as a margin for rounding
        lowest = 2.0 * exp(numerics.lowest_exponent(like.dtype))
        added = (lowest * scaled.class_weights).to(total)[:, None]
        for index in range(len(ladder)):
            if floored[index]:
                total[index].sub_(added)
        torch.threshold_(total, 0.0, 0.0)
    return total


class PairMass:
    """Mass that reaches each support point from all others and from those of its own class.

    Every pair of points is added once and serves both.
    """

    def __init__(
        self,
        support: SortedSupport,
        ladder: KernelLadder,
        weights: torch.Tensor | None,
        *,
        floored: Sequence[bool],
        like: torch.Tensor,
        shifts: torch.Tensor | None = None,
    ) -> None:
        self.support, self.ladder, self.weights = support, ladder, weights
        self.floored, self.shifts = floored, shifts
        self.weights_or_ones = like.new_ones(len(support)) if weights is None else weights
        self.codes = support.codes.to(like.device)
        self.from_all = like.new_zeros(len(support), dtype=numerics.widest_dtype(like.device))  # (n,)
        self.from_own_class = torch.zeros_like(self.from_all)  # (n,)

    def add(self, block: Block) -> None:
        """Add a block of the upper triangle or the diagonal; it is not overwritten."""
        kernels = self.ladder.values(block.half_squares, floored=self.floored, shifts=self.shifts, in_place=False)
        for _, values in kernels:
            self._add_mass(self.from_all, values, block.rows, block.columns)
            self._add_own_mass(values, block.rows, block.columns)

    def _add_mass(self, reached: torch.Tensor, values: torch.Tensor, rows: slice, columns: slice) -> None:
        reached[columns] += self.weights_or_ones[rows] @ values
        if rows != columns:
            reached[rows] += values @ self.weights_or_ones[columns]

    def _add_own_mass(self, values: torch.Tensor, rows: slice, columns: slice) -> None:
        """Add mass within classes; two different blocks of points sorted by class share one class or none."""
        if rows == columns:
            classes = class_range(self.support, rows)
            sums = values.new_zeros(classes.stop - classes.start, values.shape[1])
            add_by_class(sums, values, self.support, rows, self.weights, first=classes.start)
            own = self.codes[None, columns] - classes.start
            self.from_own_class[columns] += sums.gather(0, own).squeeze(0)
        elif self.codes[rows.stop - 1] == self.codes[columns.start]:
            shared, starts = int(self.codes[columns.start]), self.support.class_starts
            tail = slice(max(rows.start, starts[shared]), rows.stop)
            head = slice(columns.start, min(columns.stop, starts[shared + 1]))
            inside = values[tail.start - rows.start :, : head.stop - head.start]
            self._add_mass(self.from_own_class, inside, tail, head)


def class_range(support: SortedSupport, rows: slice) -> slice:
    """Return the classes from that of the first to that of the last of the support points ``rows``."""
    starts = support.class_starts
    return slice(bisect_right(starts, rows.start) - 1, bisect_left(starts, rows.stop))


def add_by_class(
    sums: torch.Tensor,
    values: torch.Tensor,
    support: SortedSupport,
    rows: slice,
    weights: torch.Tensor | None,
    *,
    first: int = 0,
) -> None:
    """Add Σ w_i·values_i over the support points ``rows`` to the sums of their classes, (…, n), from ``first`` on."""
    if values.device.type == "cpu":
        if weights is not None:
            values = torch.mul(values, weights[rows, None], out=buffer("weighted", values, values.shape))
        part = sums if sums.dtype == values.dtype else torch.zeros_like(sums, dtype=values.dtype)
        codes = support.codes[rows]
        part.index_add_(0, codes - first if first else codes, values)
        if part is not sums:
            sums += part
        return
    classes, starts = class_range(support, rows), support.class_starts
    for k in range(classes.start, classes.stop):  # elsewhere index_add_ is not deterministic
        run = slice(max(starts[k], rows.start), min(starts[k + 1], rows.stop))
        part = values[run.start - rows.start : run.stop - rows.start]
        sums[k - first] += part.sum(dim=0) if weights is None else weights[run] @ part
