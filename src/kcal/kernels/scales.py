"""Class sums at several bandwidths from one set of distances.

S_k(q; b) for every b of a few, with the RBF kernel. The exponents are those of the widest kernel; where squared
bandwidths lie apart by a power of 2, as with b/2, b and 2b, a narrower kernel is a wider one squared a few times, which
is much quicker than another exponential.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import exp, isclose, log2

import torch

from kcal.kernels.sums import (
    FINEST,
    QUERY_BLOCK,
    BlockedSums,
    ClassSums,
    LeaveOut,
    RbfExponents,
    exponent_errors,
    in_double,
    least_exponent,
)
from kcal.kernels.support import SortedSupport

QUERIES_AT_ONCE = 4 * QUERY_BLOCK
LARGEST_ERROR = 1e-3
"""Where the working precision could miss an exponent by more, float64 takes over: a pool bears what one could not."""
ROOM_ABOVE = 1e-8
"""Of the largest number: larger sums are taken again with another shift, so that products with them are numbers too."""
MOST_SQUARES = 6
"""In a row: each doubles the relative error of a kernel, and after so many an exponential is as quick, and closer."""


def scaled_class_sums(
    queries: torch.Tensor,
    support: SortedSupport,
    bandwidths: Sequence[float],
    *,
    leave_out: LeaveOut | None = None,
) -> ClassSums:
    """Return S_k(q; b) in two parts, sums (n_bandwidths, n_classes, n_query) and offsets (n_bandwidths, n_query).

    The offset is −inf where a query may see no point at all; otherwise the largest sum of a query is near 1 or above
    (but for weights), and far below the largest number.
    Whatever queries come together, each gets the precision that it needs.
    """
    sums = queries.new_empty(len(bandwidths), support.n_classes, queries.shape[0])
    offsets = queries.new_empty(len(bandwidths), queries.shape[0])
    for rows, precise in _parts(queries, support, min(bandwidths)):
        rule = None if leave_out is None else leave_out.rows(rows)
        part = _sums_of_part(in_double(queries[rows]) if precise else queries[rows], support, bandwidths, rule)
        if precise:  # single precision could not hold the largest sums
            part = _with_largest_one(part)
        if part.sums.shape == sums.shape:
            return ClassSums(part.sums.to(sums), part.offsets.to(sums))
        sums[:, :, rows], offsets[:, rows] = part.sums.to(sums), part.offsets.to(sums)
    return ClassSums(sums, offsets)


def _with_largest_one(found: ClassSums) -> ClassSums:
    """Return the same sums with parts of which the largest of a query is 1."""
    largest = found.sums.amax(dim=1).clamp_min(torch.finfo(found.sums.dtype).tiny)
    return ClassSums(found.sums / largest[:, None], found.offsets + largest.log())


def log_class_sums(
    queries: torch.Tensor,
    support: SortedSupport,
    bandwidths: Sequence[float],
    *,
    leave_out: LeaveOut | None = None,
) -> torch.Tensor:
    """Return log S_k(q; b), (n_bandwidths, n_query, n_classes); −inf where a query may see no point at all.

    A class whose points are all so far that they count for nothing beside the nearest point of any class gets a tiny
    sum in place of 0.
    """
    found = scaled_class_sums(queries, support, bandwidths, leave_out=leave_out)
    logarithms = found.sums.clamp_min_(torch.finfo(found.sums.dtype).tiny).log_().add_(found.offsets[:, None])
    return logarithms.transpose(1, 2)


def _parts(
    queries: torch.Tensor, support: SortedSupport, narrowest: float
) -> Iterator[tuple[slice | torch.Tensor, bool]]:
    """Yield places of queries, and whether these need float64 where their own precision is less."""
    single = queries.dtype != torch.float64
    delicate = ~(exponent_errors(queries, support, narrowest, queries.dtype) < LARGEST_ERROR) if single else None
    if delicate is None or not bool(delicate.any()):
        for start in range(0, queries.shape[0], QUERIES_AT_ONCE):
            yield slice(start, min(start + QUERIES_AT_ONCE, queries.shape[0])), False
        return
    for chosen, precise in ((~delicate, False), (delicate, True)):
        for rows in torch.split(chosen.nonzero().squeeze(1), QUERIES_AT_ONCE):
            if len(rows):
                yield rows, precise


def _sums_of_part(
    queries: torch.Tensor, support: SortedSupport, bandwidths: Sequence[float], leave_out: LeaveOut | None
) -> ClassSums:
    """Sum with a shift from pilot points, and again with the exact one where kernels overflow for all that."""
    ladder = _Ladder([max(bandwidth, support.extent / FINEST) for bandwidth in bandwidths])

    def exponents_of(rows: torch.Tensor, rule: LeaveOut | None) -> RbfExponents:
        return RbfExponents(rows, support, ladder.widest, rule, weighed=False)

    steepness = queries.new_tensor(ladder.steepness)[:, None]
    exponents = exponents_of(queries, leave_out)
    shift = exponents.pilot_shift()
    sums = ladder.sums(exponents, shift)
    offsets = steepness * (shift + exponents.common)
    largest = torch.finfo(sums.dtype).max * ROOM_ABOVE
    again = (~torch.isfinite(shift) | ~(sums.sum(dim=(0, 1)) < largest)).nonzero().squeeze(1)
    if len(again):
        exponents = exponents_of(queries[again], None if leave_out is None else leave_out.rows(again))
        shift = exponents.exact_shift()
        # rounding of huge exponents could lift one above the maximum
        sums[:, :, again] = ladder.sums(exponents, shift, at_most=0.0)
        offsets[:, again] = steepness * (shift + exponents.common)
    return ClassSums(sums, offsets)


class _Ladder:
    """Kernels of several bandwidths, the widest first, each made from the one before where squares do it."""

    def __init__(self, bandwidths: Sequence[float]) -> None:
        self.widest = max(bandwidths)
        self.steepness = [(self.widest / bandwidth) ** 2 for bandwidth in bandwidths]
        self.order = sorted(range(len(bandwidths)), key=self.steepness.__getitem__)
        self.squares = _squares(sorted(self.steepness))

    def sums(self, exponents: RbfExponents, shift: torch.Tensor, at_most: float | None = None) -> torch.Tensor:
        """Return the sums of all kernels by class, (n_bandwidths, n_classes, n_query)."""
        support, like = exponents.support, exponents.right
        found = [BlockedSums(support, exponents.query_blocks(), like=like) for _ in self.steepness]
        least, lowest = exponents.least(shift), least_exponent(like.dtype)
        spare = exponents.buffer.new_empty(0 if support.log_weights is None else exponents.buffer.numel())
        for start, columns, block in exponents.shifted_by(shift).blocks():
            if at_most is not None:
                block.clamp_max_(at_most)
            if exponents.leave_out is not None:
                exponents.leave_out.fill(block, start, columns, -torch.inf)
            for place, kernels in self._kernels(block, least, lowest):
                found[place].add(_weighed(kernels, support, start, spare), start, columns)
        return torch.stack([each.whole() for each in found])

    def _kernels(self, block: torch.Tensor, least: float, lowest: float) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the place and the kernels of each bandwidth; they, and at last the block, are overwritten.

        ``least`` bounds the exponents; exponentials of those below ``lowest`` would be no normal numbers, which are
        many times slower to take.
        """
        values, exponentials = block, self.squares.count(None)
        for place, squares in zip(self.order, self.squares, strict=True):
            steepness = self.steepness[place]
            too_low = not least * steepness > lowest
            if squares is None:
                exponentials -= 1
                values = block if exponentials == 0 else block.clone()
                if steepness != 1.0:
                    values.mul_(steepness)
                if too_low:
                    values.clamp_min_(lowest)
                values.exp_()
            else:
                if too_low:
                    values.clamp_min_(exp(lowest / 2**squares))
                for _ in range(squares):
                    values.square_()
            yield place, values


def _weighed(kernels: torch.Tensor, support: SortedSupport, start: int, spare: torch.Tensor) -> torch.Tensor:
    """Return the kernels of support points from ``start`` on by their weights, in ``spare`` where there are some."""
    if support.log_weights is None:
        return kernels
    weights = support.log_weights[start : start + len(kernels), None].to(kernels).exp()
    return torch.mul(kernels, weights, out=spare[: kernels.numel()].view(kernels.shape))


def _squares(steepness: Sequence[float]) -> list[int | None]:
    """Return how often a kernel must be squared to become the next, steeper one; None where it takes an exponential."""
    found: list[int | None] = [None]
    in_a_row = 0
    for wider, narrower in pairwise(steepness):
        number = round(log2(narrower / wider))
        squared = isclose(wider * 2.0**number, narrower, rel_tol=1e-9) and in_a_row + number <= MOST_SQUARES
        in_a_row = in_a_row + number if squared else 0
        found.append(number if squared else None)
    return found
