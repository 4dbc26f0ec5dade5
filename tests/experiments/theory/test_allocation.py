"""The delta method is the variance of draws; equal numbers are best for two classes, and not for more."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.theory.allocation import geometric, normal_problem, paper_problem, problems, whole


def test_the_delta_method_agrees_with_draws() -> None:
    generator = np.random.default_rng(0)
    for problem in problems():
        per_class, n_draws = (400, 2_000) if problem.centres is None else (100, 400)  # many: it is asymptotic
        counts = whole(problem.frequencies**0.5, per_class * len(problem.frequencies))
        simulated = problem.simulate(counts, n_draws, generator)
        assert simulated == pytest.approx(problem.delta(counts), rel=0.15), problem.name


def test_the_delta_method_is_the_squared_gradient() -> None:
    for log_loss in (False, True):
        problem = paper_problem("", geometric(4, 10), log_loss=log_loss)
        counts, step, expected = np.array([5.0, 8.0, 13.0, 21.0]), 1e-6, 0.0
        for query, weight in enumerate(problem.query_weights):
            sums = problem.frequencies * problem.means[query]
            for j in range(4):
                moved = sums * (1 + step * np.eye(4)[j])
                change = moved / moved.sum() - sums / sums.sum()
                if log_loss:
                    change = change[query] / (sums / sums.sum())[query]
                expected += weight * np.mean((change / step) ** 2) * problem.spreads[query, j] ** 2 / counts[j]
        assert problem.delta(counts) == pytest.approx(expected, rel=1e-4)


def test_equal_numbers_are_best_for_two_classes_only() -> None:
    for share in (0.5, 0.7, 0.99):
        problem = paper_problem("", np.array([share, 1 - share]))
        np.testing.assert_allclose(problem.best(40), [20, 20])
        counts = np.array([13.0, 27.0])
        assert problem.printed(counts) == pytest.approx(problem.delta(counts))
    skewed = paper_problem("", geometric(5, 20))
    equal, proportional = (whole(skewed.frequencies**power, 100) for power in (0.0, 1.0))
    assert skewed.delta(proportional) < skewed.delta(equal)
    assert skewed.printed(equal) < skewed.delta(equal)


def test_the_best_allocation_cannot_be_improved() -> None:
    generator = np.random.default_rng(1)
    for problem in problems():
        best = problem.best(100)
        for _ in range(20):
            other = best * np.exp(0.2 * generator.standard_normal(len(best)))
            assert problem.delta(100 * other / other.sum()) >= problem.delta(best)


def test_moments_of_kernel_values_of_normal_classes() -> None:
    problem = normal_problem("", np.full(5, 0.2))
    assert problem.centres is not None
    points = problem.centres[1] + np.random.default_rng(2).standard_normal((200_000, 2))
    values = np.exp(-((points - problem.centres[3]) ** 2).sum(axis=1) / 2)
    assert values.mean() == pytest.approx(problem.means[3, 1], rel=0.02)
    assert values.std() / values.mean() == pytest.approx(problem.spreads[3, 1], rel=0.03)


def test_whole_numbers_keep_the_total() -> None:
    counts = whole(geometric(5, 200), 60)
    assert counts.sum() == 60
    assert counts.min() >= 1
