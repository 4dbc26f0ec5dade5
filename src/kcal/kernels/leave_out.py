"""Leave-one-out, leave-group-out and fold posteriors of a support, masked by index, and their log-loss.

A sample is never recognised by its kernel value or its distance: true duplicates count, the sample itself does not.
"""

from __future__ import annotations

from math import log

import torch

from kcal.arrays import ALMOST_ZERO
from kcal.kernels.mother import KERNELS, MotherKernel
from kcal.kernels.posteriors import class_posteriors
from kcal.kernels.sums import (
    LARGEST_EXPONENT_ERROR,
    QUERY_BLOCK,
    SUPPORT_BLOCK,
    BlockedSums,
    LeaveOut,
    in_double,
    squared_distances,
)
from kcal.kernels.support import SortedSupport

MEMORY_BUDGET = 512 * 2**20
"""Bytes that the search may keep for distances; beyond, they are computed again at every bandwidth."""

DISTANCES_AT_ONCE = 2_000_000


def leave_out_rule(support: SortedSupport, keys: torch.Tensor | None = None) -> LeaveOut:
    """Return the rule that leaves out the sample itself, or all samples with its key (a group, a fold).

    ``keys`` has one entry a sample, in the order in which the support came.
    """
    if keys is None:
        positions = torch.arange(len(support), device=support.points.device)
        return LeaveOut(positions, positions, by_position=True)
    sorted_keys = keys.to(support.points.device)[support.order]
    return LeaveOut(sorted_keys, sorted_keys, by_position=False)


def leave_out_posteriors(
    support: SortedSupport,
    bandwidth: float,
    *,
    kernel: MotherKernel = KERNELS["rbf"],
    keys: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the posteriors of every support point given the others, (n, n_classes), in the order they came."""
    rule = leave_out_rule(support, keys)
    return support.as_it_came(class_posteriors(support.points, support, bandwidth, kernel=kernel, leave_out=rule))


def mean_log_loss(log_probabilities: torch.Tensor, log_weights: torch.Tensor | None = None) -> float:
    """Return the (weighted) mean of −log p, p clipped at 1e-12."""
    losses = -in_double(log_probabilities).clamp_min(log(ALMOST_ZERO))
    if log_weights is None:
        return float(losses.mean())
    weights = in_double(log_weights).exp()
    return float((weights * losses).sum() / weights.sum())


class LeaveOutLoss:
    """The leave-out log-loss of a support as a function of the bandwidth.

    Distances do not depend on the bandwidth. They are computed once and kept, each less that of the query's nearest
    point, where they fit ``memory_budget`` bytes; otherwise the sums are streamed anew at every call.
    """

    def __init__(
        self,
        support: SortedSupport,
        *,
        kernel: MotherKernel = KERNELS["rbf"],
        keys: torch.Tensor | None = None,
        memory_budget: int = MEMORY_BUDGET,
    ) -> None:
        self.support, self.kernel = support, kernel
        self.rule = leave_out_rule(support, keys)
        self.kept = len(support) ** 2 * support.points.element_size() <= memory_budget
        if self.kept:
            self._keep_distances()

    def __call__(self, bandwidth: float) -> float:
        """Return the loss at a bandwidth."""
        own = self._kept_own(bandwidth) if self.kept else self._streamed_own(bandwidth)
        return mean_log_loss(own, self.support.log_weights)

    def _streamed_own(self, bandwidth: float) -> torch.Tensor:
        points, codes = self.support.points, self.support.codes
        shares = class_posteriors(points, self.support, bandwidth, kernel=self.kernel, leave_out=self.rule)
        return shares.gather(1, codes[:, None]).squeeze(1).log_()

    def _keep_distances(self) -> None:
        """Fill ``excess`` (n_support, n_query): squared distance less the nearest one's; inf where left out."""
        n, points, weights = len(self.support), self.support.points, self.support.log_weights
        self.excess = points.new_empty(n, n)
        self.nearest = points.new_empty(n)
        self.nearest_share = points.new_empty(n)  # of a point's own class among its nearest, for compact kernels
        centred = points - self.support.centre
        if self._is_delicate():
            centred = in_double(centred)
        width = max(1, DISTANCES_AT_ONCE // n)
        for start in range(0, n, width):
            columns = slice(start, start + width)
            distances = squared_distances(centred, centred[columns])
            self.rule.fill(distances, 0, columns, torch.inf)
            if weights is not None:
                distances.masked_fill_(torch.isneginf(weights)[:, None], torch.inf)
            nearest = distances.amin(dim=0)
            if self.kernel.is_compact:
                self.nearest_share[columns] = self._share_of_own(distances == nearest, columns)
            self.excess[:, columns] = distances.sub_(torch.nan_to_num(nearest, posinf=0.0))  # inf − inf is no number
            self.nearest[columns] = nearest

    def _is_delicate(self) -> bool:
        """Say whether rounding could disturb exponents at a hundredth of the squared spread, well below any good b²."""
        error = torch.finfo(self.support.points.dtype).eps * self.support.radius**2
        return not error < LARGEST_EXPONENT_ERROR * 0.01 * self.support.dimension * self.support.mean_square

    def _share_of_own(self, chosen: torch.Tensor, columns: slice) -> torch.Tensor:
        weights = chosen.to(self.excess.dtype)
        if self.support.log_weights is not None:
            weights *= self.support.log_weights.exp()[:, None]
        own = self.support.codes[:, None] == self.support.codes[None, columns]
        return (weights * own).sum(dim=0) / weights.sum(dim=0)

    def _kept_own(self, bandwidth: float) -> torch.Tensor:
        """Return the log posterior of every point's own class from the kept distances."""
        support, n = self.support, len(self.support)
        unit = 1.0 / (support.dimension * bandwidth**2)
        shift = self.kernel.log_profile(self.nearest * unit, support.dimension)  # (n,)
        buffer = self.excess.new_empty(SUPPORT_BLOCK * min(QUERY_BLOCK, n))
        query_blocks = [slice(low, min(low + QUERY_BLOCK, n)) for low in range(0, n, QUERY_BLOCK)]
        gathered = BlockedSums(support, query_blocks, like=self.excess)
        for start in range(0, n, SUPPORT_BLOCK):
            for columns in query_blocks:
                excess = self.excess[start : start + SUPPORT_BLOCK, columns]
                block = buffer[: excess.numel()].view(excess.shape)
                self._exponents(excess, unit, shift, columns, block)
                if support.log_weights is not None:
                    block += support.log_weights[start : start + SUPPORT_BLOCK, None]
                gathered.add(block.exp_(), start, columns)
        sums = gathered.whole()  # (n_classes, n)
        own = sums.gather(0, support.codes[None, :]).squeeze(0)
        shares = torch.where(torch.isneginf(shift), self.nearest_share, own / sums.sum(dim=0))
        return torch.log(torch.where(torch.isinf(self.nearest), 1.0 / support.n_classes, shares))

    def _exponents(
        self, excess: torch.Tensor, unit: float, shift: torch.Tensor, columns: slice, block: torch.Tensor
    ) -> None:
        """Fill ``block`` with the logarithms of kernel values, less those of the nearest points."""
        if self.kernel.name == "rbf":
            torch.mul(excess, -0.5 * unit, out=block)
            return
        torch.add(excess, self.nearest[columns], out=block)
        block.copy_(self.kernel.log_profile(block * unit, self.support.dimension))
        block -= torch.nan_to_num(shift[columns], neginf=0.0)
