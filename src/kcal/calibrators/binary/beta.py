"""Beta calibration: the correct curve if the scores of positives and of negatives follow beta distributions.

q_k = σ(a_k·log p_k − b_k·log(1 − p_k) + c_k),   a_k, b_k ≥ 0,   p′_k = q_k / Σ_j q_j
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_expit

from kcal.calibrators.binary.logistic import clip_log_odds, fit_logistic
from kcal.calibrators.binary.one_versus_rest import (
    Floats,
    Maps,
    OneVersusRest,
    OneVersusRestModel,
    fit_each_map,
    to_arrays,
)
from kcal.calibrators.class_scores import rounded_log_odds
from kcal.calibrators.logit_base import check_penalty
from kcal.calibrators.model_state import LogitModel, ragged

IDENTITY = (1.0, 1.0, 0.0)
"""a, b and c of the curve that changes nothing."""


@dataclass(frozen=True)
class BetaModel(OneVersusRestModel):
    """q = σ(a·log p − b·log(1 − p) + c)."""

    coefficients: Maps = ragged()  # a, b and c of each curve

    def log_map(self, scores: Floats, place: int) -> Floats:
        """Return log q of scores (n,)."""
        return np.asarray(log_expit(_features(scores) @ self.coefficients[place].numpy()), dtype=np.float64)

    def is_consistent(self, n_classes: int) -> bool:
        """Return whether every curve has three coefficients, a and b not negative."""
        return all(len(curve) == 3 and bool((curve[:2] >= 0).all()) for curve in self.coefficients)


class BetaCalibration(OneVersusRest):
    """Fit a beta-calibration curve to each class against the rest, then normalise.

    a = b = 1 and c = 0 changes nothing; a = b is Platt scaling. The loss is convex and solved with a, b ≥ 0 exactly.

    Parameters
    ----------
    penalty : float
        penalty/2·((a − 1)² + (b − 1)² + c²) is added to the summed log-loss: a normal prior around the curve that
        changes nothing, about as strong as one sample. It keeps the curve of a class with few or separable samples
        finite and vanishes as samples grow; 0 is the published loss.
    maps : "auto", "class" or "shared"
        A curve per class, or one for the scores of all classes together. "auto" takes the one with the lower
        cross-validated log-loss.
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Seed of the folds of the cross-validation.

    Attributes
    ----------
    coefficients_ : list of arrays
        a_k, b_k and c_k of each curve.
    """

    method: ClassVar[str] = "beta"
    model_class: ClassVar[type[LogitModel]] = BetaModel
    model_: BetaModel

    def __init__(
        self, *, penalty: float = 1.0, maps: str = "auto", representation: str = "logits", seed: int = 0
    ) -> None:
        self.penalty = penalty
        self.maps = maps
        self.representation = representation
        self.seed = seed

    @property
    def coefficients_(self) -> list[Any]:
        """a_k, b_k and c_k of each curve."""
        return to_arrays(self.model_.coefficients)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_penalty(self.penalty)

    def _fit_maps(
        self, log_probs: torch.Tensor, codes: NDArray[np.int64], weights: Floats, *, shared: bool
    ) -> BetaModel:
        def fit_curve(scores: Floats, hits: NDArray[np.bool_], weights: Floats) -> tuple[Floats]:
            bounds = (0.0, 0.0, None)
            targets = hits.astype(np.float64)
            features = _features(scores)
            return (fit_logistic(features, targets, weights, start=IDENTITY, penalty=self.penalty, lowest=bounds),)

        return BetaModel(*fit_each_map(rounded_log_odds(log_probs), codes, weights, fit_curve, shared=shared))


def _features(scores: Floats) -> Floats:
    """Return log p, −log(1 − p) and 1, (n, 3), of log-odds."""
    clipped = clip_log_odds(scores)
    return np.stack([log_expit(clipped), -log_expit(-clipped), np.ones_like(clipped)], axis=1)
