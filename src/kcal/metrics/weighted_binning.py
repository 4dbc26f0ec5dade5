"""Bins of weighted predictions, for one vector of weights or for many at once, as resampling needs them.

All values are masses: Σ w, Σ w·p and Σ w·y up to a cut, read off cumulative sums. Tied predictions that a cut of
equal weight divides go to both sides in proportion, so that the order of the rows cannot matter.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kcal.metrics.binning import ReliabilityBins, edges_between, equal_width_cuts, equal_width_edges
from kcal.metrics.checks import Floats


class BinMasses(NamedTuple):
    """What falls into each bin, for every vector of weights: (n_vectors, bins) each."""

    weights: NDArray[np.float64]  # Σ w
    predictions: NDArray[np.float64]  # Σ w·p
    outcomes: NDArray[np.float64]  # Σ w·y

    @property
    def gap_shares(self) -> NDArray[np.float64]:
        """(w_b / w)·(frequency_b − mean prediction_b), as `ReliabilityBins.gap_shares`; 0 without any weight."""
        total = self.weights.sum(axis=1, keepdims=True)
        return np.asarray((self.outcomes - self.predictions) / np.where(total > 0, total, 1.0))


@dataclass(frozen=True, eq=False)
class WeightedPredictions:
    """The predictions of one event in ascending order, with outcomes and weights."""

    values: Floats  # (n,)
    occurred: NDArray[np.bool_]  # (n,)
    weights: NDArray[np.float64]  # (n,)
    order: NDArray[np.intp]  # (n,): the rows they come from

    def bin(self, *, bins: int, adaptive: bool, of: Literal["confidence"] | int) -> ReliabilityBins:
        """Cut the predictions into bins of equal weight (adaptive) or of equal width."""
        masses = self.masses(self.weights[None, :], bins=bins, adaptive=adaptive)
        if adaptive:
            shares = np.cumsum(masses.weights[0])[:-1]
            inner = np.searchsorted(np.cumsum(self.weights), shares, side="left")
            ranks = np.concatenate([[0], inner, [len(self.values)]]).astype(np.intp)
            edges = edges_between(self.values, ranks)
        else:
            edges = equal_width_edges(bins)
            ranks = equal_width_cuts(self.values, edges)
        weights = masses.weights[0]
        with np.errstate(invalid="ignore", divide="ignore"):
            mean_prediction = np.where(weights > 0, masses.predictions[0] / weights, np.nan)
            observed_frequency = np.where(weights > 0, masses.outcomes[0] / weights, np.nan)
        return ReliabilityBins(np.diff(ranks), mean_prediction, observed_frequency, edges, of, adaptive, weights)

    def masses(self, weights: NDArray[np.float64], *, bins: int, adaptive: bool) -> BinMasses:
        """Sum what falls into each bin, for each row of ``weights`` (n_vectors, n).

        The bins are those of the predictions' own weights, whatever is summed: if they moved with every resample, the
        samples that change bins would look like chance twice.
        """
        if len(self.values) == 0:
            empty = np.zeros((len(weights), bins))
            return BinMasses(empty, empty, empty)
        below = [_cumulative(weights), _cumulative(weights * self.values), _cumulative(weights * self.occurred)]
        if adaptive:
            lower, upper, share = self._cuts_of_equal_weight(bins)
        else:
            lower = upper = equal_width_cuts(self.values, equal_width_edges(bins))
            share = np.zeros(1)
        at_cuts = [sums[:, lower] * (1 - share) + sums[:, upper] * share for sums in below]
        return BinMasses(*(np.diff(sums, axis=1) for sums in at_cuts))

    def _cuts_of_equal_weight(self, bins: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
        """Return, for each cut, the ranks at which its ties begin and end, and the share of them below the cut."""
        below = _cumulative(self.weights[None, :])[0]
        wanted = below[-1] * (np.arange(bins + 1) / bins)
        ranks = np.clip(np.searchsorted(below, wanted, side="right") - 1, 0, len(self.values) - 1)
        lower, upper = self._ties[0][ranks], self._ties[1][ranks]
        mass = below[upper] - below[lower]
        share = np.divide(wanted - below[lower], mass, out=np.zeros_like(mass), where=mass > 0)
        return lower, upper, np.clip(share, 0.0, 1.0)

    @cached_property
    def _ties(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """First rank of each prediction's ties, and the rank past the last, (n,) each."""
        first = np.searchsorted(self.values, self.values, side="left")
        return first.astype(np.intp), np.searchsorted(self.values, self.values, side="right").astype(np.intp)


def sort_weighted(
    values: Floats, occurred: NDArray[np.bool_], weights: NDArray[np.float64], *, threshold: float = 0.0
) -> WeightedPredictions:
    """Sort the predictions that reach the threshold, with their outcomes and weights."""
    order = np.argsort(values, kind="stable")
    order = order[np.searchsorted(values[order], threshold, side="left") :]
    return WeightedPredictions(values[order], occurred[order], weights[order], order)


def _cumulative(values: NDArray[np.float64]) -> NDArray[np.float64]:
    sums = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums
