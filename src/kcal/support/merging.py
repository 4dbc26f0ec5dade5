"""Merge points into weighted centroids: k-means within a class.

c_j = Σ_{i in cluster j} w_i·z_i / Σ_{i in cluster j} w_i,   weight of c_j = Σ_{i in cluster j} w_i
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_argmin

from kcal.threads import openmp_threads_for

Index = NDArray[np.int64]
Floats = NDArray[np.float64]
Points = NDArray[np.floating]

ITERATIONS = 20
"""Iterations of k-means, at most: more change nothing that predictions show."""
LARGE = 1e8
"""Points × centroids × dimensions from which k-means runs first for coarse cells, then within each of them."""


def merge_by_kmeans(
    points: Points, weights: Floats, size: int, *, seed: int, min_cluster_size: int = 1
) -> tuple[Points, Floats, Index]:
    """Return centroids of the points of one class, (m, d), their weights, and the number of points behind each.

    At most ``size`` centroids: fewer where points coincide, or where a cluster of fewer than ``min_cluster_size``
    points is dissolved into the nearest others.
    """
    size = min(size, max(len(points) // min_cluster_size, 1))
    labels = _absorb_small(points, weights, cluster(points, weights, size, seed), min_cluster_size)
    return _centroids(points, weights, labels)


def cluster(points: Points, weights: Floats, size: int, seed: int) -> Index:
    """Return the cluster of each point, (n,): k-means or, where that takes too long, k-means within coarse cells."""
    if size <= 1:
        return np.zeros(len(points), dtype=np.int64)
    if size >= len(points):
        return np.arange(len(points))
    if points.size * size < LARGE:
        return _kmeans(points, weights, size, seed)
    cells, labels, start = _kmeans(points, weights, max(round(size**0.5), 2), seed), np.empty(len(points), int), 0
    counts = np.bincount(cells)
    bounds = np.round(size * np.concatenate([[0.0], np.cumsum(counts) / len(points)])).astype(int)
    for cell, n_clusters in enumerate(np.diff(bounds)):
        rows = np.flatnonzero(cells == cell)
        if len(rows):
            labels[rows] = start + cluster(points[rows], weights[rows], max(int(n_clusters), 1), seed)
            start = int(labels[rows].max()) + 1
    return labels


def _kmeans(points: Points, weights: Floats, size: int, seed: int) -> Index:
    if points.size * size < LARGE:
        points = points.astype(np.float64)  # faster in small k-means: single precision is computed in chunks
    from sklearn.cluster import KMeans  # here, because its import takes long

    model = KMeans(size, n_init=1, max_iter=ITERATIONS, random_state=seed)
    with warnings.catch_warnings(), openmp_threads_for(points.size * size):
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters
        labels: Index = model.fit(points, sample_weight=weights).labels_.astype(np.int64)
    return labels


def _absorb_small(points: Points, weights: Floats, labels: Index, min_size: int) -> Index:
    """Return labels in which the points of too small clusters belong to the nearest cluster that is large enough."""
    counts = np.bincount(labels)
    small = counts[labels] < min_size
    if not small.any():
        return labels
    if small.all():
        return np.zeros_like(labels)
    inverse = np.unique(labels[~small], return_inverse=True)[1]
    result = np.empty_like(labels)
    result[~small] = inverse
    centroids = _centroids(points[~small], weights[~small], inverse)[0]
    result[small] = pairwise_distances_argmin(points[small], centroids)
    return result


def _centroids(points: Points, weights: Floats, labels: Index) -> tuple[Points, Floats, Index]:
    """Return centroids, weights and numbers of points of the clusters that have points."""
    kept, labels = np.unique(labels, return_inverse=True)
    totals: Floats = np.bincount(labels, weights=weights).astype(np.float64)
    sums = csr_array((weights, (labels, np.arange(len(labels)))), shape=(len(kept), len(labels))) @ points
    return (sums / totals[:, None]).astype(points.dtype), totals, np.bincount(labels).astype(np.int64)
