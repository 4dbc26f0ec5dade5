"""Small synthetic problems with known answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, repr=False)
class Problem:
    """Three Gaussian classes with overconfident logits: calibration, training and test parts."""

    embeddings: NDArray[np.float64]
    logits: NDArray[np.float64]
    labels: NDArray[np.int64]
    train_embeddings: NDArray[np.float64]
    train_logits: NDArray[np.float64]
    train_labels: NDArray[np.int64]
    test_embeddings: NDArray[np.float64]
    test_logits: NDArray[np.float64]
    test_labels: NDArray[np.int64]
    test_probabilities: NDArray[np.float64]


CENTRES = np.array([[1.2, 0.0, 0, 0, 0, 0], [-0.6, 1.0, 0, 0, 0, 0], [-0.6, -1.0, 0, 0, 0, 0]])


def make_problem(seed: int = 0, n: int = 240, n_train: int = 400, n_test: int = 600) -> Problem:
    generator = np.random.default_rng(seed)
    parts = {}
    for name, size in (("", n), ("train_", n_train), ("test_", n_test)):
        labels = generator.integers(0, 3, size)
        embeddings = CENTRES[labels] + generator.normal(size=(size, 6))
        log_odds = embeddings @ CENTRES.T - 0.5 * (CENTRES**2).sum(axis=1)  # the true ones
        parts[name + "embeddings"], parts[name + "labels"], parts[name + "logits"] = embeddings, labels, 3.0 * log_odds
        if name == "test_":
            odds = np.exp(log_odds)
            parts["test_probabilities"] = odds / odds.sum(axis=1, keepdims=True)
    return Problem(**parts)


def warped(n: int, seed: int, n_classes: int = 4) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Return logits, labels and true probabilities: the truth is one rising, concave warp of each log probability."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(scale=3.0, size=(n, n_classes))
    scores = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    true = -2.0 * np.log1p(-scores / 2.0)
    labels = (true + generator.gumbel(size=true.shape)).argmax(axis=1)
    odds = np.exp(true)
    return logits, labels, odds / odds.sum(axis=1, keepdims=True)
