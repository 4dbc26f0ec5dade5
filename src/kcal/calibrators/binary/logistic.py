"""Logistic regression on a few features of one score, the solver of Platt scaling and beta calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from kcal.calibrators.fit_warnings import warn_of_early_stop
from kcal.validation import ALMOST_ZERO

Floats = NDArray[np.float64]

MAX_ITERATIONS = 1000
LARGEST_LOG_ODDS = float(-np.log(ALMOST_ZERO))
"""Log-odds are clipped here, where p or 1 − p is 1e-12."""


def clip_log_odds(scores: Floats) -> Floats:
    """Return log-odds clipped to what probabilities of 1e-12 and 1 − 1e-12 have."""
    clipped: Floats = np.clip(scores, -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)
    return clipped


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
    start : (d,)
        Start of the search and centre of the penalty.
    penalty : float
        penalty/2 times the squared distance from the start is added to the summed loss.
    lowest : (d,), optional
        Lower bounds of the coefficients, None where there is none.
    """
    total, centre = weights.sum(), np.asarray(start, dtype=np.float64)

    def loss(coefficients: Floats) -> tuple[float, Floats]:
        scores = features @ coefficients
        away = coefficients - centre
        value = weights @ (np.logaddexp(0.0, scores) - targets * scores) + penalty / 2 * away @ away
        gradient = (weights * (expit(scores) - targets)) @ features + penalty * away
        return float(value / total), gradient / total

    solution = minimize(
        loss,
        centre,
        jac=True,
        method="L-BFGS-B",
        bounds=None if lowest is None else [(bound, None) for bound in lowest],
        options={"maxiter": MAX_ITERATIONS, "ftol": 1e-15, "gtol": 1e-9},
    )
    if solution.nit >= MAX_ITERATIONS:
        warn_of_early_stop("a logistic curve", MAX_ITERATIONS)
    return np.asarray(solution.x, dtype=np.float64)
