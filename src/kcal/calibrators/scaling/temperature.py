"""Temperature scaling, p = softmax(z / T): one number for all classes."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import ClassVar

import torch
from scipy.optimize import brentq

from kcal.calibrators.logit_base import Codes, Floats, LogitCalibrator, fitted
from kcal.calibrators.model_state import LogitModel
from kcal.errors import ConvergenceWarning, warn

LOWEST, HIGHEST = 0.01, 100.0


@dataclass(frozen=True)
class TemperatureModel(LogitModel):
    """softmax(z / T)."""

    temperature: float

    def scores(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return unnormalised log probabilities, (n, n_classes), in the precision of the input."""
        return log_probs / self.temperature

    def log_probs(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return calibrated log probabilities, (n, n_classes)."""
        return torch.log_softmax(self.scores(log_probs), dim=1)

    def summary(self) -> dict[str, str]:
        """Return the temperature for display."""
        return {"temperature": f"{self.temperature:.4g}"}


class TemperatureScaling(LogitCalibrator):
    """Divide all logits by one temperature, the minimiser of the log-loss on the calibration set.

    The loss is convex in 1/T, so that the root of its derivative on T in [0.01, 100], found by Brent's method, is the
    minimiser. If the minimiser lies at a bound (separable data, or uninformative logits), a warning says so.

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

    method: ClassVar[str] = "ts"
    preserves_order: ClassVar[bool] = True
    model_class = TemperatureModel
    model_: TemperatureModel
    temperature_ = fitted("temperature")

    def _fit_log_probs(self, log_probs: torch.Tensor, codes: Codes, weights: Floats) -> TemperatureModel:
        return fit_temperature(log_probs, codes, weights)


def fit_temperature(log_probs: torch.Tensor, codes: Codes, weights: Floats) -> TemperatureModel:
    """Return the T in [0.01, 100] that minimises the weighted mean log-loss of softmax(log_probs / T)."""
    shares = torch.from_numpy(weights / weights.sum())
    own = log_probs[torch.arange(len(codes)), torch.from_numpy(codes)]

    def slope(log_temperature: float) -> float:
        """Return the derivative of the loss in 1/T: the score expected under the model, less the score of the label."""
        probs = torch.softmax(log_probs * exp(-log_temperature), dim=1)
        return float(shares @ (probs.mul_(log_probs).sum(dim=1) - own))

    if not bool((log_probs != log_probs[:, :1]).any()):
        return TemperatureModel(1.0)  # every row is constant, so that all temperatures give the same
    if slope(log(LOWEST)) <= 0:
        return _at_bound(LOWEST, "the logits separate the classes, so that no temperature is low enough")
    if slope(log(HIGHEST)) >= 0:
        return _at_bound(HIGHEST, "the logits tell nothing about the labels, so that no temperature is high enough")
    return TemperatureModel(exp(brentq(slope, log(LOWEST), log(HIGHEST), xtol=1e-10)))


def _at_bound(bound: float, reason: str) -> TemperatureModel:
    warn(
        f"The temperature stopped at its bound, {bound}: {reason}. Check logits and labels: integers are columns.",
        ConvergenceWarning,
    )
    return TemperatureModel(bound)
