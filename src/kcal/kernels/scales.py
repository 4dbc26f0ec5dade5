"""Class sums at several bandwidths from one set of distances.

log S_k(q; b) for every b of a few, with the RBF kernel: the exponents of a block of queries are computed once, for the
widest kernel, and reduced by the largest of each query, so that no exponential overflows and the largest is 1. Where
bandwidths are whole multiples of each other, as b/3, b and 3b, a narrower kernel is a power of a wider one, which
takes fewer steps than another exponential.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

import torch

from kcal.kernels.sums import (
    FINEST,
    QUERY_BLOCK,
    SUPPORT_BLOCK,
    LeaveOut,
    add_by_class,
    exponent_errors,
    in_double,
    least_exponent,
)
from kcal.kernels.support import SortedSupport

EXPONENTS_AT_ONCE = 8_000_000
"""Bound on (queries in hand) × (support points)."""
ROWS_IN_HAND = 128
"""Support points whose kernels are taken at once: few enough for a processor's own memory."""
LARGEST_ERROR = 1e-3
"""Where the working precision could miss an exponent by more, float64 takes over: a pool bears what one could not."""
LARGEST_POWER = 32
"""Of a wider kernel; beyond, an exponential is quicker and closer."""


def log_class_sums(
    queries: torch.Tensor,
    support: SortedSupport,
    bandwidths: Sequence[float],
    *,
    leave_out: LeaveOut | None = None,
) -> torch.Tensor:
    """Return log S_k(q; b), (n_bandwidths, n_query, n_classes); −inf where a query may see no point at all.

    A class whose points are all so far that they count for nothing beside the nearest point of any class gets a tiny
    sum in place of 0. Whatever queries come together, each gets the precision that it needs.
    """
    result = queries.new_empty(len(bandwidths), queries.shape[0], support.n_classes)
    at_once = max(1, min(QUERY_BLOCK, EXPONENTS_AT_ONCE // len(support)))
    for rows, precise in _parts(queries, support, min(bandwidths), at_once):
        rule = None if leave_out is None else leave_out.rows(rows)
        points = in_double(queries[rows]) if precise else queries[rows]
        result[:, rows] = _sums_of_block(points, support, bandwidths, rule).to(result)
    return result


def _parts(
    queries: torch.Tensor, support: SortedSupport, narrowest: float, at_once: int
) -> Iterator[tuple[slice | torch.Tensor, bool]]:
    """Yield places of queries, and whether these need float64 where their own precision is less."""
    single = queries.dtype != torch.float64
    delicate = ~(exponent_errors(queries, support, narrowest, queries.dtype) < LARGEST_ERROR) if single else None
    if delicate is None or not bool(delicate.any()):
        for start in range(0, queries.shape[0], at_once):
            yield slice(start, min(start + at_once, queries.shape[0])), False
        return
    for chosen, precise in ((~delicate, False), (delicate, True)):
        for rows in torch.split(chosen.nonzero().squeeze(1), at_once):
            if len(rows):
                yield rows, precise


def _sums_of_block(
    points: torch.Tensor, support: SortedSupport, bandwidths: Sequence[float], leave_out: LeaveOut | None
) -> torch.Tensor:
    scale = support.extent or 1.0  # in units of it no square overflows
    units = [0.5 * min(scale / bandwidth, FINEST) ** 2 / support.dimension for bandwidth in bandwidths]
    widest = min(units)
    blocks, largest = _exponents(points, support, sqrt(widest) / scale, leave_out)
    sums = points.new_zeros(len(bandwidths), support.n_classes, points.shape[0])
    kernels = _Kernels([unit / widest for unit in units], torch.where(torch.isinf(largest), 0.0, largest))
    for number, block in enumerate(blocks):
        for low in range(0, len(block), ROWS_IN_HAND):
            start = number * SUPPORT_BLOCK + low
            kernels.add_to(sums, block[low : low + ROWS_IN_HAND], support, start)
    offsets = points.new_tensor(kernels.steepness)[:, None, None] * largest
    logarithms = sums.clamp_min(torch.finfo(sums.dtype).tiny).log() + offsets
    return logarithms.masked_fill(torch.isinf(largest), -torch.inf).transpose(1, 2)


class _Kernels:
    """Kernels exp(steepness · (exponent − shift)), the widest first, each from the one before where it is its power."""

    def __init__(self, steepness: Sequence[float], shift: torch.Tensor) -> None:
        self.steepness, self.shift = list(steepness), shift
        self.order = sorted(range(len(steepness)), key=self.steepness.__getitem__)
        self.values, self.spare = (shift.new_empty(ROWS_IN_HAND * len(shift)) for _ in range(2))
        self.least = least_exponent(shift.dtype)

    def add_to(self, sums: torch.Tensor, exponents: torch.Tensor, support: SortedSupport, start: int) -> None:
        """Add the kernels of support points from ``start`` on to the sums, (n_bandwidths, n_classes, n_query)."""
        values, spare = (each[: exponents.numel()].view(exponents.shape) for each in (self.values, self.spare))
        before = 0.0
        for place in self.order:
            steepness = self.steepness[place]
            power = round(steepness / before) if before else 0
            if 0 < power <= LARGEST_POWER and abs(steepness - power * before) < 1e-9 * steepness:
                raise_to(values, power, spare)
            else:
                torch.sub(exponents, self.shift, out=values)
                if steepness != 1.0:
                    values *= steepness
                values.clamp_min_(self.least).exp_()
            before = steepness
            weighed = values
            if support.log_weights is not None:
                weights = support.log_weights[start : start + len(values), None].to(values).exp()
                weighed = torch.mul(values, weights, out=spare)
            if values.device.type == "cpu":
                sums[place].index_add_(0, support.codes[start : start + len(values)].cpu(), weighed)
            else:  # index_add_ is not deterministic there
                add_by_class(sums[place], weighed, support, start)


def raise_to(values: torch.Tensor, power: int, spare: torch.Tensor) -> None:
    """Raise values to a whole power in place, by squaring; ``spare`` is overwritten."""
    torch.square(values, out=spare)
    if power % 2 == 0:
        values.fill_(1.0)
    rest = power // 2
    while rest:
        if rest % 2:
            values *= spare
        rest //= 2
        if rest:
            spare.square_()


def _exponents(
    queries: torch.Tensor, support: SortedSupport, unit: float, leave_out: LeaveOut | None
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return −‖z − q‖²·unit², a block of support points at a time, and the largest of each query."""
    blocks = []
    centre = support.centre.to(queries)
    points = (queries - centre) * unit
    squares = points.square().sum(dim=1, keepdim=True)
    right = torch.cat([points, torch.ones_like(squares), squares], dim=1).T
    largest = queries.new_full((queries.shape[0],), -torch.inf)
    everything = slice(0, queries.shape[0])
    for start in range(0, len(support), SUPPORT_BLOCK):
        left = (support.points[start : start + SUPPORT_BLOCK].to(queries) - centre) * unit
        rows = left.square().sum(dim=1, keepdim=True)
        block = torch.mm(torch.cat([2.0 * left, -rows, -torch.ones_like(rows)], dim=1), right)
        if leave_out is not None:
            leave_out.fill(block, start, everything, -torch.inf)
        torch.maximum(largest, block.amax(dim=0), out=largest)
        blocks.append(block)
    return blocks, largest
