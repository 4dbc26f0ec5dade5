"""Isotonic regression: the ascending step function of a class's score that fits the labels best.

g_k = argmin over ascending g of Σ_i (1{y_i = k} − g(p_ik))²,   output_k = g_k(p_k) / Σ_j g_j(p_j)
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn import isotonic

from kcal.calibrators.binary.one_versus_rest import Floats, OneVersusRest


class IsotonicCalibration(OneVersusRest):
    """Replace the probability of each class by an ascending function of it, fitted by least squares, then normalise.

    scikit-learn finds the functions. Each sees two samples more than there are: a positive at its lowest score and a
    negative at its highest. Without them the function is 0 below the lowest positive, where about one new positive in
    n + 1 samples will fall, and its log-loss infinite; with them it is 1/(n_b + 1) over the n_b samples there, and
    n_b/(n_b + 1) above the highest negative.

    Parameters
    ----------
    maps : "auto", "class" or "shared"
        A function for every class, or one for the scores of all classes together, which needs far fewer samples a
        class. "auto" takes
        whichever has the lower cross-validated log-loss.
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Of the folds that "auto" is decided by.

    Attributes
    ----------
    knots_ : list of arrays
        Log-odds between which each function is linear, ascending.
    values_ : list of arrays
        The functions at the knots; constant outside.
    """

    method: ClassVar[str] = "isotonic"
    parts: ClassVar[tuple[str, ...]] = ("knots", "values")
    knots_: list[Floats]
    values_: list[Floats]

    def __init__(self, *, maps: str = "auto", representation: str = "logits", seed: int = 0) -> None:
        self.maps = maps
        self.representation = representation
        self.seed = seed

    def _fit_map(self, scores: Floats, hits: NDArray[np.bool_], weights: Floats) -> tuple[Floats, ...]:
        fitted = isotonic.IsotonicRegression(out_of_bounds="clip").fit(
            np.concatenate([scores, [scores.min(), scores.max()]]),
            np.concatenate([hits, [1.0, 0.0]]),
            sample_weight=np.concatenate([weights, [1.0, 1.0]]),
        )
        return fitted.X_thresholds_, fitted.y_thresholds_

    def _log_map(self, scores: Floats, *parts: Floats) -> Floats:
        knots, values = parts
        return np.log(np.interp(scores, knots, values))

    def _is_map(self, *parts: Floats) -> bool:
        knots, values = parts
        ascending = (np.diff(knots) > 0).all() and (np.diff(values) >= 0).all()
        return len(knots) == len(values) > 0 and bool(ascending and values[0] > 0 and values[-1] < 1)
