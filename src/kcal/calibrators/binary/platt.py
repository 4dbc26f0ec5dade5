"""Platt scaling: a logistic curve of the log-odds of each class.

q_k = σ(a_k·(log p_k − log(1 − p_k)) + c_k),   p′_k = q_k / Σ_j q_j
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from kcal.calibrators.binary.logistic import LogisticModel, fit_logistic, logistic_features
from kcal.calibrators.binary.one_versus_rest import Hits, OneVersusRest
from kcal.calibrators.logit_base import Floats, fitted


class PlattScaling(OneVersusRest):
    """Fit a logistic curve to the log-odds of each class against the rest, then normalise.

    The targets are Platt's: (n₊ + 1)/(n₊ + 2) for the n₊ positives and 1/(n₋ + 2) for the n₋ negatives, so that
    separable data have a finite solution. The loss is convex and solved to high precision.

    Parameters
    ----------
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
        a_k and c_k of each curve.
    """

    method: ClassVar[str] = "platt"
    model_class = LogisticModel
    coefficients_ = fitted("coefficients")

    def _fit_map(self, scores: Floats, hits: Hits, weights: Floats) -> tuple[Floats, ...]:
        positives, negatives = weights[hits].sum(), weights[~hits].sum()
        targets = np.where(hits, (positives + 1) / (positives + 2), 1 / (negatives + 2))
        return (fit_logistic(logistic_features(scores, 2), targets, weights, start=[1.0, 0.0]),)
