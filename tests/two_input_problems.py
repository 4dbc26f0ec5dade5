"""Small calibration sets of embeddings and logits, and the temperature with a prior by brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import huber, log_softmax


def prior_penalty(log_temperature: Any) -> Any:
    """Return −log of the prior density of log T, up to a constant: normal near 0.2, exponential beyond 0.45 from it."""
    return huber(1.5, (log_temperature - 0.2) / 0.3)


def small_problem(n: int, seed: int, *, noise: float = 1.0) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return embeddings (n, 4), overconfident logits (n, 3) that know only half of them, and labels."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, n)
    embeddings = np.eye(4)[labels] * 1.5 + noise * generator.normal(size=(n, 4))
    return embeddings, 4.0 * embeddings[:, :3] * [1.0, 1.0, 0.0], labels


def label_loss(log_probs: Any, labels: Any, weights: Any) -> float:
    return -float(weights @ log_probs[np.arange(len(labels)), labels])


def penalised_loss(log_temperature: float, logits: Any, labels: Any, weights: Any) -> float:
    """Return the summed log-loss at a temperature, plus the prior."""
    scaled = log_softmax(logits * np.exp(-log_temperature), axis=1)
    return label_loss(scaled, labels, weights) + float(prior_penalty(log_temperature))


def brute_force_temperature(logits: Any, labels: Any, weights: Any = None) -> float:
    """Return the temperature with the lowest loss, by grids that become finer."""
    weights = np.ones(len(labels)) if weights is None else weights
    low, high = np.log(0.01), np.log(100.0)
    for _ in range(8):
        grid = np.linspace(low, high, 200)
        best = int(np.argmin([penalised_loss(place, logits, labels, weights) for place in grid]))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, 199)]
    return float(np.exp((low + high) / 2))


def unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def random_weights(n: int, seed: int) -> NDArray[Any]:
    """Return weights of mean 1, (n,)."""
    weights = np.random.default_rng(seed).uniform(0.5, 2.0, n)
    return np.asarray(weights / weights.mean())
