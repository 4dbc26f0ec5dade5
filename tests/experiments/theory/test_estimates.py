"""Estimates of many draws at once are those of the plain formulas and of KCal, at the bandwidth of the theory."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.theory.bumps import Bump, GaussianBump, QuadraticCap
from experiments.theory.estimates import densities, draw_blocks, kcal_posteriors, posteriors, posteriors_on

M, DRAWS, D = 40, 5, 3


@pytest.fixture(scope="module")
def points() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((M * DRAWS, D))


def kernel(points: np.ndarray, query: np.ndarray, bandwidth: float) -> np.ndarray:
    """Normal density with the standard deviation b in each coordinate."""
    scale = (2 * np.pi * bandwidth**2) ** (-points.shape[1] / 2)
    return scale * np.exp(-((points - query) ** 2).sum(axis=1) / (2 * bandwidth**2))


def test_densities_are_means_of_normal_kernels(points: np.ndarray) -> None:
    queries, lengths = np.array([[0.0, 0.0, 0.0], [1.0, -1.0, 0.5]]), [0.3, 0.8]
    found = densities(points, np.repeat(np.arange(DRAWS), M), DRAWS, queries, lengths, M)
    for i, length in enumerate(lengths):
        for r in range(DRAWS):
            for j, query in enumerate(queries):
                own = kernel(points[r * M : (r + 1) * M], query, length)
                assert found[i, r, j] == pytest.approx(own.mean(), rel=1e-9)


def test_posteriors_of_many_draws_are_those_of_kcal_for_each(points: np.ndarray) -> None:
    generator = np.random.default_rng(1)
    labels, draws = generator.integers(3, size=len(points)), np.repeat(np.arange(DRAWS), M)
    query = np.array([0.3, 0.2, -0.1])
    found = posteriors(points, labels, draws, DRAWS, query, 0.6, n_classes=3)
    for r in range(DRAWS):
        own, own_labels = points[draws == r], labels[draws == r]
        sums = np.bincount(own_labels, kernel(own, query, 0.6), 3)
        np.testing.assert_allclose(found[r], sums / sums.sum(), rtol=1e-9)
        np.testing.assert_allclose(kcal_posteriors(own, own_labels, query[None], 0.6)[0], found[r], rtol=1e-9)
        on = posteriors_on(own, own_labels, query[None], 0.6, n_classes=3)
        np.testing.assert_allclose(on[0], found[r], rtol=1e-9)


def test_blocks_sum_to_all_draws() -> None:
    assert sum(draw_blocks(1_003, 300_000)) == 1_003
    assert max(draw_blocks(1_003, 300_000)) * 300_000 <= 1_000_000
    assert list(draw_blocks(2, 1e9)) == [1, 1]


@pytest.mark.parametrize(
    "bump",
    [GaussianBump(1), GaussianBump(3, 0.3, 1.2), QuadraticCap(1), QuadraticCap(8, 0.3)],
    ids=["normal", "normal-off-centre", "cap-1", "cap-8"],
)
def test_exact_bias_and_variance_are_those_of_draws(bump: Bump) -> None:
    m, n_draws, bandwidth = 500, 2_000, 0.35
    points, draws = bump.draw(m, n_draws, np.random.default_rng(2))
    estimates = densities(points, draws, n_draws, bump.queries[:1], [bandwidth], m)[0, :, 0]
    variance = bump.variance(bandwidth, m)
    assert estimates.mean() - bump.density == pytest.approx(bump.bias(bandwidth), abs=4 * (variance / n_draws) ** 0.5)
    assert estimates.var() == pytest.approx(variance, rel=0.2)


def test_the_chosen_distance_removes_the_next_term_of_the_least_error() -> None:
    for d in (1, 2, 4, 8):
        square = GaussianBump.with_small_next_term(d, 1.0).radius ** 2
        laplacian, second = square - d, square**2 - 2 * (d + 2) * square + d * (d + 2)  # Δg/g and Δ²g/g
        assert d * second + 2 * laplacian**2 == pytest.approx(0, abs=1e-9)
        assert abs(laplacian) > 0.1
