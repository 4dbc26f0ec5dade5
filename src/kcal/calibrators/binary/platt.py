"""Platt scaling: a logistic curve of the log-odds of each class.

q_k = σ(a_k·(log p_k − log(1 − p_k)) + c_k),   p′_k = q_k / Σ_j q_j
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
from kcal.calibrators.model_state import LogitModel, ragged


@dataclass(frozen=True)
class PlattModel(OneVersusRestModel):
    """q = σ(a·s + c)."""

    coefficients: Maps = ragged()  # a and c of each curve

    def log_map(self, scores: Floats, place: int) -> Floats:
        """Return log q of scores (n,)."""
        return np.asarray(log_expit(_features(scores) @ self.coefficients[place].numpy()), dtype=np.float64)

    def is_consistent(self, n_classes: int) -> bool:
        """Return whether every curve has two coefficients."""
        return all(len(curve) == 2 for curve in self.coefficients)


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
    model_class: ClassVar[type[LogitModel]] = PlattModel
    model_: PlattModel

    def __init__(self, *, maps: str = "auto", representation: str = "logits", seed: int = 0) -> None:
        self.maps = maps
        self.representation = representation
        self.seed = seed

    @property
    def coefficients_(self) -> list[Any]:
        """a_k and c_k of each curve."""
        return to_arrays(self.model_.coefficients)

    def _fit_maps(
        self, log_probs: torch.Tensor, codes: NDArray[np.int64], weights: Floats, *, shared: bool
    ) -> PlattModel:
        return PlattModel(*fit_each_map(rounded_log_odds(log_probs), codes, weights, _fit_curve, shared=shared))


def _fit_curve(scores: Floats, hits: NDArray[np.bool_], weights: Floats) -> tuple[Floats]:
    positives, negatives = weights[hits].sum(), weights[~hits].sum()
    targets = np.where(hits, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    return (fit_logistic(_features(scores), targets, weights, start=[1.0, 0.0]),)


def _features(scores: Floats) -> Floats:
    return np.stack([clip_log_odds(scores), np.ones_like(scores)], axis=1)  # (n, 2)
