"""Temperature scaling, p = softmax(z / T): one number for all classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from kcal.calibrators import temperature_prior
from kcal.calibrators.logit_base import Codes, Floats, LogitCalibrator, fitted
from kcal.calibrators.model_state import LogitModel


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
    """Divide all logits by one temperature, the most probable one given the calibration set.

    T in [0.01, 100] minimises the summed log-loss plus H((log T − 0.2)/0.3), H(a) = a²/2, from |a| = 1.5 on linear: a
    prior on log T, without which a calibration set without errors would have T = 0 and probabilities of 0 and 1. It
    vanishes as samples grow.

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
    """Return temperature scaling by the T of highest posterior density."""
    return TemperatureModel(temperature_prior.fit_temperature(log_probs, codes, weights))
