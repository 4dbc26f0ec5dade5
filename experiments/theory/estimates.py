"""Kernel estimates of many draws at once: every draw, or every class of a draw, is a class of one support.

The theory's bandwidth b is the kernel's standard deviation in each coordinate. The code averages squared distances over
the d dimensions, so that its bandwidth is b/√d.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal import KCal
from kcal.kernels import KERNELS, ClassSums, PreparedSupport, class_posteriors, sort_support

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
POINTS_AT_ONCE = 1_000_000
"""Sample points that are held at once."""


def code_bandwidth(bandwidth: float, dimension: int) -> float:
    """Return the bandwidth of the code, b/√d, for one of the theory."""
    return bandwidth / sqrt(dimension)


def draw_blocks(n_draws: int, n_points: float) -> Iterator[int]:
    """Yield numbers of draws that sum to ``n_draws``, of ``n_points`` each, that fit into memory."""
    size = max(int(POINTS_AT_ONCE / max(n_points, 1)), 1)
    for start in range(0, n_draws, size):
        yield min(size, n_draws - start)


def class_sums(
    points: Array,
    codes: Labels,
    n_codes: int,
    queries: Array,
    bandwidths: Sequence[float],
    weights: Array | None = None,
) -> ClassSums:
    """Return the class sums of ``queries`` at bandwidths of the theory, (n_bandwidths, n_codes, n_query)."""
    weight = None if weights is None else torch.from_numpy(weights)
    support = sort_support(torch.from_numpy(points), torch.from_numpy(codes), n_codes, weight)
    lengths = [code_bandwidth(bandwidth, points.shape[1]) for bandwidth in bandwidths]
    return PreparedSupport(support, lengths).class_sums(torch.from_numpy(queries))


def densities(
    points: Array, draws: Labels, n_draws: int, queries: Array, bandwidths: Sequence[float], m: int
) -> NDArray[Any]:
    """Return ĝ(z) = Σ φ_b / (m·∫φ_b) of every draw, (n_bandwidths, n_draws, n_query).

    ``points`` may leave out those of the ``m`` sample points that are beyond the reach of the kernel.
    """
    sums = class_sums(points, draws, n_draws, queries, bandwidths)
    dimension = points.shape[1]
    lengths = [code_bandwidth(bandwidth, dimension) for bandwidth in bandwidths]
    volumes = np.exp([KERNELS["rbf"].log_volume(length, dimension) for length in lengths])
    kernel_sums = (sums.sums * sums.offsets.exp()[:, None]).numpy()
    return np.asarray(kernel_sums / (m * volumes[:, None, None]))


def posteriors(
    points: Array,
    labels: Labels,
    draws: Labels,
    n_draws: int,
    query: Array,
    bandwidth: float,
    *,
    n_classes: int,
    weights: Array | None = None,
) -> Array:
    """Return p̂(z) of every draw at one query (d,), as (n_draws, n_classes)."""
    sums = class_sums(points, draws * n_classes + labels, n_draws * n_classes, query[None], [bandwidth], weights)
    logs = sums.log()[0, 0].reshape(n_draws, n_classes)
    return np.asarray(torch.softmax(logs, dim=1).numpy())


def posteriors_on(points: Array, labels: Labels, queries: Array, bandwidth: float, *, n_classes: int) -> Array:
    """Return p̂ of one draw at many queries, (n_query, n_classes)."""
    support = sort_support(torch.from_numpy(points), torch.from_numpy(labels), n_classes)
    length = code_bandwidth(bandwidth, points.shape[1])
    return np.asarray(class_posteriors(torch.from_numpy(queries), support, length).numpy())


def kcal_posteriors(points: Array, labels: Labels, queries: Array, bandwidth: float) -> Array:
    """Return what the calibrator itself predicts, with the identity as its projection."""
    length = code_bandwidth(bandwidth, points.shape[1])
    calibrator = KCal(projection="identity", bandwidth=length, smoothing=0.0, progress=False).fit(points, labels)
    return np.asarray(calibrator.predict_proba(queries))
