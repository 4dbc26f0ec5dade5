"""Leave-one-out, leave-group-out and fold posteriors of a support, and their log loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log, sqrt

import torch

from kcal.kernels.mother import KERNELS, MotherKernel
from kcal.kernels.sums import PreparedSupport, class_posteriors, flushed_exp2_, slices
from kcal.kernels.support import LeaveOut, SortedSupport, in_double, leave_out_rule, widest_dtype
from kcal.threads import map_blocks
from kcal.validation import ALMOST_ZERO

MEMORY_BUDGET = 512 * 2**20
"""Bytes that a search may keep for distances; beyond, they are computed again at every bandwidth."""
MAX_PREDICTED = 5_000
"""Points that a search predicts from all others; of a larger support so many are chosen at random."""
KEPT_BLOCK, MIN_KEPT_QUERIES = 2**19, 32
"""Distances of a block, which stay in the cache while bandwidths are tried, and queries of it at least."""
MAX_RATE = 1e30
"""Largest factor of kept distances: its product with 0 is 0 in single precision."""
SEARCH_DETAIL = 1 / 7
"""Share of the root-mean-square distance of support points down to which kept distances resolve the bandwidth."""


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
    log_probs: torch.Tensor, log_weights: torch.Tensor | None = None, min_prob: float = ALMOST_ZERO
) -> float:
    """Return the (weighted) mean of −log p, with p clipped at ``min_prob``."""
    losses = -in_double(log_probs).clamp_min(log(min_prob))
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


class PredictedLoss:
    """The mean log loss of some points as a function of the bandwidth, from the probabilities of their own classes.

    Parameters
    ----------
    own_shares : callable
        Maps several bandwidths to the probabilities of the points' own classes at each, (n_predicted,).
    log_weights : (n_predicted,) tensor, optional
        Logarithms of the points' weights.
    min_prob : float
        Where probabilities are clipped.
    """

    def __init__(
        self,
        own_shares: Callable[[Sequence[float]], Sequence[torch.Tensor]],
        log_weights: torch.Tensor | None = None,
        min_prob: float = ALMOST_ZERO,
    ) -> None:
        self.log_weights, self.min_prob = log_weights, min_prob
        self._own_shares = own_shares
        self._shares: dict[float, torch.Tensor] = {}  # of each bandwidth, (n_predicted,)

    def __call__(self, bandwidth: float) -> float:
        """Return the loss at a bandwidth."""
        return self.at([bandwidth])[0]

    def at(self, bandwidths: Sequence[float]) -> list[float]:
        """Return the losses at several bandwidths, from one pass over the distances."""
        shares = self._computed(bandwidths)
        return [mean_log_loss(part.log(), self.log_weights, self.min_prob) for part in shares]

    def standard_error(self, bandwidth: float) -> float:
        """Return the standard error of the loss at a bandwidth."""
        return log_loss_error(self._computed([bandwidth])[0].log(), self.log_weights)

    def _computed(self, bandwidths: Sequence[float]) -> list[torch.Tensor]:
        """Return the probabilities of the own classes; each bandwidth is computed once."""
        missing = [bandwidth for bandwidth in bandwidths if bandwidth not in self._shares]
        if missing:
            self._shares |= zip(missing, self._own_shares(missing), strict=True)
        return [self._shares[bandwidth] for bandwidth in bandwidths]


class LeaveOutLoss(PredictedLoss):
    """The leave-out log loss of a support as a function of the bandwidth: each point given all the others.

    Distances do not depend on the bandwidth: they are kept if they fit in ``memory_budget`` bytes, and computed again
    for every call if not.

    Parameters
    ----------
    support : SortedSupport
        Points sorted by class.
    kernel : MotherKernel
        Any kernel of the table.
    keys : (n,) tensor, optional
        Groups or folds of the samples, in the original order; default leave-one-out.
    n_predicted : int, optional
        Number of points that are predicted, chosen at random; default all. A loss over all pairs of n points takes time
        in proportion to n², this one to n.
    seed : int
        Chooses them.
    memory_budget : int
        Bytes.
    min_prob : float
        Where probabilities are clipped.
    """

    def __init__(
        self,
        support: SortedSupport,
        *,
        kernel: MotherKernel = KERNELS["rbf"],
        keys: torch.Tensor | None = None,
        n_predicted: int | None = None,
        seed: int = 0,
        memory_budget: int = MEMORY_BUDGET,
        min_prob: float = ALMOST_ZERO,
    ) -> None:
        n_predicted = len(support) if n_predicted is None else n_predicted
        chosen = sampled_positions(len(support), n_predicted, seed=seed).to(support.points.device)
        rule = leave_out_rule(support, keys).select(chosen)
        points, codes = support.points[chosen], support.codes[chosen]
        kept = None
        if len(support) * len(points) * points.element_size() <= memory_budget:
            kept = KeptDistances(support, kernel, points, codes, rule)

        def own_shares(bandwidths: Sequence[float]) -> Sequence[torch.Tensor]:
            prepared = PreparedSupport(support, bandwidths, kernel)
            return list(
                prepared.own_shares(points, codes, leave_out=rule) if kept is None else kept.own_shares(prepared)
            )

        super().__init__(own_shares, None if support.log_weights is None else support.log_weights[chosen], min_prob)
        self.support = support


class KeptDistances:
    """Distances of queries, sorted by class, to all points of a support, for the shares of their classes.

    They are relative to that of the nearest point, whose value is then 1 at every bandwidth. Products are in float64 if
    those in float32 do not resolve the distance of a typical nearest point, as where one point is far from all others.
    """

    def __init__(
        self, support: SortedSupport, kernel: MotherKernel, queries: torch.Tensor, codes: torch.Tensor, rule: LeaveOut
    ) -> None:
        prepared = PreparedSupport(support, [SEARCH_DETAIL * sqrt(support.mean_square) or 1.0], kernel)

        def measure(block: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            placed = prepared.place(queries[block])
            products = prepared.left @ placed.right()  # (n_support, n_query)
            rule.select(block).hide(products, slice(0, len(products)))
            largest = products.amax(dim=0).clamp_min_(torch.finfo(products.dtype).min)
            nearest = (largest + placed.half_squares).clamp_max_(0.0)
            return products.sub_(largest).to(queries.dtype), nearest, placed.half_squares

        step = max(KEPT_BLOCK // len(support), MIN_KEPT_QUERIES)
        blocks = slices(len(queries), step)
        _ = prepared.left  # once, not by each thread
        found = map_blocks(measure, blocks, queries.device)
        distance = sqrt(-2.0 * float(torch.cat([nearest for _, nearest, _ in found]).median())) / prepared.unit
        if prepared.dtype != torch.float64 and not prepared.resolves(distance):
            prepared = prepared.exact
            _ = prepared.left
            found = map_blocks(measure, blocks, queries.device)
        self.prepared, self.codes, self.blocks = prepared, [codes[block] for block in blocks], found

    def own_shares(self, wanted: PreparedSupport) -> torch.Tensor:
        """Return p_k(q; b) of the class k of each query at other bandwidths, (n_bandwidths, n_query)."""
        support, starts = self.prepared.support, self.prepared.support.class_starts
        rates = [min((self.prepared.clipped[0] / bandwidth) ** 2, MAX_RATE) for bandwidth in wanted.clipped]
        weights = self.prepared.weights

        def shares(place: int) -> torch.Tensor:
            below, nearest, half_squares = self.blocks[place]
            codes, counts = torch.unique_consecutive(self.codes[place], return_counts=True)
            ends = counts.cumsum(0).tolist()
            result = below.new_empty(len(rates), below.shape[1], dtype=widest_dtype(below.device))
            for index, rate in enumerate(rates):
                exponents = self.prepared.relative_exponents(below, nearest, half_squares, below.new_tensor(rate))
                values = flushed_exp2_(exponents.to(below.dtype))
                if weights is not None:
                    values *= weights[:, None].to(values)
                for code, start, end in zip(codes.tolist(), [0, *ends], ends, strict=False):
                    rows = slice(starts[code], starts[code + 1])
                    result[index, start:end] = values[rows, start:end].sum(dim=0)
                totals = values.sum(dim=0)
                result[index] = torch.where(totals == 0, 1.0 / support.n_classes, result[index] / totals)
            return result

        return torch.cat(map_blocks(shares, range(len(self.blocks)), support.points.device), dim=1)


def sampled_positions(n_points: int, n_predicted: int = MAX_PREDICTED, *, seed: int = 0) -> torch.Tensor:
    """Return the positions of at most ``n_predicted`` randomly chosen points, ascending."""
    chosen = torch.randperm(n_points, generator=torch.Generator().manual_seed(seed))[:n_predicted]
    return chosen.sort().values
