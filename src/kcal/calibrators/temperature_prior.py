"""The temperature of a calibration set, with a prior: certainty is earned.

p = softmax(z / T),   −log prior(log T) = H((log T − 0.2)/0.3),   H(a) = a²/2, from |a| = 1.5 on linear (Huber)

A calibration set on which the network makes no error fits ever better as T falls to 0, where the next error costs
infinitely much. The prior says what is known of networks before any sample: most are overconfident, few by more than a
factor of two; the tails are exponential, since some logits have another unit, such as cosines. It weighs as much as
some ten samples, and vanishes as samples grow. With n samples and no error it leaves room for about one.
"""

from __future__ import annotations

from functools import cache
from math import exp, log
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq

from kcal.calibrators.class_scores import rank_of_label, sort_classes
from kcal.samples import Floats, Index

MEAN, DEVIATION = 0.2, 0.3
"""Of the prior on log T, which is normal near its mean."""
NEAR = 1.5
"""Deviations from the mean beyond which the tails of the prior are exponential: some logits have another unit."""
LOWEST, HIGHEST = log(0.01), log(100.0)
"""Bounds of log T."""
STEPS = 13
"""Places between the prior's mean and a bound, among which the minima are looked for: there may be more than one."""
ENOUGH = 300
"""Samples from which a method without a prior stands by itself."""


def penalty_and_slope(log_temperature: Any) -> tuple[Any, Any]:
    """Return −log of the prior density, up to a constant, and its derivative in log T: Huber's function."""
    away = (np.asarray(log_temperature) - MEAN) / DEVIATION
    near = np.clip(away, -NEAR, NEAR)
    return near * (away - near / 2), near / DEVIATION


def fit_temperature(log_probs: torch.Tensor, codes: Index, weights: Floats) -> float:
    """Return the T in [0.01, 100] of highest posterior density.

    It minimises Σ_i w_i·(log-loss of softmax(z_i / T)) + the penalty of the prior, and lies between the prior's T and
    that of highest likelihood.
    """

    @cache  # ends of a bracket are asked for again
    def slope(log_temperature: float) -> float:
        return _slope_at(log_probs, codes, weights, log_temperature)

    places = np.linspace(LOWEST, MEAN, STEPS) if slope(MEAN) > 0 else np.linspace(MEAN, HIGHEST, STEPS)
    falls = np.array([slope(place) < 0 for place in places])
    minima = [brentq(slope, *places[i : i + 2], xtol=1e-10) for i in np.flatnonzero(falls[:-1] & ~falls[1:])]
    bounds = [place for place, inwards in ((places[0], not falls[0]), (places[-1], falls[-1])) if inwards]
    candidates = [*minima, *bounds]
    return exp(min(candidates, key=lambda place: -_log_density(log_probs, codes, weights, place)))


def scaled_network(log_probs: torch.Tensor, codes: Index, weights: Floats) -> dict[str, float]:
    """Return ν and T in the prediction (1 − ν)·p + ν·softmax(z / T) of a method without a prior, by their names.

    ν = max(1 − (n/300)³, 1/(n + 2)): few samples leave the scaled network; with n samples and no error, an error is
    still expected about once in n + 2, and of the classes that the scaled network finds likely.
    """
    n, (descending, order) = len(codes), sort_classes(log_probs)  # sorted, so that the order of classes plays no part
    temperature = fit_temperature(descending, rank_of_label(order, codes).numpy(), weights)
    return {"network_share": max(1 - (n / ENOUGH) ** 3, 1 / (n + 2)), "network_temperature": temperature}


def _log_density(log_probs: torch.Tensor, codes: Index, weights: Floats, log_temperature: float) -> float:
    """Return the logarithm of the posterior density of log T, up to a constant."""
    log_p = torch.log_softmax(log_probs * exp(-log_temperature), dim=1)
    own = log_p[torch.arange(len(codes)), torch.from_numpy(codes)]
    return float(torch.from_numpy(weights) @ own) - float(penalty_and_slope(log_temperature)[0])


def _slope_at(log_probs: torch.Tensor, codes: Index, weights: Floats, log_temperature: float) -> float:
    """Return the derivative in log T of the summed log-loss plus the penalty."""
    scaled = log_probs * exp(-log_temperature)
    own = scaled[torch.arange(len(codes)), torch.from_numpy(codes)]
    expected = torch.softmax(scaled, dim=1).mul_(scaled).sum(dim=1)
    return float(torch.from_numpy(weights) @ (own - expected)) + float(penalty_and_slope(log_temperature)[1])
