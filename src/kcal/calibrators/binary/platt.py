"""Platt scaling: a logistic curve over the log-odds of each class.

q_k = σ(a_k·(log p_k − log(1 − p_k)) + c_k),   output_k = q_k / Σ_j q_j
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from kcal.calibrators.binary.one_versus_rest import Floats, OneVersusRest
from kcal.errors import ConvergenceWarning
from kcal.validation import ALMOST_ZERO

FARTHEST = float(-np.log(ALMOST_ZERO))
"""Log-odds beyond this, where p or 1 − p is below 1e-12, count as this."""


class PlattScaling(OneVersusRest):
    """Fit a logistic curve to the log-odds of each class against the rest, then normalise.

    The labels that the curve is fitted to are Platt's: (n₊ + 1)/(n₊ + 2) for the n₊ positives and 1/(n₋ + 2) for the
    n₋ negatives, so that separable data have a finite solution. The loss is convex and solved to high precision.

    Parameters
    ----------
    maps : "auto", "class" or "shared"
        A curve for every class, or one for the scores of all classes together. "auto" takes
        whichever has the lower cross-validated log-loss.
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Of the folds that "auto" is decided by.

    Attributes
    ----------
    coefficients_ : list of arrays
        a_k and c_k of each curve.
    """

    method: ClassVar[str] = "platt"
    parts: ClassVar[tuple[str, ...]] = ("coefficients",)
    coefficients_: list[Floats]

    def __init__(self, *, maps: str = "auto", representation: str = "logits", seed: int = 0) -> None:
        self.maps = maps
        self.representation = representation
        self.seed = seed

    def _fit_map(self, scores: Floats, hits: NDArray[np.bool_], weights: Floats) -> tuple[Floats, ...]:
        positives, negatives = weights[hits].sum(), weights[~hits].sum()
        targets = np.where(hits, (positives + 1) / (positives + 2), 1 / (negatives + 2))
        return (fit_logistic(_features(scores), targets, weights, start=[1.0, 0.0]),)

    def _log_map(self, scores: Floats, *parts: Floats) -> Floats:
        return np.asarray(log_expit(_features(scores) @ parts[0]), dtype=np.float64)

    def _is_map(self, *parts: Floats) -> bool:
        return len(parts[0]) == 2


def _features(scores: Floats) -> Floats:
    return np.stack([np.clip(scores, -FARTHEST, FARTHEST), np.ones_like(scores)], axis=1)  # (n, 2)


def fit_logistic(
    features: Floats,
    targets: Floats,
    weights: Floats,
    *,
    start: Sequence[float],
    penalty: float = 0.0,
    lowest: Sequence[float | None] | None = None,
) -> Floats:
    """Return the coefficients that minimise the logistic loss of features (n, d) against targets in [0, 1].

    Parameters
    ----------
    start
        Where the search begins and what the penalty pulls to, (d,).
    penalty
        penalty/2 times the squared distance from the start is added to the summed loss.
    lowest
        Lower bounds of the coefficients, None where there is none.
    """
    total, centre = weights.sum(), np.asarray(start, dtype=np.float64)

    def loss(coefficients: Floats) -> tuple[float, Floats]:
        heights = features @ coefficients
        away = coefficients - centre
        value = weights @ (np.logaddexp(0.0, heights) - targets * heights) + penalty / 2 * away @ away
        slope = (weights * (expit(heights) - targets)) @ features + penalty * away
        return float(value / total), slope / total

    found = minimize(
        loss,
        centre,
        jac=True,
        method="L-BFGS-B",
        bounds=None if lowest is None else [(bound, None) for bound in lowest],
        options={"maxiter": 1000, "ftol": 1e-15, "gtol": 1e-9},
    )
    if found.nit >= 1000:
        warn_of_early_stop("the logistic curve", 1000)
    return np.asarray(found.x, dtype=np.float64)


def warn_of_early_stop(what: str, iterations: int) -> None:
    """Warn that a solver ran out of iterations."""
    warnings.warn(
        f"The fit of {what} stopped after {iterations} iterations: the logits probably separate the classes, so that "
        "no finite solution is best. Raise the penalty.",
        ConvergenceWarning,
        stacklevel=4,
    )
