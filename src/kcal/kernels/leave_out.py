"""Leave-one-out, leave-group-out and fold posteriors of a support, masked by index, and their log-loss.

A sample is never recognised by its kernel value or its distance: true duplicates count, the sample itself does not.
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from math import log

import torch

from kcal.kernels.mother import KERNELS, MotherKernel
from kcal.kernels.posteriors import class_posteriors
from kcal.kernels.sums import (
    FINEST,
    LARGEST_EXPONENT_ERROR,
    SUPPORT_BLOCK,
    LeaveOut,
    add_by_class,
    in_double,
    least_exponent,
    squared_distances,
)
from kcal.kernels.support import SortedSupport
from kcal.validation import ALMOST_ZERO

MEMORY_BUDGET = 512 * 2**20
"""Bytes that the search may keep for distances; beyond, they are computed again at every bandwidth."""

LEAST_MASS = 1e-17
"""Mass, in units of the largest weight, below which a point's sums are taken again in log space."""


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

    Every pair of points is looked at once and serves both: block by block, one exponential, then the mass that reaches
    each point, in all and from its own class. Distances do not depend on the bandwidth: they are kept where they fit
    ``memory_budget`` bytes, and computed again at every call where not. A point that hardly any mass reaches (a
    bandwidth far below the distance of neighbours) is taken again by itself, in log space.
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
        self.scale = support.extent or 1.0  # in units of it no square overflows
        points = (support.points - support.centre) / self.scale
        self.points = in_double(points) if self._is_delicate() else points
        self.codes = support.codes.to(self.points.device)
        self.weights = self._relative_weights()
        blocks = [slice(low, min(low + SUPPORT_BLOCK, len(support))) for low in range(0, len(support), SUPPORT_BLOCK)]
        self.pairs = list(combinations_with_replacement(blocks, 2))
        n_distances = sum((rows.stop - rows.start) * (len(support) - rows.start) for rows in blocks)
        self.kept = n_distances * support.points.element_size() <= memory_budget
        self.distances = [self._distances(*pair).to(support.points.dtype) for pair in self.pairs] if self.kept else []

    def __call__(self, bandwidth: float) -> float:
        """Return the loss at a bandwidth."""
        return mean_log_loss(self._own_shares(bandwidth).log_(), self.support.log_weights)

    def _own_shares(self, bandwidth: float) -> torch.Tensor:
        """Return the posterior of every point's own class, given the others, (n,)."""
        reached = self.points.new_zeros(2, len(self.support), dtype=self._wide)  # by any class, by the own class
        unit = min(self.scale / bandwidth, FINEST) ** 2 / self.support.dimension
        buffer = self.points.new_empty(SUPPORT_BLOCK**2, dtype=self.support.points.dtype)
        for number, (rows, columns) in enumerate(self.pairs):
            distances = self.distances[number] if self.kept else self._distances(rows, columns)
            values = self._kernel_values(distances, unit, buffer)
            self._add_mass(reached[0], values, rows, columns)
            self._add_own_mass(reached[1], values, rows, columns)
        shares = reached[1] / reached[0]
        lonely = (~(reached[0] > LEAST_MASS)).nonzero().squeeze(1).to(self.support.points.device)
        if len(lonely):
            points, codes, rule = self.support.points[lonely], self.support.codes[lonely], self.rule.rows(lonely)
            exact = class_posteriors(points, self.support, bandwidth, kernel=self.kernel, leave_out=rule)
            shares[lonely.to(shares.device)] = exact.gather(1, codes[:, None]).squeeze(1).to(shares)
        return shares

    def _distances(self, rows: slice, columns: slice) -> torch.Tensor:
        """Return the squared distances of two blocks; inf where a point must not see another."""
        distances = squared_distances(self.points[rows], self.points[columns])
        self.rule.fill(distances, rows.start, columns, torch.inf)
        return distances

    def _kernel_values(self, distances: torch.Tensor, unit: float, buffer: torch.Tensor) -> torch.Tensor:
        exponents = buffer[: distances.numel()].view(distances.shape)
        if self.kernel.name == "rbf":
            torch.mul(distances, -0.5 * unit, out=exponents)
        else:
            exponents.copy_(self.kernel.log_profile(distances * unit, self.support.dimension))
        farthest = -2.0 * (self.support.radius / self.scale) ** 2 * unit
        whole_groups = not self.rule.by_position  # many infinite distances, whose exponentials are slow to take
        if self.kernel.name != "rbf" or whole_groups or farthest < least_exponent(exponents.dtype):
            exponents.clamp_min_(least_exponent(exponents.dtype))
        return exponents.exp_()

    def _add_mass(self, reached: torch.Tensor, values: torch.Tensor, rows: slice, columns: slice) -> None:
        """Add what the points of each block give to those of the other."""
        reached[columns] += self.weights[rows] @ values
        if rows != columns:
            reached[rows] += values @ self.weights[columns]

    def _add_own_mass(self, reached: torch.Tensor, values: torch.Tensor, rows: slice, columns: slice) -> None:
        """Add what points give to those of their own class; blocks sorted by class share one class or none."""
        codes, starts = self.codes, self.support.class_starts
        if rows == columns:
            sums = values.new_zeros(self.support.n_classes, values.shape[1])
            add_by_class(sums, values.mul_(self.weights[rows, None]), self.support, rows.start)
            reached[columns] += sums.gather(0, codes[None, columns]).squeeze(0)
        elif codes[rows.stop - 1] == codes[columns.start]:
            shared = int(codes[columns.start])
            tail = slice(max(rows.start, starts[shared]), rows.stop)
            head = slice(columns.start, min(columns.stop, starts[shared + 1]))
            inside = values[tail.start - rows.start :, : head.stop - head.start]
            self._add_mass(reached, inside, tail, head)

    def _relative_weights(self) -> torch.Tensor:
        """Return weights in units of the largest, (n,)."""
        like = self.points.new_empty(0, dtype=self.support.points.dtype)
        if self.support.log_weights is None:
            return like.new_ones(len(self.support))
        log_weights = self.support.log_weights
        return (log_weights - log_weights.amax()).exp().to(like)

    @property
    def _wide(self) -> torch.dtype:
        return torch.float32 if self.points.device.type == "mps" else torch.float64

    def _is_delicate(self) -> bool:
        """Say whether rounding could disturb exponents at a hundredth of the squared spread, well below any good b²."""
        if self.kernel.name != "rbf":
            return True  # roots of small distances
        error = torch.finfo(self.support.points.dtype).eps * self.support.radius**2
        return not error < LARGEST_EXPONENT_ERROR * 0.01 * self.support.dimension * self.support.mean_square
