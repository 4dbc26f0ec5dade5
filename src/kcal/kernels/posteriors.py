"""Class posteriors and densities from class sums; valid rows everywhere.

p_k(q) = S_k(q) / Σ_j S_j(q)        density(q) = Σ_k S_k(q) / (Σ_i w_i · ∫φ_b)
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log, sqrt

import torch

from kcal.kernels.mother import KERNELS, MotherKernel
from kcal.kernels.sums import (
    LARGEST_EXPONENT_ERROR,
    QUERY_BLOCK,
    SUPPORT_BLOCK,
    LeaveOut,
    class_sums,
    exponent_errors,
    in_double,
)
from kcal.kernels.support import SortedSupport

TIE = 64 * torch.finfo(torch.float64).eps
"""Distances that differ by less, in units of the numbers they are computed from, are the same."""
FINEST_ROOT = 1e-8
"""Distances, roots of differences of squares, are known to this part of the support's extent."""
FARTHEST_QUERY = 1e30
"""Beyond this many extents of the support only the direction of a query matters."""


def class_posteriors(
    queries: torch.Tensor,
    support: SortedSupport,
    bandwidth: float,
    *,
    kernel: MotherKernel = KERNELS["rbf"],
    leave_out: LeaveOut | None = None,
) -> torch.Tensor:
    """Return p_k(q), (n_query, n_classes).

    The nearest points alone decide where no point reaches the query, and where b is so small or the query so far that
    even float64 could not tell one exponent from the next.
    """
    sums = class_sums(queries, support, bandwidth, kernel=kernel, leave_out=leave_out).sums
    totals = sums.sum(dim=1)
    shares = sums.div_(totals[:, None])
    by_limit = totals == 0
    if kernel.name == "rbf":
        by_limit |= ~(exponent_errors(queries, support, bandwidth, torch.float64) < LARGEST_EXPONENT_ERROR)
    elif bandwidth < FINEST_ROOT * support.extent:
        by_limit |= True
    by_limit = by_limit.nonzero().squeeze(1)
    if len(by_limit):
        rule = None if leave_out is None else leave_out.rows(by_limit)
        shares[by_limit] = nearest_posteriors(queries[by_limit], support, leave_out=rule)
    return shares


def nearest_posteriors(
    queries: torch.Tensor, support: SortedSupport, *, leave_out: LeaveOut | None = None
) -> torch.Tensor:
    """Return the limit b → 0: all mass on the nearest point, shared by weight where several are equally near."""
    result = queries.new_empty(queries.shape[0], support.n_classes)
    for start in range(0, queries.shape[0], QUERY_BLOCK):
        rows = slice(start, start + QUERY_BLOCK)
        result[rows] = _nearest(queries[rows], support, None if leave_out is None else leave_out.rows(rows))
    return result


def _nearest(queries: torch.Tensor, support: SortedSupport, leave_out: LeaveOut | None) -> torch.Tensor:
    points = in_double(queries)
    centre = support.centre.to(points)
    points = points - centre
    extent = support.extent or 1.0  # in units of it no square overflows
    sizes = points.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(points.dtype).tiny)
    points = points / sizes * (sizes / extent).clamp_max(FARTHEST_QUERY)

    def blocks() -> Iterator[tuple[slice, torch.Tensor]]:
        for start in range(0, len(support), SUPPORT_BLOCK):
            rows = slice(start, start + SUPPORT_BLOCK)
            left = (support.points[rows].to(points) - centre) / extent
            # ‖z‖² − 2·z·q orders the points as ‖z − q‖² does, and far away it still tells them apart.
            distances = torch.addmm(left.square().sum(dim=1)[:, None], left, points.T, alpha=-2.0)
            if support.log_weights is not None:
                weightless = torch.isneginf(support.log_weights[rows, None]).to(points.device)
                distances.masked_fill_(weightless, torch.inf)
            if leave_out is not None:
                leave_out.fill(distances, start, slice(None), torch.inf)
            yield rows, distances

    least = points.new_full((points.shape[0],), torch.inf)
    for _, distances in blocks():
        torch.minimum(least, distances.amin(dim=0), out=least)
    rounding = TIE * (support.dimension + 2.0 * sqrt(support.dimension) * points.norm(dim=1))
    mass = points.new_zeros(support.n_classes, points.shape[0])
    for rows, distances in blocks():
        ties = ((distances <= least + rounding) & ~torch.isinf(distances)).to(mass)
        if support.log_weights is not None:
            ties *= support.log_weights[rows, None].to(points).exp()
        mass.index_add_(0, support.codes[rows].to(mass.device), ties)
    total = mass.sum(dim=0)  # 0 where a query may see no point at all: nothing is known
    return torch.where(total > 0, mass / total, 1.0 / support.n_classes).T.to(queries)


def log_densities(
    queries: torch.Tensor, support: SortedSupport, bandwidth: float, *, kernel: MotherKernel = KERNELS["rbf"]
) -> torch.Tensor:
    """Return the log density of each query under the whole support, (n_query,)."""
    sums = class_sums(queries, support, bandwidth, kernel=kernel)
    weights = support.log_weights
    log_total = log(len(support)) if weights is None else float(torch.logsumexp(weights.cpu().double(), dim=0))
    log_volume = kernel.log_volume(bandwidth, support.dimension)
    return sums.sums.sum(dim=1).log() + sums.offsets - log_total - log_volume
