"""Class sums at several bandwidths from one set of distances.

log S_k(q; b) for every b of a few, with the RBF kernel: the distances of a block of queries are computed once, and
reduced by the least of each query, so that no exponential overflows and the largest is 1.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    squared_distances,
)
from kcal.kernels.support import SortedSupport

DISTANCES_AT_ONCE = 8_000_000
"""Bound on (queries in hand) × (support points)."""
LARGEST_ERROR = 1e-3
"""Where the working precision could miss an exponent by more, float64 takes over: a pool bears what one could not."""


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
    result = queries.new_empty(len(bandwidths), queries.shape[0], support.n_classes)
    at_once = max(1, min(QUERY_BLOCK, DISTANCES_AT_ONCE // len(support)))
    for start in range(0, queries.shape[0], at_once):
        rows = slice(start, min(start + at_once, queries.shape[0]))
        rule = None if leave_out is None else leave_out.rows(rows)
        result[:, rows] = _sums_of_block(queries[rows], support, bandwidths, rule).to(result)
    return result


def _sums_of_block(
    queries: torch.Tensor, support: SortedSupport, bandwidths: Sequence[float], leave_out: LeaveOut | None
) -> torch.Tensor:
    errors = exponent_errors(queries, support, min(bandwidths), queries.dtype)
    precise = queries.dtype != torch.float64 and not bool((errors < LARGEST_ERROR).all())
    scale = support.extent or 1.0  # in units of it no square overflows
    points = in_double(queries) if precise else queries
    points = (points - support.centre.to(points)) / scale
    blocks, nearest = _distances(points, support, scale, leave_out)
    sums = points.new_zeros(len(bandwidths), support.n_classes, points.shape[0])
    buffer = points.new_empty(min(SUPPORT_BLOCK, len(support)) * points.shape[0])
    units = [0.5 * min(scale / bandwidth, FINEST) ** 2 / support.dimension for bandwidth in bandwidths]
    for number, distances in enumerate(blocks):
        start = number * SUPPORT_BLOCK
        for place, unit in enumerate(units):
            values = buffer[: distances.numel()].view(distances.shape)
            torch.mul(distances, -unit, out=values)
            values.clamp_min_(least_exponent(values.dtype)).exp_()
            if support.log_weights is not None:
                values *= support.log_weights[start : start + len(values), None].to(values).exp()
            add_by_class(sums[place], values, support, start)
    offsets = points.new_tensor(units)[:, None, None] * nearest
    logarithms = sums.clamp_min(torch.finfo(sums.dtype).tiny).log() - offsets
    return logarithms.masked_fill(torch.isinf(nearest), -torch.inf).transpose(1, 2)


def _distances(
    points: torch.Tensor, support: SortedSupport, scale: float, leave_out: LeaveOut | None
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return squared distances less the least of each query, a block of support points at a time, and the least."""
    blocks = []
    nearest = points.new_full((points.shape[0],), torch.inf)
    everything = slice(0, points.shape[0])
    for start in range(0, len(support), SUPPORT_BLOCK):
        left = (support.points[start : start + SUPPORT_BLOCK].to(points) - support.centre.to(points)) / scale
        distances = squared_distances(left, points)
        if leave_out is not None:
            leave_out.fill(distances, start, everything, torch.inf)
        torch.minimum(nearest, distances.amin(dim=0), out=nearest)
        blocks.append(distances)
    least = torch.where(torch.isinf(nearest), 0.0, nearest)
    for distances in blocks:
        distances -= least
    return blocks, nearest
