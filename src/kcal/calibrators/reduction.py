"""Fewer points that stand for the samples of a support: merged within classes, or some of them with larger weights.

"kmeans" merges clusters into centroids, c_j = Σ_{i in j} w_i·z_i / W_j of weight W_j = Σ_{i in j} w_i. The others keep
samples: "random" ones, or those that preserve the kernel mean of their class, Σ_i w_i·φ(z_i, ·) / Σ_i w_i, by "herding"
or "kernel-thinning". The total weight of every class stays.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_argmin

from kcal.kernels import KERNELS, MotherKernel
from kcal.samples import Floats, Index, Samples
from kcal.threads import openmp_threads_for

Points = NDArray[np.floating]
Choice = tuple[Index, Floats]
"""Rows that are kept, and their weights."""

METHODS = ("kmeans", "kernel-thinning", "herding", "random")
MAX_ITERATIONS = 20
"""Iterations of k-means: more change nothing that predictions show."""
LARGE = 1e8
"""Points × centroids × dimensions from which k-means runs first for coarse cells, then within each of them."""
MAX_PART = 2_000
"""Herding and kernel thinning need the kernel between all points: a larger class is thinned in random parts."""


def reduce_samples(
    samples: Samples,
    size: int,
    method: str = "kmeans",
    *,
    seed: int = 0,
    min_cluster_size: int = 1,
    kernel: MotherKernel = KERNELS["rbf"],
    bandwidth: float = 1.0,
) -> tuple[Samples, Index]:
    """Return at most ``size`` points, in proportion to those of each class, and the number of samples behind each.

    Parameters
    ----------
    samples : Samples
        Points as ``embeddings``, of positive weights.
    size : int
        Number of points; at least one per class that has samples.
    method : str
        One of ``METHODS``.
    seed : int
        Same seed, same result.
    min_cluster_size : int
        Samples that a centroid stands for at least, where its class has as many.
    kernel, bandwidth : MotherKernel and float
        The kernel whose means "herding" and "kernel-thinning" preserve.
    """
    if size >= len(samples) and min_cluster_size == 1:
        return samples, np.ones(len(samples), dtype=np.int64)
    sizes = sizes_per_class(size, np.bincount(samples.codes, minlength=samples.n_classes))
    values, parts = samples.embeddings.cpu().numpy(), []
    for code in np.flatnonzero(sizes):
        rows = np.flatnonzero(samples.codes == code)
        points, weights, m = values[rows], samples.weights[rows], int(sizes[code])
        if method == "kmeans":
            parts.append(_merge(points, weights, m, seed, min_cluster_size))
        else:
            chosen, kept = _thin(points, weights, m, method, seed, kernel, bandwidth)
            parts.append((points[chosen], kept, np.ones(m, dtype=np.int64)))
    points, weights, members = (np.concatenate(column) for column in zip(*parts, strict=True))
    codes = np.repeat(np.flatnonzero(sizes), [len(part[1]) for part in parts])
    embeddings = torch.from_numpy(points).to(samples.embeddings)
    return replace(samples, embeddings=embeddings, codes=codes, weights=weights, groups=None), members


def sizes_per_class(size: int, counts: Index) -> Index:
    """Return the number of points that each class keeps, (n_classes,): ``size`` in all, in proportion to its points.

    m_k = 1 + (size − K)·(n_k − 1) / (n − K), rounded by the largest remainder, K being the number of classes with
    points. Every class keeps a point, and none gets more than it has. ``size`` is bounded by K and n.
    """
    present = counts > 0
    n_present, n_points = int(present.sum()), int(counts.sum())
    free = min(max(size, n_present), n_points) - n_present
    quotas = free * np.where(present, counts - 1, 0) / max(n_points - n_present, 1)
    sizes = np.floor(quotas).astype(np.int64)
    missing = free - int(sizes.sum())
    sizes[np.argsort(sizes - quotas, kind="stable")[:missing]] += 1
    return np.where(present, sizes + 1, 0)


# Merging


def _merge(
    points: Points, weights: Floats, size: int, seed: int, min_cluster_size: int
) -> tuple[Points, Floats, Index]:
    """Return centroids of the points of a class, their weights, and the number of points behind each.

    There are fewer than ``size`` where points coincide, or where a cluster of fewer than ``min_cluster_size`` points is
    dissolved into the nearest others.
    """
    size = min(size, max(len(points) // min_cluster_size, 1))
    clusters = _cluster(points, weights, size, seed)
    small = np.bincount(clusters)[clusters] < min_cluster_size
    if small.all():
        clusters = np.zeros_like(clusters)
    elif small.any():
        large, clusters[~small] = np.unique(clusters[~small], return_inverse=True)
        centroids = _centroids(points[~small], weights[~small], clusters[~small], len(large))[0]
        clusters[small] = pairwise_distances_argmin(points[small], centroids)
    kept, clusters = np.unique(clusters, return_inverse=True)
    return *_centroids(points, weights, clusters, len(kept)), np.bincount(clusters).astype(np.int64)


def _cluster(points: Points, weights: Floats, size: int, seed: int) -> Index:
    """Return the cluster of each point, (n,): k-means or, where that takes too long, k-means within coarse cells."""
    if size <= 1 or size >= len(points):
        return np.zeros(len(points), dtype=np.int64) if size <= 1 else np.arange(len(points))
    if points.size * size < LARGE:
        return _kmeans(points, weights, size, seed)
    cells, clusters, start = _kmeans(points, weights, max(round(size**0.5), 2), seed), np.empty(len(points), int), 0
    bounds = np.round(size * np.concatenate([[0.0], np.cumsum(np.bincount(cells)) / len(points)])).astype(int)
    for cell, n_clusters in enumerate(np.diff(bounds)):
        rows = np.flatnonzero(cells == cell)
        if len(rows):
            clusters[rows] = start + _cluster(points[rows], weights[rows], max(int(n_clusters), 1), seed)
            start = int(clusters[rows].max()) + 1
    return clusters


def _kmeans(points: Points, weights: Floats, size: int, seed: int) -> Index:
    from sklearn.cluster import KMeans  # here, because its import takes long

    if points.size * size < LARGE:
        points = points.astype(np.float64)  # faster in small k-means: single precision is computed in chunks
    model = KMeans(size, n_init=1, max_iter=MAX_ITERATIONS, random_state=seed)
    with warnings.catch_warnings(), openmp_threads_for(points.size * size):
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters
        clusters: Index = model.fit(points, sample_weight=weights).labels_.astype(np.int64)
    return clusters


def _centroids(points: Points, weights: Floats, clusters: Index, n_clusters: int) -> tuple[Points, Floats]:
    """Return the weighted means of the clusters 0 to n_clusters − 1, which have points, and their weights."""
    totals = np.bincount(clusters, weights=weights).astype(np.float64)
    members = csr_array((weights, (clusters, np.arange(len(clusters)))), shape=(n_clusters, len(clusters)))
    return (members @ points / totals[:, None]).astype(points.dtype), totals


# Thinning


def _thin(
    points: Points, weights: Floats, size: int, method: str, seed: int, kernel: MotherKernel, bandwidth: float
) -> Choice:
    """Return the points of a class that are kept: random ones, or those that preserve the kernel mean."""
    order = np.random.default_rng(seed).permutation(len(points))
    if method == "random":  # their weights grow by a common factor
        rows = np.sort(order[:size])
        return rows, weights[rows] * (weights.sum() / weights[rows].sum())
    parts = np.array_split(order, min(-(-len(points) // MAX_PART), size))
    sizes = sizes_per_class(size, np.array([len(part) for part in parts]))
    choices = []
    for part, m in zip(parts, sizes.tolist(), strict=True):
        gram = _gram(points[part], kernel, bandwidth)
        rows, kept = _herd(gram, weights[part], m) if method == "herding" else _halve(gram, weights[part], m, seed)
        choices.append((part[rows], kept))
    return np.concatenate([rows for rows, _ in choices]), np.concatenate([kept for _, kept in choices])


def _gram(points: Points, kernel: MotherKernel, bandwidth: float) -> Floats:
    """Return the kernel between all points, (n, n), in float64."""
    rows = torch.from_numpy(points).double()
    squares = torch.cdist(rows, rows).square() / (rows.shape[1] * bandwidth**2)
    gram: Floats = kernel.log_profile(squares, rows.shape[1]).exp().numpy()
    return gram


def _herd(gram: Floats, weights: Floats, size: int) -> Choice:
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


def _halve(gram: Floats, weights: Floats, size: int, seed: int) -> Choice:
    """Keep ``size`` points by kernel thinning (Dwivedi and Mackey, 2021): halving rounds, then swaps.

    In a round random pairs of points become one of the two each, with the weight of both: the one that leaves the
    kernel mean closer to that of the class. A last round has only as many pairs as are needed.
    """
    generator, target = np.random.default_rng(seed), weights @ gram
    rows, kept = np.arange(len(weights)), weights.astype(np.float64)
    while len(rows) > size:
        order = generator.permutation(len(rows))
        rows, kept, n_pairs = rows[order], kept[order], min(len(rows) // 2, len(rows) - size)
        error = kept @ gram[rows] - target  # kernel sum of what is kept less that of all, at every point
        places = np.arange(2 * n_pairs).reshape(n_pairs, 2)
        survivors = np.empty(n_pairs, dtype=np.int64)
        for pair, (first, second) in enumerate(places):
            one, other = rows[first], rows[second]
            distance, slope = gram[one, one] + gram[other, other] - 2.0 * gram[one, other], error[one] - error[other]
            gain, loss = kept[second], kept[first]  # what the survivor gains if it is the first, the second
            # squared distance of the kernel means: |error|² + 2·gain·slope + gain²·distance, or with −loss
            keeps_first = 2.0 * gain * slope + gain**2 * distance <= -2.0 * loss * slope + loss**2 * distance
            survivors[pair] = first if keeps_first else second
            error += (gain if keeps_first else -loss) * (gram[one] - gram[other])
        rest = np.arange(2 * n_pairs, len(rows))
        rows, kept = rows[np.concatenate([survivors, rest])], np.concatenate([kept[places].sum(axis=1), kept[rest]])
    return _swap(gram, target, rows, kept), kept


def _swap(gram: Floats, target: Floats, rows: Index, kept: Floats) -> Index:
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
    return rows
