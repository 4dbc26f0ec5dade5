"""Platt scaling and beta calibration: a logistic curve of the score of each class.

Platt   q_k = σ(a_k·(log p_k − log(1 − p_k)) + c_k)
beta    q_k = σ(a_k·log p_k − b_k·log(1 − p_k) + c_k),   a_k, b_k ≥ 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.special import expit

from kcal.calibrators.binary.one_versus_rest import Hits, OneVersusRest, OneVersusRestModel
from kcal.calibrators.class_scores import Tensors
from kcal.calibrators.logit_base import LARGEST_PENALTY, Floats, fitted
from kcal.calibrators.model_state import ragged
from kcal.calibrators.quasi_newton import minimise_convex
from kcal.validation import ALMOST_ZERO, check_number, parameter

LARGEST_LOG_ODDS = float(-np.log(ALMOST_ZERO))
"""Log-odds are clipped here, where p or 1 − p is 1e-12."""


@dataclass(frozen=True)
class LogisticModel(OneVersusRestModel):
    """q = σ(a·s + c), or q = σ(a·log p − b·log(1 − p) + c) if there are three coefficients."""

    coefficients: Tensors = ragged()

    def log_map(self, scores: torch.Tensor) -> torch.Tensor:
        """Return log q_k, (n, n_classes)."""
        coefficients = torch.stack(self.coefficients)  # (n_maps, 2 or 3)
        return log_sigmoid((logistic_features(scores, coefficients.shape[1]) * coefficients).sum(dim=-1))


class PlattScaling(OneVersusRest):
    """Fit a logistic curve to the log-odds of each class against the rest, then normalise.

    The targets are Platt's: (n₊ + 1)/(n₊ + 2) for the n₊ positives and 1/(n₋ + 2) for the n₋ negatives, so that
    separable data have a finite solution. The loss is convex and solved to high precision.

    Parameters
    ----------
    maps : "auto", "class" or "shared"
        A map per class, or one for the scores of all classes together, which needs far fewer samples per class. "auto"
        takes the one with the lower cross-validated log-loss.
    representation, seed
        As in :class:`TemperatureScaling`; the seed is that of the folds of the cross-validation.

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
        features = logistic_features(torch.from_numpy(scores), 2).numpy()
        targets = np.where(hits, (positives + 1) / (positives + 2), 1 / (negatives + 2))
        return (fit_logistic(features, targets, weights, start=[1.0, 0.0]),)


@dataclass(kw_only=True, eq=False, repr=False)
class BetaCalibration(OneVersusRest):
    """Fit a beta-calibration curve to each class against the rest, then normalise.

    It is the correct curve if the scores of positives and of negatives follow beta distributions. a = b = 1 and c = 0
    changes nothing; a = b is Platt scaling. The loss is convex and solved with a, b ≥ 0 exactly.

    Parameters
    ----------
    penalty : float
        penalty/2·((a − 1)² + (b − 1)² + c²) is added to the summed log-loss: a normal prior around the curve that
        changes nothing, about as strong as one sample. It keeps the curve of a class with few or separable samples
        finite and vanishes as samples grow; 0 is the published loss.
    maps, representation, seed
        As in :class:`PlattScaling`.

    Attributes
    ----------
    coefficients_ : list of arrays
        a_k, b_k and c_k of each curve.
    """

    method: ClassVar[str] = "beta"
    model_class = LogisticModel
    coefficients_ = fitted("coefficients")
    penalty: float = parameter(1.0, check_number, minimum=0, maximum=LARGEST_PENALTY)

    def _fit_map(self, scores: Floats, hits: Hits, weights: Floats) -> tuple[Floats, ...]:
        features = logistic_features(torch.from_numpy(scores), 3).numpy()
        targets, bounds = hits.astype(np.float64), (0.0, 0.0, None)
        return (fit_logistic(features, targets, weights, start=[1.0, 1.0, 0.0], penalty=self.penalty, lowest=bounds),)


def logistic_features(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Return s and 1, (…, 2), or log p, −log(1 − p) and 1, (…, 3), of log-odds s."""
    clipped = scores.clamp(-LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)
    parts = [clipped] if count == 2 else [log_sigmoid(clipped), -log_sigmoid(-clipped)]
    return torch.stack([*parts, torch.ones_like(clipped)], dim=-1)


def log_sigmoid(scores: torch.Tensor) -> torch.Tensor:
    """Return log σ(s)."""
    return -torch.logaddexp(torch.zeros_like(scores), -scores)


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

    bounds = None if lowest is None else [(bound, None) for bound in lowest]
    return minimise_convex(loss, centre, name="a logistic curve", bounds=bounds, ftol=1e-15, gtol=1e-9)
