"""Leave-one-out, leave-group-out and fold posteriors of a support, and their log loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import log, sqrt

import torch

from kcal.kernels import numerics
from kcal.kernels.blocks import Block, ScaledSupport, slices
from kcal.kernels.ladder import KernelLadder
from kcal.kernels.mother import KERNELS, MotherKernel
from kcal.kernels.numerics import in_double
from kcal.kernels.reducers import PairMass
from kcal.kernels.sums import PreparedSupport, class_posteriors
from kcal.kernels.support import SortedSupport, leave_out_rule
from kcal.threads import map_blocks
from kcal.validation import ALMOST_ZERO

MEMORY_BUDGET = 512 * 2**20
"""Bytes that a search may keep for distances; beyond, they are computed again at every bandwidth."""
MAX_PREDICTED = 5_000
"""Points that a search predicts from all others; of a larger support so many are chosen at random."""
ROOM_ABOVE = 30.0
"""Largest exponent of a pair of points: sums of its exponentials are far below the largest number."""
MOST_PARTS = 16
"""Parts of the pairs of points that are summed side by side."""


def leave_out_posteriors(
    support: SortedSupport,
    bandwidth: float,
    *,
    kernel: MotherKernel = KERNELS["rbf"],
    keys: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the posteriors of every support point given the others, (n, n_classes), in the original order.

    ``keys``, one per sample in the original order, leave out all samples of the same group or fold.
    """
    rule = leave_out_rule(support, keys)
    rows = class_posteriors(support.points, support, bandwidth, kernel=kernel, leave_out=rule)
    return support.in_original_order(rows)


def mean_log_loss(
    log_probs: torch.Tensor, log_weights: torch.Tensor | None = None, least_prob: float = ALMOST_ZERO
) -> float:
    """Return the (weighted) mean of −log p, with p clipped at ``least_prob``."""
    losses = -in_double(log_probs).clamp_min(log(least_prob))
    if log_weights is None:
        return float(losses.mean())
    weights = in_double(log_weights).exp()
    return float((weights * losses).sum() / weights.sum())


def log_loss_error(log_probs: torch.Tensor, log_weights: torch.Tensor | None = None) -> float:
    """Return the standard error of :func:`mean_log_loss`."""
    losses = -in_double(log_probs).clamp_min(log(ALMOST_ZERO))
    weights = torch.ones_like(losses) if log_weights is None else in_double(log_weights).exp()
    shares = weights / weights.sum()
    return float((shares.square() * (losses - (shares * losses).sum()).square()).sum().sqrt())


class LeaveOutLoss:
    """The leave-out log loss of a support as a function of the bandwidth.

    Every pair of points is computed once and serves both. Distances do not depend on the bandwidth: they are kept if
    they fit in ``memory_budget`` bytes, and computed again at every call if not. One shift serves all points: in many
    dimensions even neighbours are many bandwidths apart. A point that hardly any mass reaches is computed again with a
    shift of its own.

    Parameters
    ----------
    support : SortedSupport
        Points sorted by class.
    kernel : MotherKernel
        Any kernel of the table.
    keys : (n,) tensor, optional
        Groups or folds of the samples, in the original order; default leave-one-out.
    memory_budget : int
        Bytes.
    least_prob : float
        Where probabilities are clipped.
    """

    def __init__(
        self,
        support: SortedSupport,
        *,
        kernel: MotherKernel = KERNELS["rbf"],
        keys: torch.Tensor | None = None,
        memory_budget: int = MEMORY_BUDGET,
        least_prob: float = ALMOST_ZERO,
    ) -> None:
        self.support, self.kernel, self.least_prob = support, kernel, least_prob
        self._rule = leave_out_rule(support, keys)
        points = support.points[:0]
        unit = 1.0 / (support.extent or 1.0)  # squares neither overflow nor vanish in single precision
        self._scaled = ScaledSupport(support, unit, in_double(points) if self._needs_double() else points)
        self._scaled.prepare()
        self._columns = list(slices(len(support), numerics.SUPPORT_BLOCK))
        n_distances = sum((part.stop - part.start) * part.stop for part in self._columns)
        self.kept = n_distances * support.points.element_size() <= memory_budget
        self._kept_blocks = self._keep_blocks() if self.kept else []
        self._neighbours = self._neighbour_half_squares()

    @property
    def grouped(self) -> bool:
        """Whether groups or folds are left out, not single samples."""
        return self._rule.grouped

    @property
    def n_keys(self) -> int:
        """Number of distinct samples, groups or folds that are left out in turn."""
        return len(torch.unique(self._rule.support_keys))

    def __call__(self, bandwidth: float) -> float:
        """Return the loss at a bandwidth."""
        return mean_log_loss(self.own_shares(bandwidth).log_(), self.support.log_weights, self.least_prob)

    def standard_error(self, bandwidth: float) -> float:
        """Return the standard error of the loss at a bandwidth."""
        return log_loss_error(self.own_shares(bandwidth).log_(), self.support.log_weights)

    def own_shares(self, bandwidth: float) -> torch.Tensor:
        """Return the posterior of every point's own class given the others, (n,), in the order of the support."""

        def compute(columns: range) -> PairMass:
            mass = self._pair_mass(bandwidth)
            for column in columns:
                for block in self._kept_blocks[column] if self.kept else self._blocks(self._columns[column]):
                    mass.add(block)
            return mass

        n_columns = len(self._columns)  # a fixed number of parts: sums do not depend on the number of threads
        parts = [range(start, n_columns, MOST_PARTS) for start in reversed(range(min(MOST_PARTS, n_columns)))]
        masses = map_blocks(compute, parts, self.support.points.device)
        from_all = torch.stack([mass.from_all for mass in masses]).sum(dim=0)
        shares = torch.stack([mass.from_own_class for mass in masses]).sum(dim=0) / from_all
        faint = (~(from_all > numerics.LEAST_MASS)).nonzero().squeeze(1).to(self.support.points.device)
        if len(faint):
            points, codes, rule = self.support.points[faint], self.support.codes[faint], self._rule.select(faint)
            exact = class_posteriors(points, self.support, bandwidth, kernel=self.kernel, leave_out=rule)
            shares[faint.to(shares.device)] = exact.gather(1, codes[:, None]).squeeze(1).to(shares)
        return shares

    def _pair_mass(self, bandwidth: float) -> PairMass:
        """Return the reducer for a bandwidth, which is no smaller than float64 resolves."""
        support, radius = self.support, self._scaled.radius
        finest = torch.finfo(torch.float64).eps / numerics.RESOLUTION * 2.0 * radius**2
        factor = 1.0 / max(support.dimension * (bandwidth * self._scaled.unit) ** 2, finest)
        ladder = KernelLadder(self.kernel, support.dimension, [factor])
        like = self._scaled.like.to(support.points.dtype)
        shift = self._shift(ladder)
        least = -torch.inf if self.grouped else -2.0 * radius**2 - shift / factor
        floored = ladder.needs_floor(least, support.points.dtype)
        weights = None
        if support.log_weights is not None:
            weights = (support.log_weights - support.log_weights.amax()).exp().to(like)
        shifts = None if shift == 0 else like.new_tensor([[shift]])
        return PairMass(support, ladder, weights, floored=floored, like=like, shifts=shifts)

    def _shift(self, ladder: KernelLadder) -> float:
        """Return the exponent at the typical neighbour, but at most ``ROOM_ABOVE`` below that of the closest pair."""
        if self.kernel.is_compact or len(self._neighbours) == 0:
            return 0.0
        typical, closest = map(float, ladder.log_profiles(self._neighbours)[0])
        return max(typical, closest - ROOM_ABOVE)

    def _neighbour_half_squares(self) -> torch.Tensor:
        """Return −½‖z_i − z_j‖² of the typical neighbours and of the closest, (2,); nothing if they are not kept."""
        maxima = [
            torch.stack([block.half_squares.amax(dim=0) for block in blocks]).amax(dim=0)
            for blocks in self._kept_blocks
        ]
        seen = in_double(torch.cat(maxima)) if maxima else torch.empty(0)
        seen = seen[torch.isfinite(seen)]
        return torch.stack([seen.median(), seen.max()]) if len(seen) else seen

    def _keep_blocks(self) -> list[list[Block]]:
        def copies(columns: slice) -> list[Block]:
            return [block._replace(half_squares=block.half_squares.clone()) for block in self._blocks(columns)]

        return map_blocks(copies, self._columns, self.support.points.device)

    def _blocks(self, columns: slice) -> Iterator[Block]:
        """Yield −½‖z_i − z_j‖² of the points j of ``columns`` and all points i up to them, in the support's precision.

        So every pair of points comes once.
        """
        queries = self._scaled.queries(self.support.points[columns].to(self._scaled.like))
        queries = queries.with_constant(queries.common)
        rows = slices(columns.stop, numerics.SUPPORT_BLOCK)
        for block in self._scaled.blocks(queries, self._rule.select(columns), columns=columns, row_blocks=rows):
            yield block._replace(half_squares=block.half_squares.clamp_max_(0.0).to(self.support.points.dtype))

    def _needs_double(self) -> bool:
        """Return whether distances need float64 to resolve the bandwidths that a search may end at."""
        if not self.kernel.log_linear:
            return True
        length = numerics.SEARCH_DETAIL * sqrt(self.support.dimension * self.support.mean_square)
        error = torch.finfo(self.support.points.dtype).eps * 2.0 * self.support.radius**2
        return not error < numerics.RESOLUTION * length**2


class PredictedLoss:
    """The mean log loss of some points as a function of the bandwidth, from the probabilities of their own classes.

    Parameters
    ----------
    own_shares : callable
        Maps several bandwidths to the probabilities of the points' own classes at each, (n_predicted,).
    log_weights : (n_predicted,) tensor, optional
        Logarithms of the points' weights.
    least_prob : float
        Where probabilities are clipped.
    """

    def __init__(
        self,
        own_shares: Callable[[Sequence[float]], Sequence[torch.Tensor]],
        log_weights: torch.Tensor | None = None,
        least_prob: float = ALMOST_ZERO,
    ) -> None:
        self.log_weights, self.least_prob = log_weights, least_prob
        self._own_shares = own_shares
        self._shares: dict[float, torch.Tensor] = {}  # of each bandwidth, (n_predicted,)

    def __call__(self, bandwidth: float) -> float:
        """Return the loss at a bandwidth."""
        return self.at([bandwidth])[0]

    def at(self, bandwidths: Sequence[float]) -> list[float]:
        """Return the losses at several bandwidths, from one pass over the distances."""
        shares = self._computed(bandwidths)
        return [mean_log_loss(part.log(), self.log_weights, self.least_prob) for part in shares]

    def standard_error(self, bandwidth: float) -> float:
        """Return the standard error of the loss at a bandwidth."""
        return log_loss_error(self._computed([bandwidth])[0].log(), self.log_weights)

    def _computed(self, bandwidths: Sequence[float]) -> list[torch.Tensor]:
        """Return the probabilities of the own classes; each bandwidth is computed once."""
        missing = [bandwidth for bandwidth in bandwidths if bandwidth not in self._shares]
        if missing:
            self._shares |= zip(missing, self._own_shares(missing), strict=True)
        return [self._shares[bandwidth] for bandwidth in bandwidths]


class SampledLeaveOutLoss(PredictedLoss):
    """The leave-out log loss of randomly chosen points of a large support, each given all other points.

    A loss over all pairs of n points takes time in proportion to n²; this one, to n. Parameters are those of
    :class:`LeaveOutLoss`, the number of points that are predicted, and the seed by which they are chosen.
    """

    def __init__(
        self,
        support: SortedSupport,
        *,
        n_predicted: int,
        kernel: MotherKernel = KERNELS["rbf"],
        keys: torch.Tensor | None = None,
        seed: int = 0,
        least_prob: float = ALMOST_ZERO,
    ) -> None:
        chosen = sampled_positions(len(support), n_predicted, seed=seed).to(support.points.device)
        rule = leave_out_rule(support, keys).select(chosen)
        points, codes = support.points[chosen], support.codes[chosen]

        def own_shares(bandwidths: Sequence[float]) -> list[torch.Tensor]:
            posteriors = PreparedSupport(support, bandwidths, kernel).posteriors(points, leave_out=rule)
            return [part.gather(1, codes[:, None]).squeeze(1) for part in posteriors]

        weights = None if support.log_weights is None else support.log_weights[chosen]
        super().__init__(own_shares, weights, least_prob)
        self.support, self.kernel = support, kernel


def sampled_positions(n_points: int, n_predicted: int = MAX_PREDICTED, *, seed: int = 0) -> torch.Tensor:
    """Return the positions of at most ``n_predicted`` randomly chosen points, ascending."""
    chosen = torch.randperm(n_points, generator=torch.Generator().manual_seed(seed))[:n_predicted]
    return chosen.sort().values


def leave_out_loss(
    support: SortedSupport,
    *,
    kernel: MotherKernel = KERNELS["rbf"],
    keys: torch.Tensor | None = None,
    max_predicted: int = MAX_PREDICTED,
    least_prob: float = ALMOST_ZERO,
) -> LeaveOutLoss | SampledLeaveOutLoss:
    """Return the leave-out loss of all points or, if there are too many, of ``max_predicted`` random ones."""
    if len(support) <= max_predicted:
        return LeaveOutLoss(support, kernel=kernel, keys=keys, least_prob=least_prob)
    return SampledLeaveOutLoss(support, n_predicted=max_predicted, kernel=kernel, keys=keys, least_prob=least_prob)
