"""Isotonic regression: the non-decreasing step function of a class's score that fits the labels best.

g_k = argmin over non-decreasing g of Σ_i (1{y_i = k} − g(p_ik))²,   p′_k = g_k(p_k) / Σ_j g_j(p_j)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from sklearn import isotonic

from kcal.calibrators.binary.one_versus_rest import Hits, OneVersusRest, OneVersusRestModel
from kcal.calibrators.class_scores import Tensors
from kcal.calibrators.logit_base import Floats, fitted
from kcal.calibrators.model_state import ragged
from kcal.calibrators.piecewise import interpolate


@dataclass(frozen=True)
class IsotonicModel(OneVersusRestModel):
    """Linear interpolation between knots, constant outside them."""

    knots: Tensors = ragged()  # log-odds
    values: Tensors = ragged(like="knots")

    def log_map(self, scores: torch.Tensor) -> torch.Tensor:
        """Return log g_k(s_k), (n, n_classes)."""
        return torch.log(interpolate(self.knots, self.values, scores))


class IsotonicCalibration(OneVersusRest):
    """Replace the probability of each class by a non-decreasing function of it (least squares), then normalise.

    scikit-learn fits the functions, each with two additional samples: a positive at its lowest score and a negative at
    its highest. Without them the function is 0 below the lowest positive, where about one new positive in n + 1 samples
    falls, and its log-loss infinite; with them it is 1/(n_b + 1) over the n_b samples there, and n_b/(n_b + 1) above
    the highest negative.

    Parameters
    ----------
    maps, representation, seed
        As in :class:`PlattScaling`.

    Attributes
    ----------
    knots_ : list of arrays
        Log-odds between which each function is linear, ascending.
    values_ : list of arrays
        The functions at the knots; constant outside.
    """

    method: ClassVar[str] = "isotonic"
    model_class = IsotonicModel
    knots_ = fitted("knots")
    values_ = fitted("values")

    def _fit_map(self, scores: Floats, hits: Hits, weights: Floats) -> tuple[Floats, ...]:
        fitted_steps = isotonic.IsotonicRegression(out_of_bounds="clip").fit(
            np.concatenate([scores, [scores.min(), scores.max()]]),
            np.concatenate([hits, [1.0, 0.0]]),
            sample_weight=np.concatenate([weights, [1.0, 1.0]]),
        )
        return fitted_steps.X_thresholds_, fitted_steps.y_thresholds_
