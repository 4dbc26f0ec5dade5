"""The temperature of few samples: a weak prior keeps a calibration set without errors from claiming certainty."""

from __future__ import annotations

from math import exp

import numpy as np
import torch
from scipy.optimize import brentq

from kcal.calibrators.logit_base import Codes, Floats

LOG_TEMPERATURE_SPREAD = 0.5
"""σ, the standard deviation of the normal prior on log T; its mean is 0."""
LOG_TEMPERATURES = np.linspace(np.log(0.01), np.log(100.0), 25)
"""Interval of log T, in steps among which the minima are looked for: there may be more than one."""


def fit_temperature_with_prior(log_probs: torch.Tensor, codes: Codes, weights: Floats) -> float:
    """Return the T in [0.01, 100] that minimises Σ_i w_i·(log-loss of softmax(z_i / T)) + (log T)²/(2σ²)."""
    importance, labels = torch.from_numpy(weights), torch.from_numpy(codes)[:, None]

    def loss_and_slope(log_temperature: float) -> tuple[float, float]:
        """Return the loss and its derivative in log T."""
        scaled = log_probs * exp(-log_temperature)
        log_p = torch.log_softmax(scaled, dim=1)
        own = scaled.gather(1, labels)[:, 0]
        rise = own - (log_p.exp() * scaled).sum(dim=1)
        penalty = 0.5 * (log_temperature / LOG_TEMPERATURE_SPREAD) ** 2
        loss = penalty - float(importance @ log_p.gather(1, labels)[:, 0])
        return loss, float(importance @ rise) + log_temperature / LOG_TEMPERATURE_SPREAD**2

    def slope(log_temperature: float) -> float:
        return loss_and_slope(log_temperature)[1]

    candidates = [LOG_TEMPERATURES[0], LOG_TEMPERATURES[-1]]
    falls = np.array([slope(place) < 0 for place in LOG_TEMPERATURES])
    candidates += [
        brentq(slope, LOG_TEMPERATURES[place], LOG_TEMPERATURES[place + 1], xtol=1e-12)
        for place in np.flatnonzero(falls[:-1] & ~falls[1:])
    ]
    return exp(min(candidates, key=lambda place: loss_and_slope(place)[0]))
