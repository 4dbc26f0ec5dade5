"""Bins of weighted predictions, as a sparse matrix of which share of which sample falls into which bin.

Tied predictions that a cut of equal weight divides go to both sides in proportion, so that the order of the rows
cannot matter. Every sum over the bins is then one product with that matrix, for one vector of weights or for many.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from kcal.metrics.binning import (
    ReliabilityBins,
    edges_between,
    equal_count_cuts,
    equal_width_cuts,
    equal_width_edges,
)
from kcal.metrics.predictions import Floats, Predictions

Array = NDArray[np.float64]

ROUNDING = 1e-12  # how far a sum of weights may be off the cut that it is meant to reach


class Cuts(NamedTuple):
    """Where sorted predictions are cut: (bins + 1,) each."""

    lower: NDArray[np.intp]  # rank at which the ties of the cut begin
    upper: NDArray[np.intp]  # rank past their last
    share: Array  # how much of them is below the cut


@dataclass(frozen=True, eq=False)
class WeightedPredictions:
    """The predictions of one event in ascending order, with outcomes and weights."""

    values: Floats  # (n,)
    occurred: NDArray[np.bool_]  # (n,)
    weights: Array  # (n,)
    order: NDArray[np.intp]  # (n,): the rows they come from

    @property
    def is_empty(self) -> bool:
        """Whether nothing counts."""
        return not self.weights.any()

    @property
    def residuals(self) -> Array:
        """Outcome minus prediction, (n,)."""
        return np.asarray(self.occurred - self.values.astype(np.float64))

    def bin(self, *, bins: int, adaptive: bool, of: Literal["confidence"] | int) -> ReliabilityBins:
        """Cut the predictions into bins of equal weight (adaptive) or of equal width."""
        edges, counts = self._edges_and_counts(bins, adaptive)
        memberships = self.memberships(bins=bins, adaptive=adaptive)
        weights = memberships @ self.weights
        with np.errstate(invalid="ignore", divide="ignore"):
            mean_prediction = np.where(weights > 0, memberships @ (self.weights * self.values) / weights, np.nan)
            observed_frequency = np.where(weights > 0, memberships @ (self.weights * self.occurred) / weights, np.nan)
        squares = memberships @ self.weights**2
        return ReliabilityBins(counts, mean_prediction, observed_frequency, edges, of, adaptive, weights, squares)

    def memberships(self, *, bins: int, adaptive: bool) -> csr_array:
        """Return the share of each sample that falls into each bin, (bins, n); the shares of a sample sum to 1."""
        n = len(self.values)
        if n == 0:
            return csr_array((bins, 0))
        cuts = self._cuts_of_equal_weight(bins) if adaptive else _at_ranks(self._equal_width_ranks(bins))
        ranks = [np.arange(cuts.lower[b], cuts.upper[b + 1]) for b in range(bins)]
        shares = [_share_below(cuts, b + 1, ranks[b]) - _share_below(cuts, b, ranks[b]) for b in range(bins)]
        ends = np.concatenate([[0], np.cumsum([len(part) for part in ranks])])
        return csr_array((np.concatenate(shares), np.concatenate(ranks), ends), shape=(bins, n))

    def _edges_and_counts(self, bins: int, adaptive: bool) -> tuple[Array, NDArray[np.intp]]:
        if not adaptive:
            return equal_width_edges(bins), np.diff(self._equal_width_ranks(bins))
        wanted = self._wanted_weights(bins)[1:-1] * (1 + ROUNDING)
        inner = np.searchsorted(np.cumsum(self.weights), wanted, side="right")  # samples wholly below each cut
        ranks = np.concatenate([[0], inner, [len(self.values)]]).astype(np.intp)
        return edges_between(self.values, ranks), np.diff(ranks)

    def _equal_width_ranks(self, bins: int) -> NDArray[np.intp]:
        return equal_width_cuts(self.values, equal_width_edges(bins))

    def _wanted_weights(self, bins: int) -> Array:
        """Weight below each cut; equal weights are cut between samples, as samples without weights are."""
        if len(self.weights) and (self.weights == self.weights[0]).all():
            return np.asarray(self.weights[0] * equal_count_cuts(len(self.weights), bins))
        return np.asarray(self.weights.sum() * (np.arange(bins + 1) / bins))

    def _cuts_of_equal_weight(self, bins: int) -> Cuts:
        below = np.concatenate([[0.0], np.cumsum(self.weights)])
        wanted = self._wanted_weights(bins)
        ranks = np.clip(np.searchsorted(below, wanted, side="right") - 1, 0, len(self.values) - 1)
        lower = np.searchsorted(self.values, self.values[ranks], side="left")
        upper = np.searchsorted(self.values, self.values[ranks], side="right")
        mass = below[upper] - below[lower]
        share = np.divide(wanted - below[lower], mass, out=np.zeros_like(mass), where=mass > 0)
        share[-1] = 1.0
        return Cuts(lower.astype(np.intp), upper.astype(np.intp), np.clip(share, 0.0, 1.0))


def sort_weighted(
    values: Floats, occurred: NDArray[np.bool_], weights: Array, *, threshold: float = 0.0
) -> WeightedPredictions:
    """Sort the predictions that reach the threshold, with their outcomes and weights."""
    order = np.argsort(values, kind="stable")
    lowest = values.dtype.type(threshold)  # compared in the predictions' precision
    order = order[np.searchsorted(values[order], lowest, side="left") :]
    return WeightedPredictions(values[order], occurred[order], weights[order], order)


def weighted_event(
    predictions: Predictions, of: Literal["confidence"] | int, *, threshold: float = 0.0
) -> WeightedPredictions:
    """Sort the predictions of one event that reach the threshold; each counts 1 where there are no weights."""
    weights = predictions.row_weights
    return sort_weighted(*predictions.event(of), weights, threshold=threshold)


def _at_ranks(ranks: NDArray[np.intp]) -> Cuts:
    """Cuts between samples, whatever their ties."""
    return Cuts(ranks, ranks, np.zeros(len(ranks)))


def _share_below(cuts: Cuts, cut: int, ranks: NDArray[np.intp]) -> Array:
    """Share of the samples of some ranks that is below a cut."""
    tied = np.where(ranks < cuts.upper[cut], cuts.share[cut], 0.0)
    return np.where(ranks < cuts.lower[cut], 1.0, tied)
