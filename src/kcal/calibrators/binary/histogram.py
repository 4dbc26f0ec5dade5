"""Histogram binning: the frequency of a class among the samples whose score falls into the same bin.

q_k = clip(Σ_{i∈b} 1{y_i = k} / n_b, 1/(n_b + 2), 1 − 1/(n_b + 2)),   b the bin of p_k;   p′_k = q_k / Σ_j q_j
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.binary.binned import BinnedModel
from kcal.calibrators.binary.one_versus_rest import Floats, OneVersusRest, equal_mass_edges, fit_each_map, to_arrays
from kcal.calibrators.class_scores import rounded_log_odds
from kcal.calibrators.logit_base import check_bins
from kcal.calibrators.model_state import LogitModel
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
    model_class: ClassVar[type[LogitModel]] = BinnedModel
    model_: BinnedModel

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

    @property
    def edges_(self) -> list[Any]:
        """Inner edges of the bins of each map, as log-odds, ascending."""
        return to_arrays(self.model_.edges)

    @property
    def rates_(self) -> list[Any]:
        """Output of each bin before rows are normalised."""
        return to_arrays(self.model_.values)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_bins(self.bins)
        check_choice(self.binning, "binning", BINNINGS)

    def _fit_maps(
        self, log_probs: torch.Tensor, codes: NDArray[np.int64], weights: Floats, *, shared: bool
    ) -> BinnedModel:
        return BinnedModel(*fit_each_map(rounded_log_odds(log_probs), codes, weights, self._fit_bins, shared=shared))

    def _fit_bins(self, scores: Floats, hits: NDArray[np.bool_], weights: Floats) -> tuple[Floats, Floats]:
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
