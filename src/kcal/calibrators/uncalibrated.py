"""The network's own probabilities as a calibrator, the baseline of every comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from kcal.calibrators.logit_base import Codes, Floats, LogitCalibrator
from kcal.calibrators.model_state import LogitModel


@dataclass(frozen=True)
class IdentityModel(LogitModel):
    """softmax(z)."""

    def log_probs(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return the network's log probabilities, (n, n_classes)."""
        return log_probs


class Uncalibrated(LogitCalibrator):
    """Softmax of the logits, unchanged; ``fit`` checks the data and stores the classes.

    Parameters
    ----------
    representation, seed
        As in :class:`TemperatureScaling`.
    """

    method: ClassVar[str] = "uncal"
    preserves_order: ClassVar[bool] = True
    model_class = IdentityModel

    def _fit_log_probs(self, log_probs: torch.Tensor, codes: Codes, weights: Floats) -> IdentityModel:
        return IdentityModel()
