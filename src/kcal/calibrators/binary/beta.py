"""Beta calibration: the curve that is right if scores of positives and of negatives follow beta distributions.

q_k = σ(a_k·log p_k − b_k·log(1 − p_k) + c_k),   a_k, b_k ≥ 0,   output_k = q_k / Σ_j q_j
"""

from __future__ import annotations

from math import isfinite
from numbers import Real
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit

from kcal.calibrators.binary.one_versus_rest import Floats, OneVersusRest
from kcal.calibrators.binary.platt import FARTHEST, fit_logistic
from kcal.errors import InvalidInputError

IDENTITY = (1.0, 1.0, 0.0)
"""a, b and c of the map that changes nothing."""


class BetaCalibration(OneVersusRest):
    """Fit a beta-calibration curve to each class against the rest, then normalise.

    a = b = 1 and c = 0 changes nothing; a = b is Platt scaling. The loss is convex and solved with a, b ≥ 0 exactly.

    Parameters
    ----------
    penalty : float
        penalty/2·((a − 1)² + (b − 1)² + c²) is added to the summed log-loss: a normal prior around the curve that
        changes nothing, as strong as one sample or so. It keeps the curve of a class with few or separable samples
        finite and vanishes as samples grow; 0 is the published loss.
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
        a_k, b_k and c_k of each curve.
    """

    method: ClassVar[str] = "beta"
    parts: ClassVar[tuple[str, ...]] = ("coefficients",)
    coefficients_: list[Floats]

    def __init__(
        self, *, penalty: float = 1.0, maps: str = "auto", representation: str = "logits", seed: int = 0
    ) -> None:
        self.penalty = penalty
        self.maps = maps
        self.representation = representation
        self.seed = seed

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_penalty(self.penalty)

    def _fit_map(self, scores: Floats, hits: NDArray[np.bool_], weights: Floats) -> tuple[Floats, ...]:
        targets = hits.astype(np.float64)
        return (
            fit_logistic(
                _features(scores), targets, weights, start=IDENTITY, penalty=self.penalty, lowest=(0.0, 0.0, None)
            ),
        )

    def _log_map(self, scores: Floats, *parts: Floats) -> Floats:
        return np.asarray(log_expit(_features(scores) @ parts[0]), dtype=np.float64)

    def _is_map(self, *parts: Floats) -> bool:
        return len(parts[0]) == 3 and bool((parts[0][:2] >= 0).all())


def check_penalty(penalty: object) -> None:
    """Refuse a penalty that is no number of at least 0."""
    if not isinstance(penalty, Real) or isinstance(penalty, bool) or not isfinite(penalty) or penalty < 0:
        raise InvalidInputError(f"penalty must be a finite number, at least 0; got {penalty!r}.")


def _features(scores: Floats) -> Floats:
    """Return log p, −log(1 − p) and 1, (n, 3), of log-odds."""
    clipped = np.clip(scores, -FARTHEST, FARTHEST)
    return np.stack([log_expit(clipped), -log_expit(-clipped), np.ones_like(clipped)], axis=1)
