"""Two temperatures by entropy: the minimiser of the documented loss, and an order of classes that stays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from kcal.calibrators.blend.sharpness import LEVEL_SPREAD, Sharpness, fit_sharpness, unsureness


def wavering(n: int, seed: int, *, level: float = 0.3, slope: float = -1.5) -> tuple[torch.Tensor, np.ndarray]:
    """Return log probabilities and labels drawn from their sharpened form."""
    generator = np.random.default_rng(seed)
    said = torch.from_numpy(log_softmax(generator.uniform(0.2, 5, (n, 1)) * generator.normal(size=(n, 4)), axis=1))
    truth = Sharpness(level, slope, 0.4).sharpened(said, torch.ones(n, 1, dtype=torch.float64)).numpy()
    return said, (truth + generator.gumbel(size=truth.shape)).argmax(axis=1)


def slow_loss(level: float, slope: float, said: np.ndarray, codes: np.ndarray, weights: np.ndarray, near: np.ndarray,
              spread: float, worth: float) -> float:  # fmt: skip
    """Return the documented loss, sample by sample."""
    entropies = [-sum(np.exp(v) * v for v in row) / np.log(len(row)) for row in said]
    middle = sum(w * u for w, u in zip(weights, entropies, strict=True)) / weights.sum()
    total = 0.0
    for row, k, w, g, u in zip(said, codes, weights, near, entropies, strict=True):
        powered = np.exp(g * (level + slope * (u - middle))) * row
        total -= w * (powered[k] - np.log(np.exp(powered).sum()))
    penalty = (level / LEVEL_SPREAD) ** 2 + (slope / spread) ** 2
    return total / weights.sum() + penalty / (2 * worth * weights.sum())


def test_the_fit_minimises_the_documented_loss() -> None:
    said, codes = wavering(60, 0)
    generator = np.random.default_rng(1)
    weights, near = generator.integers(1, 4, 60).astype(float), generator.uniform(0.3, 1.0, 60)
    found = fit_sharpness(said, codes, weights, torch.from_numpy(near[:, None]), spread=0.5, worth=0.6)

    def loss(level: float, slope: float) -> float:
        return slow_loss(level, slope, said.numpy(), codes, weights, near, 0.5, 0.6)

    best = loss(found.level, found.slope)
    assert best < loss(0.0, 0.0) - 1e-4
    for level in np.linspace(-0.6, 0.6, 9):
        for slope in np.linspace(-1.5, 1.5, 9):
            assert best <= loss(found.level + level, found.slope + slope) + 1e-9


def test_with_many_samples_it_finds_what_they_were_drawn_from() -> None:
    said, codes = wavering(40_000, 2)
    near = torch.ones(40_000, 1, dtype=torch.float64)
    found = fit_sharpness(said, codes, np.ones(40_000), near, spread=5.0, worth=1.0)
    assert found.slope == pytest.approx(-1.5, abs=0.15)
    assert found.level + found.slope * (0.4 - found.middle) == pytest.approx(0.3, abs=0.05)


def test_no_class_changes_place_and_rows_stay_probabilities() -> None:
    said, _ = wavering(500, 3)
    made = Sharpness(0.4, -2.0, 0.3).sharpened(said, torch.full((500, 1), 0.7, dtype=torch.float64))
    assert (made.argsort(dim=1) == said.argsort(dim=1)).all()
    torch.testing.assert_close(made.exp().sum(dim=1), torch.ones(500, dtype=torch.float64))


def test_far_away_and_without_spread_nothing_changes() -> None:
    said, codes = wavering(50, 4)
    far = torch.zeros(50, 1, dtype=torch.float64)
    torch.testing.assert_close(Sharpness(0.4, -2.0, 0.3).sharpened(said, far), said)
    assert fit_sharpness(said, codes, np.ones(50), far + 1, spread=0.0, worth=1.0) == Sharpness()
    assert Sharpness().sharpened(said, far + 1) is said


def test_unsureness_is_nought_when_sure_and_one_for_a_guess() -> None:
    rows = torch.tensor([[0.0, -np.inf, -np.inf], [np.log(1 / 3)] * 3], dtype=torch.float64)
    torch.testing.assert_close(unsureness(rows), torch.tensor([0.0, 1.0], dtype=torch.float64))
