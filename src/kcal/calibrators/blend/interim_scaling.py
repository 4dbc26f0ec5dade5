from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kcal.calibrators.scaling.structured import StructuredMatrixScaling
from kcal.calibrators.scaling.temperature import TemperatureScaling


@dataclass(frozen=True)
class TemperatureModel:
    temperature: float

    def scores(self, log_probs: torch.Tensor) -> torch.Tensor:
        return log_probs / self.temperature

    def log_probs(self, log_probs: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.scores(log_probs), dim=1)

    def to_state(self) -> Any:
        return {"temperature": self.temperature}, {}

    @classmethod
    def from_state(cls, values: Any, tensors: Any, n_classes: int) -> Any:
        return cls(values["temperature"])


@dataclass(frozen=True)
class LinearModel:
    weights: torch.Tensor
    bias: torch.Tensor

    def scores(self, log_probs: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias.to(log_probs), log_probs, self.weights.T.to(log_probs))

    def log_probs(self, log_probs: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.scores(log_probs), dim=1)

    def to_state(self) -> Any:
        return {}, {"weights": self.weights, "bias": self.bias}

    @classmethod
    def from_state(cls, values: Any, tensors: Any, n_classes: int) -> Any:
        return cls(tensors["weights"], tensors["bias"])


def fit_temperature(log_probs: torch.Tensor, codes: Any, weights: Any) -> TemperatureModel:
    return TemperatureModel(TemperatureScaling().fit(log_probs, codes, sample_weight=weights).temperature_)


def fit_structured_matrix(log_probs: torch.Tensor, codes: Any, weights: Any) -> LinearModel:
    fitted = StructuredMatrixScaling().fit(log_probs, codes, sample_weight=weights)
    return LinearModel(torch.from_numpy(np.array(fitted.weights_)), torch.from_numpy(np.array(fitted.bias_)))
