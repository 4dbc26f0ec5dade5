"""Temperature scaling: one number for all classes, found exactly.

p = softmax(z / T),   T minimises the mean log-loss
"""

from __future__ import annotations

import warnings
from math import exp, log
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.base import Calibrator, CalibratorState, refuse_extra
from kcal.calibrators.logits import encode_columns, log_probabilities
from kcal.errors import ConvergenceWarning, FileFormatError
from kcal.validation import check_weights

LOWEST, HIGHEST = 0.01, 100.0


class TemperatureScaling(Calibrator):
    """Divide all logits by one temperature, the minimiser of the log-loss on the calibration set.

    The loss is convex in 1/T, so that the root of its slope, found by bisection and interpolation on
    T in [0.01, 100], is the minimiser. Where it lies at a bound (separable data, or logits that tell nothing) a
    warning says so.

    Parameters
    ----------
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Accepted by every calibrator; nothing here is random.

    Attributes
    ----------
    temperature_ : float
        T; above 1 for an overconfident network.
    """

    inputs: ClassVar[str] = "logits"
    method: ClassVar[str] = "ts"
    preserves_order: ClassVar[bool] = True
    temperature_: float

    def __init__(self, *, representation: str = "logits", seed: int = 0) -> None:
        self.representation = representation
        self.seed = seed

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, classes: Any = None) -> Self:
        """Find the temperature for logits ``X`` (n, n_classes) and labels ``y``; integer labels are columns."""
        rows, _ = self._check_rows(X, fitting=True)
        self._remember(rows)
        logits = log_probabilities(rows, self.representation).numpy()
        codes, self.classes_ = encode_columns(y, len(logits), logits.shape[1], classes)
        weights = np.ones(len(logits)) if sample_weight is None else check_weights(sample_weight, len(logits))
        self.temperature_ = solve_temperature(logits, codes, weights)
        return self

    def _log_probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(log_probabilities(rows, self.representation) / self.temperature_, dim=1)

    def state(self) -> CalibratorState:
        """Return what the fitted calibrator is made of."""
        check_is_fitted(self)
        return self._state(self.get_params(), {"temperature": self.temperature_})

    @classmethod
    def from_state(cls, state: CalibratorState, **extra: Any) -> Self:
        """Return the fitted calibrator that ``state`` describes."""
        refuse_extra(cls, extra)
        calibrator = cls(**state.parameters)._restore(state)
        calibrator.temperature_ = float(state.values["temperature"])
        if not LOWEST <= calibrator.temperature_ <= HIGHEST:
            raise FileFormatError(f"the stored temperature is out of bounds: {calibrator.temperature_!r}.")
        return calibrator


def solve_temperature(logits: NDArray[np.float64], codes: NDArray[np.int64], weights: NDArray[np.float64]) -> float:
    """Return the T in [0.01, 100] that minimises the weighted mean log-loss of softmax(logits / T)."""
    shares = weights / weights.sum()
    own = np.take_along_axis(logits, codes[:, None], axis=1)[:, 0]

    def slope(log_temperature: float) -> float:
        """Return the derivative of the loss in 1/T: the logit expected under the model, less the own logit."""
        scaled = logits * exp(-log_temperature)
        probabilities = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        return float(shares @ ((probabilities * logits).sum(axis=1) - own))

    if not np.ptp(logits, axis=1).any():
        return 1.0  # all logits of a row are equal, and every temperature is the same
    steepest, flattest = slope(log(LOWEST)), slope(log(HIGHEST))
    if steepest <= 0:
        return _at_bound(LOWEST, "the logits already separate the classes, so no temperature is low enough")
    if flattest >= 0:
        return _at_bound(HIGHEST, "the logits tell nothing about the labels, so no temperature is high enough")
    return exp(brentq(slope, log(LOWEST), log(HIGHEST), xtol=1e-10))


def _at_bound(bound: float, reason: str) -> float:
    warnings.warn(
        f"The temperature stopped at its bound, {bound}: {reason}. Check logits and labels: integers are columns.",
        ConvergenceWarning,
        stacklevel=4,
    )
    return bound
