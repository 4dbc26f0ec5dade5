"""Ensemble temperature scaling: a mixture of scaled, unscaled and uniform probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import ClassVar

import numpy as np
import torch
from scipy.optimize import minimize

from kcal.calibrators.logit_base import Codes, Floats, LogitCalibrator, fitted
from kcal.calibrators.model_state import LogitModel, tensor
from kcal.calibrators.temperature_prior import fit_temperature
from kcal.errors import ConvergenceWarning, warn
from kcal.validation import ALMOST_ZERO

LARGEST_GAP = 1e-9
"""The log-loss of the fitted weights exceeds the minimum by at most this."""
MAX_STEPS = 10_000


@dataclass(frozen=True)
class EnsembleModel(LogitModel):
    """w₁·softmax(z / T) + w₂·softmax(z) + w₃/K."""

    temperature: float
    weights: torch.Tensor = tensor(3)

    def log_probs(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return calibrated log probabilities, (n, n_classes)."""
        parts = mixture_parts(log_probs, self.temperature)
        return torch.log_softmax(torch.logsumexp(parts + self.weights.log()[:, None, None], dim=0), dim=1)

    def summary(self) -> dict[str, str]:
        """Return temperature and weights for display."""
        names = ("scaled", "unscaled", "uniform")
        shares = ", ".join(f"{name} {weight:.3f}" for name, weight in zip(names, self.weights.tolist(), strict=True))
        return {"temperature": f"{self.temperature:.4g}", "weights": shares}


class EnsembleTemperatureScaling(LogitCalibrator):
    """Mix temperature-scaled probabilities with the network's own and with uniform ones.

    p = w₁·softmax(z / T) + w₂·softmax(z) + w₃/K,   w ≥ 0, Σ w = 1

    T is that of temperature scaling; the weights then minimise the log-loss of the mixture, which is convex in them.
    Every part ranks the classes alike, so that the order of the classes, and the accuracy, never changes.

    Parameters
    ----------
    representation, seed
        As in :class:`TemperatureScaling`.

    Attributes
    ----------
    temperature_ : float
        T; above 1 for an overconfident network.
    weights_ : array, (3,)
        Weights of the scaled, the network's own and the uniform probabilities.
    """

    method: ClassVar[str] = "ets"
    preserves_order: ClassVar[bool] = True
    model_class = EnsembleModel
    temperature_ = fitted("temperature")
    weights_ = fitted("weights")

    def _fit_log_probs(self, log_probs: torch.Tensor, codes: Codes, weights: Floats) -> EnsembleModel:
        temperature = fit_temperature(log_probs, codes, weights)
        own = mixture_parts(log_probs, temperature)[:, torch.arange(len(codes)), torch.from_numpy(codes)]  # (3, n)
        return EnsembleModel(temperature, torch.from_numpy(fit_mixture(np.exp(own.numpy().T), weights)))


def mixture_parts(log_probs: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the log probabilities of the three parts, (3, n, n_classes)."""
    scaled = torch.log_softmax(log_probs / temperature, dim=1)
    return torch.stack([scaled, log_probs, torch.full_like(log_probs, -log(log_probs.shape[1]))])


def fit_mixture(densities: Floats, weights: Floats) -> Floats:
    """Return the weights of the parts, (m,), that minimise the weighted mean of −log(densities @ weights).

    With r_j the mean of densities_j / (densities @ weights), the loss exceeds the minimum by at most log(max_j r_j).
    SLSQP comes close; multiplying the weights by r, which never increases the loss, then converges.
    """
    densities, importance = np.maximum(densities, ALMOST_ZERO), weights / weights.sum()

    def loss(shares: Floats) -> tuple[float, Floats]:
        mixed = np.maximum(densities @ shares, ALMOST_ZERO)
        return -float(importance @ np.log(mixed)), -(importance / mixed) @ densities

    n_parts = densities.shape[1]
    solution = minimize(
        loss,
        np.full(n_parts, 1 / n_parts),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * n_parts,
        constraints={"type": "eq", "fun": lambda shares: shares.sum() - 1, "jac": np.ones_like},
        options={"maxiter": 500, "ftol": 1e-15},
    )
    shares: Floats = np.maximum(solution.x, ALMOST_ZERO)
    shares /= shares.sum()
    for _ in range(MAX_STEPS):
        ratios = (importance / (densities @ shares)) @ densities
        if np.log(ratios.max()) <= LARGEST_GAP:
            return shares
        shares = shares * ratios
    warn("The weights of the mixture did not converge.", ConvergenceWarning)
    return shares
