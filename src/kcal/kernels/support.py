"""Support points sorted by class, and which of them a query must not see."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log, sqrt

import torch

from kcal.samples import Samples

ROWS_AT_ONCE = 8_192
"""Rows for which statistics of the support are computed at once, to hold no second copy of it."""


def in_double(values: torch.Tensor) -> torch.Tensor:
    """Return ``values`` in float64, on the CPU if their device has no such precision."""
    return (values.cpu() if values.device.type == "mps" else values).double()


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass(frozen=True)
class SortedSupport:
    """Support points sorted by class; ``order`` leads back to the original rows."""

    points: torch.Tensor  # (n_support, d)
    codes: torch.Tensor  # (n_support,) class of each point, ascending
    log_weights: torch.Tensor | None  # (n_support,); −inf for a point of weight 0; None if all weights are 1
    order: torch.Tensor  # (n_support,) sorted position -> original row
    n_classes: int
    given_centre: torch.Tensor | None = None  # (d,) of the whole support, if this is a part of it

    @property
    def dimension(self) -> int:
        """Number of coordinates of a point."""
        return self.points.shape[1]

    def __len__(self) -> int:
        return self.points.shape[0]

    @cached_property
    def class_starts(self) -> list[int]:
        """Position at which each class starts, and the end: n_classes + 1 numbers."""
        boundaries = torch.arange(self.n_classes + 1, device=self.codes.device)
        return [int(start) for start in torch.searchsorted(self.codes, boundaries)]

    @cached_property
    def centre(self) -> torch.Tensor:
        """Mean of the points, (d,): centred points are small, and so are their rounding errors.

        Parts of a support have the centre of the whole, so that a pair of points has the same distance in all of them.
        """
        if self.given_centre is not None:
            return self.given_centre
        return (sum_of_points(self.points) / max(len(self), 1)).to(self.points)

    @cached_property
    def log_total_weight(self) -> float:
        """Logarithm of the sum of the weights."""
        if self.log_weights is None:
            return log(len(self))
        return float(torch.logsumexp(self.log_weights.cpu().double(), dim=0))

    @property
    def log_mean_scale(self) -> float:
        """Logarithm of the factor by which class sums become numbers of samples: weights then have mean 1."""
        return log(len(self)) - self.log_total_weight

    @cached_property
    def counted(self) -> torch.Tensor:
        """Positions of the points of positive weight, ascending, on the CPU."""
        if self.log_weights is None:
            return torch.arange(len(self))
        return torch.isfinite(self.log_weights).cpu().nonzero().squeeze(1)

    @cached_property
    def radius(self) -> float:
        """Largest distance of a point from the centre."""
        return sqrt(max(float(self._squares(rows).max()) for rows in torch.split(self.points, ROWS_AT_ONCE)))

    @cached_property
    def mean_square(self) -> float:
        """Mean squared distance of two points, averaged over the dimensions."""
        total = sum(float(self._squares(rows).sum()) for rows in torch.split(self.points, ROWS_AT_ONCE))
        return 2.0 * total / self.points.numel()

    def _squares(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the squared distances of points from the centre, in which single precision would overflow."""
        return in_double(rows - self.centre).square().sum(dim=1)

    def empty(self) -> SortedSupport:
        """Return a support without points, of the same device, precision and classes."""
        none = self.points.new_empty(0, self.dimension)
        nothing = torch.empty(0, dtype=torch.int64, device=self.points.device)
        return SortedSupport(none, nothing, None, nothing, self.n_classes)

    def in_original_order(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows``, one per sorted support point, in the order of the original points."""
        result = torch.empty_like(rows)
        result[self.order] = rows
        return result


def sort_support(
    points: torch.Tensor, codes: torch.Tensor, n_classes: int, weights: torch.Tensor | None = None
) -> SortedSupport:
    """Sort ``points`` (n, d) by their class ``codes`` (n,), stably; ``weights`` (n,) default to 1."""
    order = torch.argsort(codes, stable=True)
    log_weights = None
    if weights is not None and not bool((weights == 1).all()):
        log_weights = torch.log(weights.cpu().double()).to(points)[order]
    return SortedSupport(points[order], codes[order], log_weights, order, n_classes)


def sum_of_points(points: torch.Tensor) -> torch.Tensor:
    """Return the sum of points (n, d) in the widest precision: sums of parts add up to that of the whole."""
    total = points.new_zeros(points.shape[1], dtype=widest_dtype(points.device))
    for rows in torch.split(points, ROWS_AT_ONCE):
        total += rows.sum(dim=0, dtype=total.dtype)
    return total


@dataclass(frozen=True)
class LeaveOut:
    """Hide support points from queries: a query does not see the points that share its key.

    A sample is never recognised by its distance: true duplicates count, the sample itself does not.
    """

    query_keys: torch.Tensor  # (n_query,)
    support_keys: torch.Tensor  # (n_support,)
    grouped: bool
    """The keys are groups or folds; otherwise they are positions in the sorted support (leave-one-out)."""

    def select(self, queries: torch.Tensor | slice) -> LeaveOut:
        """Return the same rule for some of the queries."""
        return LeaveOut(self.query_keys[queries], self.support_keys, self.grouped)

    def log_visible_weights(self, support: SortedSupport) -> torch.Tensor:
        """Return the log weight of the support points that each query sees, (n_query,), in float64 on the CPU.

        Where it sees none, this is the smallest finite number.
        """
        weights = torch.ones(len(support), dtype=torch.float64)
        if support.log_weights is not None:
            weights = support.log_weights.cpu().double().exp()
        keys, codes = torch.unique(self.support_keys.cpu(), return_inverse=True)
        weight_of_key = weights.new_zeros(len(keys)).index_add_(0, codes, weights)
        visible = weights.sum() - weight_of_key[torch.searchsorted(keys, self.query_keys.cpu().contiguous())]
        return visible.clamp_min(torch.finfo(torch.float64).tiny).log()

    def hide(self, block: torch.Tensor, rows: slice) -> None:
        """Set to −inf what must not be seen in a block, (support points ``rows``) × (all queries)."""
        keys = self.query_keys.to(block.device)
        if self.grouped:
            block.masked_fill_(self.support_keys[rows, None].to(block.device) == keys, -torch.inf)
            return
        own, step = keys - rows.start, rows.step or 1
        inside = ((own >= 0) & (own < rows.stop - rows.start) & (own % step == 0)).nonzero().squeeze(1)
        block[own[inside] // step, inside] = -torch.inf


def leave_out_rule(support: SortedSupport, keys: torch.Tensor | None = None) -> LeaveOut:
    """Return the rule that hides from each support point itself, or all points with its key (a group, a fold).

    ``keys`` has one entry per sample, in the original order.
    """
    if keys is None:
        positions = torch.arange(len(support), device=support.points.device)
        return LeaveOut(positions, positions, grouped=False)
    sorted_keys = keys.to(support.points.device)[support.order]
    return LeaveOut(sorted_keys, sorted_keys, grouped=True)


def sorted_support(samples: Samples) -> SortedSupport:
    """Return samples with projected embeddings as support of the kernel sums."""
    points = samples.embeddings
    codes = torch.as_tensor(samples.codes, device=points.device)
    weights = torch.as_tensor(samples.weights / samples.weights.max()).to(points)  # sums in single precision stay small
    return sort_support(points, codes, samples.n_classes, weights)
