"""A temperature by entropy: the minimiser of the documented loss; the ranking of classes does not change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from kcal.calibrators.blend.sharpness import LEVEL_SPREAD, Sharpness, fit_sharpness, relative_entropy


def uncertain(n: int, seed: int, *, level: float = 0.3, slope: float = -1.5) -> tuple[torch.Tensor, np.ndarray]:
    """Return log probabilities and labels drawn from their sharpened form."""
    generator = np.random.default_rng(seed)
    log_probs = torch.from_numpy(log_softmax(generator.uniform(0.2, 5, (n, 1)) * generator.normal(size=(n, 4)), axis=1))
    truth = Sharpness(level, slope, 0.4).sharpen(log_probs, torch.ones(n, 1, dtype=torch.float64)).numpy()
    return log_probs, (truth + generator.gumbel(size=truth.shape)).argmax(axis=1)


def slow_loss(level: float, slope: float, log_probs: np.ndarray, codes: np.ndarray, weights: np.ndarray,
              gate: np.ndarray, spread: float, efficiency: float) -> float:  # fmt: skip
    """Return the documented loss, sample by sample."""
    entropies = [-sum(np.exp(v) * v for v in row) / np.log(len(row)) for row in log_probs]
    middle = sum(w * u for w, u in zip(weights, entropies, strict=True)) / weights.sum()
    total = 0.0
    for row, k, w, g, u in zip(log_probs, codes, weights, gate, entropies, strict=True):
        powered = np.exp(g * (level + slope * (u - middle))) * row
        total -= w * (powered[k] - np.log(np.exp(powered).sum()))
    penalty = (level / LEVEL_SPREAD) ** 2 + (slope / spread) ** 2
    return total / weights.sum() + penalty / (2 * efficiency * weights.sum())


def test_the_fit_minimises_the_documented_loss() -> None:
    log_probs, codes = uncertain(60, 0)
    generator = np.random.default_rng(1)
    weights, gate = generator.integers(1, 4, 60).astype(float), generator.uniform(0.3, 1.0, 60)
    found = fit_sharpness(log_probs, codes, weights, torch.from_numpy(gate[:, None]), spread=0.5, efficiency=0.6)

    def loss(level: float, slope: float) -> float:
        return slow_loss(level, slope, log_probs.numpy(), codes, weights, gate, 0.5, 0.6)

    best = loss(found.level, found.slope)
    assert best < loss(0.0, 0.0) - 1e-4
    for level in np.linspace(-0.6, 0.6, 9):
        for slope in np.linspace(-1.5, 1.5, 9):
            assert best <= loss(found.level + level, found.slope + slope) + 1e-9


def test_with_many_samples_it_finds_the_parameters_they_were_drawn_from() -> None:
    log_probs, codes = uncertain(40_000, 2)
    gate = torch.ones(40_000, 1, dtype=torch.float64)
    found = fit_sharpness(log_probs, codes, np.ones(40_000), gate, spread=5.0, efficiency=1.0)
    assert found.slope == pytest.approx(-1.5, abs=0.15)
    assert found.level + found.slope * (0.4 - found.middle) == pytest.approx(0.3, abs=0.05)


def test_the_ranking_of_classes_stays_and_rows_stay_probabilities() -> None:
    log_probs, _ = uncertain(500, 3)
    made = Sharpness(0.4, -2.0, 0.3).sharpen(log_probs, torch.full((500, 1), 0.7, dtype=torch.float64))
    assert (made.argsort(dim=1) == log_probs.argsort(dim=1)).all()
    torch.testing.assert_close(made.exp().sum(dim=1), torch.ones(500, dtype=torch.float64))


def test_a_closed_gate_and_a_spread_of_zero_change_nothing() -> None:
    log_probs, codes = uncertain(50, 4)
    closed = torch.zeros(50, 1, dtype=torch.float64)
    torch.testing.assert_close(Sharpness(0.4, -2.0, 0.3).sharpen(log_probs, closed), log_probs)
    assert fit_sharpness(log_probs, codes, np.ones(50), closed + 1, spread=0.0, efficiency=1.0) == Sharpness()
    assert Sharpness().sharpen(log_probs, closed + 1) is log_probs


def test_relative_entropy_is_0_for_certainty_and_1_for_the_uniform_distribution() -> None:
    rows = torch.tensor([[0.0, -np.inf, -np.inf], [np.log(1 / 3)] * 3], dtype=torch.float64)
    torch.testing.assert_close(relative_entropy(rows), torch.tensor([0.0, 1.0], dtype=torch.float64))
