"""Logistic curves of one score: the model and the solver of Platt scaling and beta calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from kcal.calibrators.binary.one_versus_rest import Maps, OneVersusRestModel
from kcal.calibrators.fit_warnings import warn_of_early_stop
from kcal.calibrators.logit_base import Floats
from kcal.calibrators.model_state import ragged
from kcal.validation import ALMOST_ZERO

MAX_ITERATIONS = 1000
LARGEST_LOG_ODDS = float(-np.log(ALMOST_ZERO))
"""Log-odds are clipped here, where p or 1 − p is 1e-12."""


@dataclass(frozen=True)
class LogisticModel(OneVersusRestModel):
    """q = σ(a·s + c), or q = σ(a·log p − b·log(1 − p) + c) if there are three coefficients."""

    coefficients: Maps = ragged()

    def log_map(self, scores: Floats, place: int) -> Floats:
        """Return log q of scores (n,)."""
        coefficients = self.coefficients[place].numpy()
        return np.asarray(log_expit(logistic_features(scores, len(coefficients)) @ coefficients), dtype=np.float64)

    def is_consistent(self, n_classes: int) -> bool:
        """Return whether all curves have two or all have three coefficients."""
        return {len(curve) for curve in self.coefficients} in ({2}, {3})


def logistic_features(scores: Floats, count: int) -> Floats:
    """Return s and 1, (n, 2), or log p, −log(1 − p) and 1, (n, 3), of log-odds s."""
    clipped = np.clip(scores, -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)
    parts = [clipped] if count == 2 else [log_expit(clipped), -log_expit(-clipped)]
    return np.stack([*parts, np.ones_like(clipped)], axis=1)


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

    penalty/2 times the squared distance from ``start`` is added to the summed loss; ``lowest`` are lower bounds.
    """
    total, centre = weights.sum(), np.asarray(start, dtype=np.float64)

    def loss(coefficients: Floats) -> tuple[float, Floats]:
        scores = features @ coefficients
        away = coefficients - centre
        value = weights @ (np.logaddexp(0.0, scores) - targets * scores) + penalty / 2 * away @ away
        gradient = (weights * (expit(scores) - targets)) @ features + penalty * away
        return float(value / total), gradient / total

    options = {"maxiter": MAX_ITERATIONS, "ftol": 1e-15, "gtol": 1e-9}
    bounds = None if lowest is None else [(bound, None) for bound in lowest]
    solution = minimize(loss, centre, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    if solution.nit >= MAX_ITERATIONS:
        warn_of_early_stop("a logistic curve", MAX_ITERATIONS)
    return np.asarray(solution.x, dtype=np.float64)
