"""Beta calibration: the correct curve if the scores of positives and of negatives follow beta distributions.

q_k = σ(a_k·log p_k − b_k·log(1 − p_k) + c_k),   a_k, b_k ≥ 0,   p′_k = q_k / Σ_j q_j
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from kcal.calibrators.binary.logistic import LogisticModel, fit_logistic, logistic_features
from kcal.calibrators.binary.one_versus_rest import Hits, OneVersusRest
from kcal.calibrators.logit_base import Floats, check_penalty, fitted

IDENTITY = (1.0, 1.0, 0.0)
"""a, b and c of the curve that changes nothing."""


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
    model_class = LogisticModel
    coefficients_ = fitted("coefficients")

    def __init__(
        self, *, penalty: float = 1.0, maps: str = "auto", representation: str = "logits", seed: int = 0
    ) -> None:
        super().__init__(maps=maps, representation=representation, seed=seed)
        self.penalty = penalty

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_penalty(self.penalty)

    def _fit_map(self, scores: Floats, hits: Hits, weights: Floats) -> tuple[Floats, ...]:
        features, targets, bounds = logistic_features(scores, 3), hits.astype(np.float64), (0.0, 0.0, None)
        return (fit_logistic(features, targets, weights, start=IDENTITY, penalty=self.penalty, lowest=bounds),)
