"""Scaling-binning: temperature scaling, then each class's probability replaced by the mean over its bin.

q_k = (1/n_b)·Σ_{i∈b} p_ik(T),   p(T) = softmax(z / T),   b the bin of p_k(T);   p′_k = q_k / Σ_j q_j
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.special import expit

from kcal.calibrators.binary.binned import BinnedModel
from kcal.calibrators.binary.one_versus_rest import Hits, OneVersusRest, equal_mass_edges, fit_each_map
from kcal.calibrators.class_scores import rounded_log_odds
from kcal.calibrators.logit_base import Codes, Floats, check_bins, fitted
from kcal.calibrators.model_state import number
from kcal.calibrators.scaling.temperature import HIGHEST, LOWEST, fit_temperature
from kcal.validation import ALMOST_ZERO


@dataclass(frozen=True)
class ScaledBinnedModel(BinnedModel):
    """A binned model of the log-odds at a temperature."""

    temperature: float = number(LOWEST, HIGHEST)

    def scores(self, log_probs: torch.Tensor) -> Floats:
        """Return the log-odds of the scaled probabilities, (n, n_classes)."""
        return scaled_log_odds(log_probs, self.temperature)

    def summary(self) -> dict[str, str]:
        """Return the temperature and the kind of maps for display."""
        return {"temperature": f"{self.temperature:.4g}", **super().summary()}


class ScalingBinning(OneVersusRest):
    """Scale by a temperature, round the probability of each class to the mean of its bin, and normalise.

    Labels are used for the temperature only; bins hold equal numbers of samples and give the mean of the scaled
    probabilities, which varies far less than the mean of labels in histogram binning. The maps have few distinct
    outputs, so that their calibration error can be measured without the bias of binning. One set of samples serves all
    steps, as in the published code: one temperature cannot overfit much.

    Parameters
    ----------
    bins : int, optional
        Maximal number of bins per map; ties can leave fewer. By default ten per class and at least 100: the samples of
        one of K equally frequent classes fill one bin in K, and many bins cost little where no labels are averaged.
    maps : "auto", "class" or "shared"
        Bins per class, or one set of bins for the scores of all classes together. "auto" takes the one with the lower
        cross-validated log-loss.
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Seed of the folds of the cross-validation.

    Attributes
    ----------
    temperature_ : float
        T of the scaling.
    edges_ : list of arrays
        Inner edges of the bins of each map, as log-odds of the scaled probabilities, ascending.
    means_ : list of arrays
        Output of each bin before rows are normalised; one more than there are edges.
    """

    method: ClassVar[str] = "scaling-binning"
    model_class = ScaledBinnedModel
    temperature_ = fitted("temperature")
    edges_ = fitted("edges")
    means_ = fitted("values")

    def __init__(
        self, *, bins: int | None = None, maps: str = "auto", representation: str = "logits", seed: int = 0
    ) -> None:
        super().__init__(maps=maps, representation=representation, seed=seed)
        self.bins = bins

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.bins is not None:
            check_bins(self.bins)

    def _fit_maps(self, log_probs: torch.Tensor, codes: Codes, weights: Floats, *, shared: bool) -> ScaledBinnedModel:
        temperature = fit_temperature(log_probs, codes, weights).temperature
        scores = scaled_log_odds(log_probs, temperature)
        bins = max(100, 10 * log_probs.shape[1]) if self.bins is None else self.bins

        def average_bins(scores: Floats, hits: Hits, weights: Floats) -> tuple[Floats, ...]:
            edges = equal_mass_edges(scores, weights, bins)
            places = np.searchsorted(edges, scores)
            means = np.bincount(places, weights=weights * expit(scores)) / np.bincount(places, weights=weights)
            return edges, np.maximum(means, ALMOST_ZERO)

        edges, means = fit_each_map(scores, codes, weights, average_bins, shared)
        return ScaledBinnedModel(edges, means, temperature)


def scaled_log_odds(log_probs: torch.Tensor, temperature: float) -> Floats:
    """Return the log-odds of softmax(z / T), (n, n_classes)."""
    return rounded_log_odds(torch.log_softmax(log_probs / temperature, dim=1))
