"""A temperature that depends on the entropy of the prediction: two numbers on top of a pool.

log p′ ∝ exp(g·(level + slope·(u − middle)))·log p,   u = entropy of p over log K, g the gate

One temperature cannot sharpen predictions that are nearly always right and soften uncertain ones at the same time;
pooled estimates need that. The ranking of the classes does not change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

Floats = NDArray[np.float64]

LEVEL_SPREAD = 0.3
"""Prior standard deviation of the level."""
MAX_LEVEL, MAX_SLOPE = 1.5, 5.0
LOWEST_LOG_PROB = -1e30
"""In place of the logarithm of 0."""


@dataclass(frozen=True)
class Sharpness:
    """Logarithm of the exponent of a prediction: ``level`` at the entropy ``middle``, and its ``slope``."""

    level: float = 0.0
    slope: float = 0.0
    middle: float = 0.0

    def sharpen(self, log_probs: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return log probabilities, (n, n_classes), sharpened as far as the ``gate``, (n, 1), is open."""
        if self.level == 0 and self.slope == 0:
            return log_probs
        deviations = (relative_entropy(log_probs) - self.middle)[:, None]
        exponents = torch.exp(gate * (self.level + self.slope * deviations))
        return torch.log_softmax(exponents * log_probs, dim=1)


def relative_entropy(log_probs: torch.Tensor) -> torch.Tensor:
    """Return entropies divided by log K, (n,): 0 for certainty, 1 for the uniform distribution."""
    entropies = -(log_probs.exp() * log_probs.clamp_min(torch.finfo(log_probs.dtype).min)).sum(dim=1)
    return entropies / float(np.log(log_probs.shape[1]))


def fit_sharpness(
    log_probs: torch.Tensor,
    codes: NDArray[np.int64],
    weights: Floats,
    gate: torch.Tensor,
    *,
    spread: float,
    efficiency: float = 1.0,
) -> Sharpness:
    """Return the sharpness with the lowest penalised log-loss, from out-of-fold log probabilities, (n, n_classes).

    ``gate``, (n, 1), is the share of the pool in a prediction, ``spread`` the prior standard deviation of the slope (0
    for no sharpening), ``efficiency`` a factor of the log-likelihood, below 1 where samples are not independent.
    """
    if spread == 0:
        return Sharpness()
    rows, classes = torch.arange(len(codes)), torch.from_numpy(codes)
    log_probs = log_probs.clamp_min(LOWEST_LOG_PROB)
    shares = torch.from_numpy(weights / weights.sum())
    entropies = relative_entropy(log_probs)
    middle = float(shares @ entropies)
    features = torch.stack([gate[:, 0], gate[:, 0] * (entropies - middle)])
    spreads, n_effective = np.array([LEVEL_SPREAD, spread]), efficiency * float(weights.sum())

    def loss(point: Floats) -> tuple[float, Floats]:
        exponents = torch.exp(torch.from_numpy(point) @ features)
        sharpened = torch.log_softmax(exponents[:, None] * log_probs, dim=1)
        value = -float(shares @ sharpened[rows, classes])
        expected = (sharpened.exp() * log_probs).sum(dim=1)
        gradient = (features @ (shares * exponents * (expected - log_probs[rows, classes]))).numpy()
        scaled = point / spreads
        return value + float(scaled @ scaled) / (2 * n_effective), gradient + scaled / spreads / n_effective

    bounds = [(-MAX_LEVEL, MAX_LEVEL), (-MAX_SLOPE, MAX_SLOPE)]
    level, slope = minimize(loss, np.zeros(2), jac=True, method="L-BFGS-B", bounds=bounds).x
    return Sharpness(float(level), float(slope), middle)
