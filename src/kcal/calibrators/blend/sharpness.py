"""A temperature that depends on the entropy of the prediction: two numbers on top of a pool.

log p′ ∝ exp(g·(level + slope·(u − middle)))·log p,   u = entropy of p over log K, g the gate

One temperature cannot sharpen predictions that are nearly always right and soften uncertain ones at the same time;
pooled estimates need that. The ranking of the classes does not change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.model_state import StoredModel
from kcal.calibrators.quasi_newton import minimise

Number = float | torch.Tensor

LEVEL_SPREAD = 0.3
"""Prior standard deviation of the level."""
BOUNDS = ((-1.5, 1.5), (-5.0, 5.0))
"""Of level and slope."""
LOWEST_LOG_PROB = -1e30
"""In place of the logarithm of 0."""


@dataclass(frozen=True)
class Sharpness(StoredModel):
    """Logarithm of the exponent of a prediction: ``level`` at the entropy ``middle``, and its ``slope``."""

    level: float = 0.0
    slope: float = 0.0
    middle: float = 0.0

    def sharpen(self, log_probs: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return log probabilities, (n, n_classes), sharpened as far as the ``gate``, (n, 1), is open."""
        if self.level == 0 and self.slope == 0:
            return log_probs
        return sharpened(log_probs, gate, self.level, self.slope, self.middle)

    def exponents(self, log_probs: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return the exponents of predictions, (n, 1): 1 where nothing is sharpened."""
        return exponents(log_probs, gate, self.level, self.slope, self.middle)


def sharpened(log_probs: torch.Tensor, gate: torch.Tensor, level: Number, slope: Number, middle: float) -> torch.Tensor:
    """Return the documented formula, (n, n_classes)."""
    return torch.log_softmax(exponents(log_probs, gate, level, slope, middle) * log_probs, dim=1)


def exponents(log_probs: torch.Tensor, gate: torch.Tensor, level: Number, slope: Number, middle: float) -> torch.Tensor:
    """Return the factors of log probabilities in the documented formula, (n, 1)."""
    deviations = (relative_entropy(log_probs) - middle)[:, None]
    return torch.exp(gate * (level + slope * deviations))


def relative_entropy(log_probs: torch.Tensor) -> torch.Tensor:
    """Return entropies divided by log K, (n,): 0 for certainty, 1 for the uniform distribution."""
    entropies = -(log_probs.exp() * log_probs.clamp_min(LOWEST_LOG_PROB)).sum(dim=1)
    return entropies / math.log(log_probs.shape[1])


def fit_sharpness(
    log_probs: torch.Tensor,
    codes: NDArray[np.int64],
    weights: NDArray[np.float64],
    gate: torch.Tensor,
    *,
    spread: float,
    efficiency: float,
) -> Sharpness:
    """Return the sharpness with the lowest penalised log-loss, from out-of-fold log probabilities, (n, n_classes).

    ``spread`` is the prior standard deviation of the slope (0 for no sharpening), ``efficiency`` a factor of the
    log-likelihood, below 1 where samples are not independent.
    """
    if spread == 0:
        return Sharpness()
    log_probs = log_probs.clamp_min(LOWEST_LOG_PROB)
    shares = torch.from_numpy(weights / weights.sum())
    middle = float(shares @ relative_entropy(log_probs))
    level, slope = (torch.zeros(1, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def evaluate() -> float:
        own = sharpened(log_probs, gate, level, slope, middle)[torch.arange(len(codes)), codes]
        penalty = (level / LEVEL_SPREAD).square() + (slope / spread).square()
        value = penalty.sum() / (2 * efficiency * weights.sum()) - shares @ own
        torch.autograd.backward(value)
        return float(value.detach())

    minimise(evaluate, [level, slope], bounds=BOUNDS, iterations=100, tolerance=2.2e-9, gradient_tolerance=1e-5)
    return Sharpness(level.item(), slope.item(), middle)
