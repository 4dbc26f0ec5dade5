"""Two-class logits whose one score is known, for the methods that map a class's score."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def two_columns(log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return logits whose second class has these log-odds."""
    return np.stack([np.zeros_like(log_odds), log_odds], axis=1)


def draw(log_odds: NDArray[np.float64], seed: int = 0) -> NDArray[np.int64]:
    """Return labels of the second class with probability σ(log-odds)."""
    uniform = np.random.default_rng(seed).uniform(size=len(log_odds))
    return (uniform < 1 / (1 + np.exp(-log_odds))).astype(np.int64)
