"""A temperature for sure answers and another for unsure ones: two numbers on top of a pool.

log p′ ∝ exp(g·(level + slope·(u − middle)))·log p,   u = entropy of p over log K, g the share of the pool in the answer

One temperature cannot make a model both surer where it is nearly always right and less sure where it wavers; pooled
estimates need that. No class changes place with another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

Floats = NDArray[np.float64]

LEVEL_SPREAD = 0.3
"""How far the logarithm of the temperature is expected to lie from 0, as a standard deviation."""
LARGEST_LEVEL, LARGEST_SLOPE = 1.5, 5.0
IMPOSSIBLE = -1e30
"""In place of the logarithm of 0."""


@dataclass(frozen=True)
class Sharpness:
    """How much surer (above 0) or less sure an answer becomes: ``level``, and ``slope`` by its entropy."""

    level: float = 0.0
    slope: float = 0.0
    middle: float = 0.0  # the entropy at which the level holds

    def sharpened(self, logarithms: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
        """Return log probabilities, (n, n_classes), sharpened where calibration samples are ``near``, (n, 1)."""
        if self.level == 0 and self.slope == 0:
            return logarithms
        unsure = (unsureness(logarithms) - self.middle)[:, None]
        powers = torch.exp(near * (self.level + self.slope * unsure))
        return torch.log_softmax(powers * logarithms, dim=1)


def unsureness(logarithms: torch.Tensor) -> torch.Tensor:
    """Return entropies over that of a blind guess, (n,): 0 is sure of one class, 1 knows nothing."""
    entropies = -(logarithms.exp() * logarithms.clamp_min(torch.finfo(logarithms.dtype).min)).sum(dim=1)
    return entropies / float(np.log(logarithms.shape[1]))


def fit_sharpness(
    logarithms: torch.Tensor,
    codes: NDArray[np.int64],
    weights: Floats,
    near: torch.Tensor,
    *,
    spread: float,
    worth: float,
) -> Sharpness:
    """Return the sharpness with the least penalised log-loss.

    Parameters
    ----------
    logarithms : (n, n_classes) tensor, double
        Log probabilities of samples that had no part in them.
    codes, weights : (n,) arrays
        Their classes, and how many samples each counts for.
    near : (n, 1) tensor
        The share of the pool in the answer.
    spread : float
        How far the slope is expected to lie from 0, as a standard deviation; 0 for no sharpening at all.
    worth : float
        The share of what a sample tells that is not told by the others of its group.
    """
    if spread == 0:
        return Sharpness()
    rows, classes = torch.arange(len(codes)), torch.from_numpy(codes)
    logarithms = logarithms.clamp_min(IMPOSSIBLE)
    shares = torch.from_numpy(weights / weights.sum())
    unsure = unsureness(logarithms)
    middle = float(shares @ unsure)
    slants = torch.stack([near[:, 0], near[:, 0] * (unsure - middle)])
    spreads, counted = np.array([LEVEL_SPREAD, spread]), worth * float(weights.sum())

    def loss(point: Floats) -> tuple[float, Floats]:
        powers = torch.exp(torch.from_numpy(point) @ slants)
        sharpened = torch.log_softmax(powers[:, None] * logarithms, dim=1)
        value = -float(shares @ sharpened[rows, classes])
        expected = (sharpened.exp() * logarithms).sum(dim=1)
        slope = (slants @ (shares * powers * (expected - logarithms[rows, classes]))).numpy()
        pull = point / spreads
        return value + float(pull @ pull) / (2 * counted), slope + pull / spreads / counted

    bounds = [(-most, most) for most in (LARGEST_LEVEL, LARGEST_SLOPE)]
    found = minimize(loss, np.zeros(2), jac=True, method="L-BFGS-B", bounds=bounds).x
    return Sharpness(float(found[0]), float(found[1]), middle)
