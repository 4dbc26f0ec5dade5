"""A log-linear pool: the minimiser of its loss, its gate, and the information of grouped samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from kcal.calibrators.blend.pool import PoolInputs, PoolProblem


def make_pool_problem(n: int = 80, spread: float = 0.5, bias_spread: float = 0.1, seed: int = 0) -> PoolProblem:
    """Return two experts on four classes: one knows the truth, one knows nothing."""
    generator = np.random.default_rng(seed)
    truth = log_softmax(2 * generator.normal(size=(n, 4)), axis=1)
    labels = (truth + generator.gumbel(size=truth.shape)).argmax(axis=1)
    noise = log_softmax(generator.normal(size=(n, 4)), axis=1)
    fallback = torch.from_numpy(log_softmax(generator.normal(size=(n, 4)), axis=1))
    experts = torch.from_numpy(np.stack([truth, noise]))
    gate = torch.from_numpy(generator.uniform(0.2, 1.0, size=(n, 1)))
    weights = torch.from_numpy(generator.integers(1, 4, n).astype(float))
    centre = torch.tensor([0.0, 1.0], dtype=torch.float64)
    return PoolProblem(PoolInputs(experts, gate, fallback), labels, weights, centre, spread, bias_spread)


def with_gate(problem: PoolProblem, gate: float) -> PoolProblem:
    """Return a problem with one gate for all samples."""
    return replace(problem, inputs=replace(problem.inputs, gate=torch.full_like(problem.inputs.gate, gate)))


def slow_loss(flat: Any, problem: PoolProblem) -> float:
    """Return the documented loss, sample by sample."""
    inputs = problem.inputs
    n_experts, n, n_classes = inputs.experts.shape
    total = 0.0
    for i in range(n):
        g = float(inputs.gate[i])
        scores = np.zeros(n_classes)
        for k in range(n_classes):
            pooled = sum(flat[j] * float(inputs.experts[j, i, k]) for j in range(n_experts)) + flat[n_experts + k]
            scores[k] = g * pooled + (1 - g) * float(inputs.fallback[i, k])
        total -= float(problem.weights[i]) * (scores[problem.codes[i]] - np.log(np.exp(scores).sum()))
    n_samples = float(problem.weights.sum())
    pull = (((flat[:n_experts] - problem.centre.numpy()) / problem.spread) ** 2).sum()
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


def test_the_start_does_not_matter() -> None:
    problem = make_pool_problem()
    first = problem.solve()
    again = problem.solve(replace(first, weights=first.weights + 3.0, bias=first.bias - 1.0))
    np.testing.assert_allclose(again.weights, first.weights, atol=1e-3)


def test_the_informative_expert_gets_the_weight_as_samples_grow_and_few_samples_leave_the_centre() -> None:
    many = with_gate(make_pool_problem(20_000), 1.0).solve()
    np.testing.assert_allclose(many.weights, [1.0, 0.0], atol=0.06)
    few = make_pool_problem(2).solve()
    assert abs(few.weights[1] - 1.0) < 0.5


def test_a_closed_gate_leaves_the_fallback() -> None:
    problem = with_gate(make_pool_problem(), 0.0)
    pool = problem.solve()
    np.testing.assert_allclose(pool.weights, problem.centre, atol=1e-9)
    fallback, weights = problem.inputs.fallback.numpy(), problem.weights.numpy()
    expected = -(weights * fallback[np.arange(80), problem.codes]).sum() / weights.sum()
    assert pool.loss == pytest.approx(expected)


def copied(problem: PoolProblem, times: int) -> PoolProblem:
    """Return a problem with every sample several times."""
    return rows_of(problem, np.repeat(np.arange(len(problem.codes)), times))


def rows_of(problem: PoolProblem, rows: Any) -> PoolProblem:
    """Return a problem with some of the samples."""
    inputs = problem.inputs
    chosen = PoolInputs(inputs.experts[:, rows], inputs.gate[rows], inputs.fallback[rows])
    return replace(problem, inputs=chosen, codes=problem.codes[rows], weights=problem.weights[rows])


@pytest.mark.parametrize("bias_spread", [0.0, 0.1])
def test_copies_of_a_sample_carry_the_information_of_one_sample(bias_spread: float) -> None:
    """Groups of n copies carry the information of one sample: efficiency 1/n, and the pool of the originals."""
    n = 2000
    problem = with_gate(make_pool_problem(n, spread=5.0, bias_spread=bias_spread), 1.0)  # the truth is a pool
    problem = replace(problem, weights=torch.ones(n, dtype=torch.float64))
    once = problem.group_efficiency(problem.solve(), np.arange(n))
    assert once > 0.9  # independent samples
    many = copied(problem, 7)
    efficiency = many.group_efficiency(many.solve(), np.repeat(np.arange(n), 7))
    assert efficiency == pytest.approx(once / 7, rel=0.1)
    found, expected = many.solve(efficiency=1 / 7), problem.solve()
    np.testing.assert_allclose(found.weights, expected.weights, atol=1e-4)
    np.testing.assert_allclose(found.bias, expected.bias, atol=1e-4)


def test_the_group_efficiency_is_the_documented_ratio() -> None:
    """Slopes and curvature by differences of the slow loss."""
    problem = make_pool_problem(24, spread=0.7, bias_spread=0.3)
    groups, pool = problem.codes, problem.solve()  # groups that differ much
    n_groups = len(np.unique(groups))
    point, step = np.r_[pool.weights, pool.bias], 1e-4
    free = replace(problem, spread=1e9, bias_spread=1e9)  # the log-loss without its penalty

    def loss(at: Any, rows: Any) -> float:
        part = rows_of(free, rows)
        return slow_loss(at, part) * float(part.weights.sum())

    everyone, eye = np.arange(24), step * np.eye(6)
    slopes = [
        [(loss(point + e, rows) - loss(point - e, rows)) / (2 * step) for e in eye]
        for rows in (np.flatnonzero(groups == g) for g in np.unique(groups))
    ]
    curvature = np.array(
        [
            [
                (
                    loss(point + e + f, everyone)
                    - loss(point + e - f, everyone)
                    - loss(point - e + f, everyone)
                    + loss(point - e - f, everyone)
                )
                / (4 * step**2)
                for f in eye
            ]
            for e in eye
        ]
    )
    scatter = np.array(slopes).T @ np.array(slopes) * n_groups / (n_groups - 1)
    inverse = np.linalg.inv(curvature + np.diag([0.7**-2] * 2 + [0.3**-2] * 4))
    expected = np.trace(inverse @ curvature) / np.trace(inverse @ scatter)
    assert expected < 1
    sure = (n_groups - 1) / (n_groups + 2)
    assert problem.group_efficiency(pool, groups) == pytest.approx(sure * expected, rel=1e-3)


def test_a_lower_efficiency_stays_nearer_to_the_prior() -> None:
    problem = make_pool_problem(300)
    free, held = ((problem.solve(efficiency=share).weights - problem.centre).abs().max() for share in (1.0, 0.01))
    assert held < 0.5 * free
