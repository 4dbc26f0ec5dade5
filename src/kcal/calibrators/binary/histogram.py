"""Histogram binning: the frequency of a class among the samples whose score falls into the same bin.

q_k = clip(Σ_{i∈b} 1{y_i = k} / n_b, 1/(n_b + 2), 1 − 1/(n_b + 2)),   b the bin of p_k;   p′_k = q_k / Σ_j q_j
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from kcal.calibrators.binary.binned import BinnedModel
from kcal.calibrators.binary.one_versus_rest import Hits, OneVersusRest, equal_mass_edges
from kcal.calibrators.logit_base import Floats, check_bins, fitted
from kcal.validation import check_choice

BINNINGS = ("equal-mass", "equal-width")


class HistogramBinning(OneVersusRest):
    """Replace the probability of each class by the frequency of the class in its bin, then normalise.

    Frequencies are kept 1/(n_b + 2) away from 0 and 1, with n_b the samples in the bin, so that a bin of only positives
    gives a value near 1, not 1. Equal scores share a bin. An equal-width bin without samples gives its middle.

    Parameters
    ----------
    bins : int
        Maximal number of bins per map; ties can leave fewer.
    binning : "equal-width" or "equal-mass"
        [0, 1] cut evenly (closed on the right), or bins with equal numbers of samples. With many more classes than
        bins all samples of a class share its highest equal-mass bin with as many of others, and accuracy suffers.
    maps : "auto", "class" or "shared"
        Bins per class, or one set of bins for the scores of all classes together, which needs far fewer samples per
        class. "auto" takes the one with the lower cross-validated log-loss.
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Seed of the folds of the cross-validation.

    Attributes
    ----------
    edges_ : list of arrays
        Inner edges of the bins of each map, as log-odds, ascending.
    rates_ : list of arrays
        Output of each bin before rows are normalised; one more than there are edges.
    """

    method: ClassVar[str] = "histogram"
    model_class = BinnedModel
    edges_ = fitted("edges")
    rates_ = fitted("values")

    def __init__(
        self,
        *,
        bins: int = 15,
        binning: str = "equal-width",
        maps: str = "auto",
        representation: str = "logits",
        seed: int = 0,
    ) -> None:
        super().__init__(maps=maps, representation=representation, seed=seed)
        self.bins = bins
        self.binning = binning

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_bins(self.bins)
        check_choice(self.binning, "binning", BINNINGS)

    def _fit_map(self, scores: Floats, hits: Hits, weights: Floats) -> tuple[Floats, ...]:
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
        margin = np.where(counts > 0, 1 / (counts + 2), 0.0)
        return edges, np.clip(rates, margin, 1 - margin)
