"""Herding and kernel thinning against the search over all choices, and against their definitions step by step."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from kcal.support import Reduction, herd, thin_by_kernel, thin_randomly

Floats = NDArray[np.float64]


def gram_of(n: int, seed: int, bandwidth: float = 0.7) -> tuple[Floats, Floats]:
    """Return the Gaussian kernel between random points, and random weights."""
    generator = np.random.default_rng(seed)
    points = generator.normal(size=(n, 2))
    squares = ((points[:, None] - points[None]) ** 2).sum(axis=2)
    return np.exp(-squares / (2 * 2 * bandwidth**2)), generator.uniform(0.5, 2.0, n)


def discrepancy(gram: Floats, weights: Floats, rows: Floats, kept: Floats) -> float:
    """Return the squared distance of two kernel sums."""
    difference = -weights.copy()
    np.add.at(difference, rows, kept)
    return float(difference @ gram @ difference)


def test_the_kernel_is_that_of_the_class_sums() -> None:
    points = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    squares = ((points[:, None].astype(float) - points[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(Reduction(bandwidth=0.4).gram(points), np.exp(-squares / (2 * 3 * 0.4**2)), atol=1e-6)


def test_herding_takes_the_best_next_point_each_time() -> None:
    gram, weights = gram_of(9, 0)
    shares = weights / weights.sum()
    rows, kept = herd(gram, weights, 5)
    chosen: list[int] = []
    for row in rows:
        others = [i for i in range(9) if i not in chosen]
        scores = [shares @ gram[i] - sum(gram[i, s] for s in chosen) / (len(chosen) + 1) for i in others]
        assert row == others[int(np.argmax(scores))]
        chosen.append(int(row))
    assert kept.tolist() == [weights.sum() / 5] * 5


def test_a_pair_becomes_the_better_of_both() -> None:
    for seed in range(20):
        gram, weights = gram_of(2, seed)
        rows, kept = thin_by_kernel(gram, weights, 1, seed=seed)
        best = min(range(2), key=lambda i: discrepancy(gram, weights, np.array([i]), np.array([weights.sum()])))
        assert rows.tolist() == [best]
        assert kept.tolist() == [weights.sum()]


def test_one_point_of_a_class_is_the_best_single_one() -> None:
    for seed in range(10):
        gram, weights = gram_of(8, seed)
        rows, kept = thin_by_kernel(gram, weights, 1, seed=seed)
        losses = [discrepancy(gram, weights, np.array([i]), np.array([weights.sum()])) for i in range(8)]
        assert rows[0] == int(np.argmin(losses))
        np.testing.assert_allclose(kept, weights.sum())


def test_kernel_thinning_and_herding_are_among_the_best_of_all_choices() -> None:
    for seed in range(5):
        gram = gram_of(12, seed)[0]
        weights = np.ones(12)
        losses = [discrepancy(gram, weights, np.array(rows), np.full(3, 4.0)) for rows in combinations(range(12), 3)]
        for (rows, kept), share in ((thin_by_kernel(gram, weights, 3, seed=0), 0.05), (herd(gram, weights, 3), 0.2)):
            np.testing.assert_allclose(kept, 4.0)
            assert discrepancy(gram, weights, rows, kept) <= np.quantile(losses, share)


def test_swaps_end_where_no_single_exchange_of_the_last_point_helps() -> None:
    gram, weights = gram_of(20, 3)
    rows, kept = thin_by_kernel(gram, weights, 6, seed=0)
    own = discrepancy(gram, weights, rows, kept)
    for other in set(range(20)) - set(rows.tolist()):
        exchanged = np.append(rows[:-1], other)
        assert own <= discrepancy(gram, weights, exchanged, kept) + 1e-12


def test_random_points_are_spread_evenly_and_keep_their_proportions() -> None:
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    counts = np.zeros(4)
    for seed in range(400):
        rows, kept = thin_randomly(weights, 2, seed=seed)
        counts[rows] += 1
        np.testing.assert_allclose(kept[0] / kept[1], weights[rows[0]] / weights[rows[1]])
    assert (np.abs(counts - 200) < 5 * np.sqrt(400 * 0.25)).all()
