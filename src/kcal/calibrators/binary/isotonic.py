"""Isotonic regression: the non-decreasing step function of a class's score that fits the labels best.

g_k = argmin over non-decreasing g of Σ_i (1{y_i = k} − g(p_ik))²,   p′_k = g_k(p_k) / Σ_j g_j(p_j)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import isotonic

from kcal.calibrators.binary.one_versus_rest import (
    Floats,
    Maps,
    OneVersusRest,
    OneVersusRestModel,
    fit_each_map,
    to_arrays,
)
from kcal.calibrators.class_scores import rounded_log_odds
from kcal.calibrators.model_state import LARGEST_BELOW_ONE, SMALLEST_POSITIVE, LogitModel, ragged


@dataclass(frozen=True)
class IsotonicModel(OneVersusRestModel):
    """Linear interpolation between knots, constant outside them."""

    knots: Maps = ragged(ascending=True)  # log-odds
    values: Maps = ragged(SMALLEST_POSITIVE, LARGEST_BELOW_ONE, ascending=True)

    def log_map(self, scores: Floats, place: int) -> Floats:
        """Return log g(s) of scores (n,)."""
        log_values: Floats = np.log(np.interp(scores, self.knots[place].numpy(), self.values[place].numpy()))
        return log_values

    def is_consistent(self, n_classes: int) -> bool:
        """Return whether every map has as many values as knots, at least one."""
        if [len(knots) for knots in self.knots] != [len(values) for values in self.values]:
            return False
        return all(len(knots) > 0 and bool((knots.diff() > 0).all()) for knots in self.knots)


class IsotonicCalibration(OneVersusRest):
    """Replace the probability of each class by a non-decreasing function of it (least squares), then normalise.

    scikit-learn fits the functions, each with two additional samples: a positive at its lowest score and a negative at
    its highest. Without them the function is 0 below the lowest positive, where about one new positive in n + 1 samples
    falls, and its log-loss infinite; with them it is 1/(n_b + 1) over the n_b samples there, and n_b/(n_b + 1) above
    the highest negative.

    Parameters
    ----------
    maps : "auto", "class" or "shared"
        A function per class, or one for the scores of all classes together, which needs far fewer samples per class.
        "auto" takes the one with the lower cross-validated log-loss.
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Seed of the folds of the cross-validation.

    Attributes
    ----------
    knots_ : list of arrays
        Log-odds between which each function is linear, ascending.
    values_ : list of arrays
        The functions at the knots; constant outside.
    """

    method: ClassVar[str] = "isotonic"
    model_class: ClassVar[type[LogitModel]] = IsotonicModel
    model_: IsotonicModel

    def __init__(self, *, maps: str = "auto", representation: str = "logits", seed: int = 0) -> None:
        self.maps = maps
        self.representation = representation
        self.seed = seed

    @property
    def knots_(self) -> list[Any]:
        """Log-odds between which each function is linear, ascending."""
        return to_arrays(self.model_.knots)

    @property
    def values_(self) -> list[Any]:
        """The functions at the knots."""
        return to_arrays(self.model_.values)

    def _fit_maps(
        self, log_probs: torch.Tensor, codes: NDArray[np.int64], weights: Floats, *, shared: bool
    ) -> IsotonicModel:
        return IsotonicModel(*fit_each_map(rounded_log_odds(log_probs), codes, weights, _fit_steps, shared=shared))


def _fit_steps(scores: Floats, hits: NDArray[np.bool_], weights: Floats) -> tuple[Floats, Floats]:
    fitted = isotonic.IsotonicRegression(out_of_bounds="clip").fit(
        np.concatenate([scores, [scores.min(), scores.max()]]),
        np.concatenate([hits, [1.0, 0.0]]),
        sample_weight=np.concatenate([weights, [1.0, 1.0]]),
    )
    return fitted.X_thresholds_, fitted.y_thresholds_
