"""Histogram binning: the rate at which a class occurred among the samples whose score falls in the same bin.

q_k = clip(Σ_{i∈b} 1{y_i = k} / n_b, 1/(n_b + 2), 1 − 1/(n_b + 2)),   b the bin of p_k;   output_k = q_k / Σ_j q_j
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators.binary.one_versus_rest import Floats, OneVersusRest, check_bins, equal_mass_edges
from kcal.errors import InvalidInputError

BINNINGS = ("equal-mass", "equal-width")


class HistogramBinning(OneVersusRest):
    """Replace the probability of each class by how often the class occurred in its bin, then normalise.

    Rates are kept 1/(n_b + 2) away from 0 and 1, with n_b the samples in the bin, so that a bin of only positives
    stays near 1 without promising it. Equal scores share a bin. An equal-width bin without samples gives its middle.

    Parameters
    ----------
    bins : int
        Bins a map, at most; ties can leave fewer.
    binning : "equal-width" or "equal-mass"
        [0, 1] cut evenly (closed on the right), or bins that hold as many samples each. With many more classes than
        bins all samples of a class share its highest equal-mass bin with as many of others, and accuracy suffers.
    maps : "auto", "class" or "shared"
        Bins of its own for every class, or one set of bins for the scores of all classes together, which needs far
        fewer samples a class. "auto" takes
        whichever has the lower cross-validated log-loss.
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Of the folds that "auto" is decided by.

    Attributes
    ----------
    edges_ : list of arrays
        Where the bins of each map meet, as log-odds, ascending.
    rates_ : list of arrays
        What each bin gives before rows are normalised; one more than there are edges.
    """

    method: ClassVar[str] = "histogram"
    parts: ClassVar[tuple[str, ...]] = ("edges", "rates")
    edges_: list[Floats]
    rates_: list[Floats]

    def __init__(
        self,
        *,
        bins: int = 15,
        binning: str = "equal-width",
        maps: str = "auto",
        representation: str = "logits",
        seed: int = 0,
    ) -> None:
        self.bins = bins
        self.binning = binning
        self.maps = maps
        self.representation = representation
        self.seed = seed

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_bins(self.bins)
        if self.binning not in BINNINGS:
            raise InvalidInputError(f"binning must be one of {BINNINGS}; got {self.binning!r}.")

    def _fit_map(self, scores: Floats, hits: NDArray[np.bool_], weights: Floats) -> tuple[Floats, ...]:
        inner = np.arange(1, self.bins) / self.bins
        if self.binning == "equal-width":
            edges = np.log(inner) - np.log1p(-inner)
        else:
            edges = equal_mass_edges(scores, weights, self.bins)
        places = np.searchsorted(edges, scores)
        counts = np.bincount(places, weights=weights, minlength=len(edges) + 1)
        positives = np.bincount(places, weights=weights * hits, minlength=len(edges) + 1)
        middles = (np.arange(len(counts)) + 0.5) / len(counts)  # only equal-width bins can be empty
        rates = np.divide(positives, counts, out=middles, where=counts > 0)
        nearest = np.where(counts > 0, 1 / (counts + 2), 0.0)
        return edges, np.clip(rates, nearest, 1 - nearest)

    def _log_map(self, scores: Floats, *parts: Floats) -> Floats:
        edges, rates = parts
        return np.log(rates)[np.searchsorted(edges, scores)]

    def _is_map(self, *parts: Floats) -> bool:
        edges, rates = parts
        return len(rates) == len(edges) + 1 and bool((np.diff(edges) > 0).all() and ((rates > 0) & (rates < 1)).all())
