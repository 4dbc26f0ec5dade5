"""A log-linear pool: the minimiser of its loss, and who speaks where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from kcal.calibrators.pooling import PoolProblem


def make_pool_problem(n: int = 80, spread: float = 0.5, bias_spread: float = 0.1, seed: int = 0) -> PoolProblem:
    """Return two experts on four classes: one knows the truth, one knows nothing."""
    generator = np.random.default_rng(seed)
    truth = log_softmax(2 * generator.normal(size=(n, 4)), axis=1)
    labels = (truth + generator.gumbel(size=truth.shape)).argmax(axis=1)
    noise = log_softmax(generator.normal(size=(n, 4)), axis=1)
    far = torch.from_numpy(log_softmax(generator.normal(size=(n, 4)), axis=1))
    experts = torch.from_numpy(np.stack([truth, noise]))
    near = torch.from_numpy(generator.uniform(0.2, 1.0, size=(n, 1)))
    weights = generator.integers(1, 4, n).astype(float)
    return PoolProblem(experts, labels, weights, near, far, np.array([0.0, 1.0]), spread, bias_spread)


def slow_loss(flat: Any, problem: PoolProblem) -> float:
    """Return the documented loss, sample by sample."""
    n_experts, n, n_classes = problem.experts.shape
    total = 0.0
    for i in range(n):
        g = float(problem.near[i])
        heights = np.zeros(n_classes)
        for k in range(n_classes):
            pooled = sum(flat[j] * float(problem.experts[j, i, k]) for j in range(n_experts)) + flat[n_experts + k]
            heights[k] = g * pooled + (1 - g) * float(problem.far[i, k])
        total -= problem.weights[i] * (heights[problem.codes[i]] - np.log(np.exp(heights).sum()))
    n_samples = problem.weights.sum()
    pull = (((flat[:n_experts] - problem.centre) / problem.spread) ** 2).sum()
    pull += ((flat[n_experts:] / problem.bias_spread) ** 2).sum()
    return float(total / n_samples + pull / (2 * n_samples))


@pytest.mark.parametrize(("spread", "bias_spread"), [(0.5, 0.1), (2.0, 1.0)])
def test_the_pool_minimises_the_documented_loss(spread: float, bias_spread: float) -> None:
    problem = make_pool_problem(25, spread, bias_spread)
    pool = problem.solve()
    found = np.r_[pool.weights, pool.bias]
    slow = minimize(slow_loss, np.zeros(6), args=(problem,), method="BFGS", options={"gtol": 1e-6})
    assert slow_loss(found, problem) <= slow.fun + 1e-7
    np.testing.assert_allclose(found, slow.x, atol=2e-3)


def test_what_it_starts_from_does_not_matter() -> None:
    problem = make_pool_problem()
    first = problem.solve()
    again = problem.solve(replace(first, weights=first.weights + 3.0, bias=first.bias - 1.0))
    np.testing.assert_allclose(again.weights, first.weights, atol=1e-3)


def test_who_knows_gets_the_weight_as_samples_grow_and_few_samples_leave_the_centre() -> None:
    many = replace(make_pool_problem(20_000), near=torch.ones(20_000, 1, dtype=torch.float64)).solve()
    np.testing.assert_allclose(many.weights, [1.0, 0.0], atol=0.06)
    few = make_pool_problem(2).solve()
    assert abs(few.weights[1] - 1.0) < 0.5


def test_without_evidence_the_stand_in_speaks_alone() -> None:
    problem = replace(make_pool_problem(), near=torch.zeros(80, 1, dtype=torch.float64))
    pool = problem.solve()
    np.testing.assert_allclose(pool.weights, problem.centre, atol=1e-9)
    far = problem.far.numpy()
    expected = -(problem.weights * far[np.arange(80), problem.codes]).sum() / problem.weights.sum()
    assert pool.loss == pytest.approx(expected)
