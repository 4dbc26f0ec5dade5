"""Predictions with labels drawn from them, and betting done gambler by gambler and row by row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from kcal.monitoring.betting import DECAY, KEPT, LIMIT, PATIENCE, STAKES

Floats = NDArray[np.float64]


def random_probs(n: int, n_classes: int, seed: int, sharpness: float = 2.0) -> Floats:
    return np.asarray(softmax(sharpness * np.random.default_rng(seed).normal(size=(n, n_classes)), axis=1))


def drawn_labels(probs: Floats, seed: int) -> NDArray[np.int64]:
    return np.asarray((probs.cumsum(axis=1) > np.random.default_rng(seed).random((len(probs), 1))).argmax(axis=1))


def slow_wealth(payoffs: Floats, lows: Floats, highs: Floats, fee: float = 0.0) -> list[float]:
    """Return the wealth after each row of one game; the arguments are (n,)."""
    staked = [(1 - KEPT) / len(STAKES)] * len(STAKES)
    kept, wealth = KEPT, []
    for row, (payoff, low, high) in enumerate(zip(payoffs, lows, highs, strict=True), 1):
        for place, stake in enumerate(STAKES):
            bound = LIMIT / (abs(low) + fee) if stake > 0 else LIMIT / (abs(high) + fee)
            used = np.sign(stake) * min(abs(stake), bound)
            staked[place] *= 1 + used * payoff - abs(used) * fee
        left = KEPT * (1 + row / PATIENCE) ** -DECAY
        staked = [each + (kept - left) / len(STAKES) for each in staked]
        kept = left
        wealth.append(kept + sum(staked))
    return wealth
