"""The table of ways to a smaller support, and their one interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.kernels import KERNELS, MotherKernel
from kcal.support.merging import merge_by_kmeans
from kcal.support.sizes import sizes_per_class
from kcal.support.thinning import herd, thin_by_kernel, thin_in_parts, thin_randomly
from kcal.support.weighted_points import ReducedPoints, WeightedPoints

Index = NDArray[np.int64]
Floats = NDArray[np.float64]
Points = NDArray[np.floating]
ClassPart = tuple[Points, Floats, Index]
"""Points of a class, (m, d), their weights, and the number of samples behind each."""


@dataclass(frozen=True)
class Reduction:
    """How a support is made smaller.

    Parameters
    ----------
    method : str
        One of ``REDUCTIONS``: "kmeans", "kernel-thinning", "herding" or "random".
    seed : int
        Same seed, same result.
    min_cluster_size : int
        Samples that a centroid of "kmeans" stands for at least; the others keep samples as they are.
    kernel, bandwidth : MotherKernel and float
        The kernel whose means "kernel-thinning" and "herding" preserve.
    """

    method: str = "kmeans"
    seed: int = 0
    min_cluster_size: int = 1
    kernel: MotherKernel = KERNELS["rbf"]
    bandwidth: float = 1.0

    def __call__(self, samples: WeightedPoints, size: int) -> ReducedPoints:
        """Return at most ``size`` points, in proportion to the points of each class and at least one for each.

        The total weight of every class stays.
        """
        if size >= len(samples) and self.min_cluster_size == 1:
            return ReducedPoints(**vars(samples), members=np.ones(len(samples), dtype=np.int64))
        reduce_class, sizes = REDUCTIONS[self.method], sizes_per_class(size, samples.class_counts)
        values, parts = samples.points.cpu().numpy(), []
        for code in np.flatnonzero(sizes):
            rows = np.flatnonzero(samples.codes == code)
            parts.append(reduce_class(self, values[rows], samples.weights[rows], int(sizes[code])))
        points, weights, members = (np.concatenate(column) for column in zip(*parts, strict=True))
        codes = np.repeat(np.flatnonzero(sizes), [len(part[1]) for part in parts])
        like = samples.points
        return ReducedPoints(torch.from_numpy(points).to(like), codes, weights, samples.n_classes, members)

    def gram(self, points: Points) -> Floats:
        """Return the kernel between all points, (n, n), in float64."""
        rows = torch.from_numpy(points).double()
        squares = torch.cdist(rows, rows).square() / (rows.shape[1] * self.bandwidth**2)
        gram: Floats = self.kernel.log_profile(squares, rows.shape[1]).exp().numpy()
        return gram


def _kmeans(reduction: Reduction, points: Points, weights: Floats, size: int) -> ClassPart:
    options = {"seed": reduction.seed, "min_cluster_size": reduction.min_cluster_size}
    return merge_by_kmeans(points, weights, size, **options)


def _random(reduction: Reduction, points: Points, weights: Floats, size: int) -> ClassPart:
    return _chosen(points, *thin_randomly(weights, size, seed=reduction.seed))


def _herding(reduction: Reduction, points: Points, weights: Floats, size: int) -> ClassPart:
    def thin(rows: Index, m: int) -> tuple[Index, Floats]:
        return herd(reduction.gram(points[rows]), weights[rows], m)

    return _chosen(points, *thin_in_parts(points, weights, size, seed=reduction.seed, thin=thin))


def _kernel_thinning(reduction: Reduction, points: Points, weights: Floats, size: int) -> ClassPart:
    def thin(rows: Index, m: int) -> tuple[Index, Floats]:
        return thin_by_kernel(reduction.gram(points[rows]), weights[rows], m, seed=reduction.seed)

    return _chosen(points, *thin_in_parts(points, weights, size, seed=reduction.seed, thin=thin))


def _chosen(points: Points, rows: Index, weights: Floats) -> ClassPart:
    return points[rows], weights, np.ones(len(rows), dtype=np.int64)


REDUCTIONS: dict[str, Callable[[Reduction, Points, Floats, int], ClassPart]] = {
    "kmeans": _kmeans,
    "kernel-thinning": _kernel_thinning,
    "herding": _herding,
    "random": _random,
}
"""The ways to a smaller support, by name: from the points and weights of a class and a size to fewer points."""
