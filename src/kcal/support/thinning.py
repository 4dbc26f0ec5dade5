"""Keep some of the points of a class, with larger weights: at random, by herding, by kernel thinning.

Herding and kernel thinning keep the kernel mean of the class, Σ_i w_i·φ(z_i, ·) / Σ_i w_i, as well as they can. Both
need the kernel between all points of a part; a large class is thinned in random parts of at most ``PART`` points.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kcal.support.sizes import sizes_per_class

Index = NDArray[np.int64]
Floats = NDArray[np.float64]
Points = NDArray[np.floating]
Gram = Callable[[Points], Floats]
"""Returns the kernel between all points, (n, n)."""
Choice = tuple[Index, Floats]
"""Rows that are kept, and their weights."""

PART = 2_000


def thin_randomly(weights: Floats, size: int, *, seed: int) -> Choice:
    """Keep ``size`` points at random; their weights grow by a common factor to the weight of all."""
    rows = np.sort(np.random.default_rng(seed).permutation(len(weights))[:size])
    return rows, weights[rows] * (weights.sum() / weights[rows].sum())


def herd(gram: Floats, weights: Floats, size: int) -> Choice:
    """Keep ``size`` points of equal weight by kernel herding (Chen, Welling and Smola, 2010), none of them twice.

    x_t = argmax_x μ(x) − Σ_{s<t} φ(x, x_s) / t, where μ is the kernel mean of the class.
    """
    mean = gram @ (weights / weights.sum())
    kept: list[int] = []
    repulsion, free = np.zeros(len(mean)), np.ones(len(mean), dtype=bool)
    for step in range(1, size + 1):
        best = int(np.argmax(np.where(free, mean - repulsion / step, -np.inf)))
        kept.append(best)
        free[best] = False
        repulsion += gram[:, best]
    return np.array(kept), np.full(size, weights.sum() / size)


def thin_by_kernel(gram: Floats, weights: Floats, size: int, *, seed: int) -> Choice:
    """Keep ``size`` points by kernel thinning (Dwivedi and Mackey, 2021): halving rounds, then swaps.

    In a round random pairs of points become one of the two each, with the weight of both: the one that leaves the
    kernel mean closer to that of the class. A last round has only as many pairs as are needed. Then every point that
    is left is exchanged, at its weight, for the point of the class that brings the kernel mean closest.
    """
    generator, target = np.random.default_rng(seed), weights @ gram
    rows, kept = np.arange(len(weights)), weights.astype(np.float64)
    while len(rows) > size:
        order = generator.permutation(len(rows))
        n_pairs = min(len(rows) // 2, len(rows) - size)
        rows, kept = _halve(gram, target, rows[order], kept[order], n_pairs)
    return _swap(gram, target, rows, kept)


def _halve(gram: Floats, target: Floats, rows: Index, weights: Floats, n_pairs: int) -> Choice:
    """Return one point of each of the first ``n_pairs`` pairs, and the points that are left over."""
    first, second = np.arange(0, 2 * n_pairs, 2), np.arange(1, 2 * n_pairs, 2)
    error = weights @ gram[rows] - target  # kernel sum of what is kept less that of all, at every point
    keeps_first = np.empty(n_pairs, dtype=bool)
    for pair, (one, other) in enumerate(zip(rows[first], rows[second], strict=True)):
        step = gram[one] - gram[other]
        distance = gram[one, one] + gram[other, other] - 2.0 * gram[one, other]
        slope = error[one] - error[other]
        gain, loss = weights[2 * pair + 1], weights[2 * pair]  # what the kept point gains if it is the first, second
        # squared distance of the kernel means: |error|² + 2·gain·slope + gain²·distance, or with −loss
        keeps_first[pair] = 2.0 * gain * slope + gain**2 * distance <= -2.0 * loss * slope + loss**2 * distance
        error += (gain if keeps_first[pair] else -loss) * step
    kept = np.concatenate([np.where(keeps_first, first, second), np.arange(2 * n_pairs, len(rows))])
    totals = np.concatenate([weights[first] + weights[second], weights[2 * n_pairs :]])
    return rows[kept], totals


def _swap(gram: Floats, target: Floats, rows: Index, kept: Floats) -> Choice:
    """Return the points after each was exchanged for the one that brings the kernel mean closest to that of all."""
    rows, free = rows.copy(), np.ones(len(gram), dtype=bool)
    free[rows] = False
    diagonal = np.diagonal(gram)
    error = kept @ gram[rows] - target
    for place, weight in enumerate(kept):
        current = rows[place]
        error -= weight * gram[current]
        free[current] = True
        best = int(np.argmin(np.where(free, 2.0 * error + weight * diagonal, np.inf)))
        error += weight * gram[best]
        free[best] = False
        rows[place] = best
    return rows, kept


def thin_in_parts(
    points: Points, weights: Floats, size: int, *, seed: int, thin: Callable[[Index, int], Choice]
) -> Choice:
    """Return what ``thin`` keeps of random parts of the points, in proportion to their size."""
    n_parts = min(-(-len(points) // PART), size)
    order = np.random.default_rng(seed).permutation(len(points))
    parts = np.array_split(order, n_parts)
    sizes = sizes_per_class(size, np.array([len(part) for part in parts]))
    choices = [thin(part, int(m)) for part, m in zip(parts, sizes, strict=True)]
    rows = np.concatenate([part[chosen] for part, (chosen, _) in zip(parts, choices, strict=True)])
    return rows, np.concatenate([kept for _, kept in choices])
