"""How many points each class keeps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]


def sizes_per_class(size: int, counts: Index) -> Index:
    """Return the number of points that each class keeps, (n_classes,): ``size`` in all, in proportion to its points.

    m_k = 1 + (size − K)·(n_k − 1) / (n − K), rounded by the largest remainder, K being the number of classes with
    points: so every class keeps a point, and none gets more than it has. ``size`` is bounded by K and n.
    """
    present = counts > 0
    n_present, n_points = int(present.sum()), int(counts.sum())
    free = min(max(size, n_present), n_points) - n_present
    others = np.where(present, counts - 1, 0)
    quotas = free * others / max(n_points - n_present, 1)
    sizes = np.floor(quotas).astype(np.int64)
    missing = free - int(sizes.sum())
    sizes[np.argsort(sizes - quotas, kind="stable")[:missing]] += 1
    return np.where(present, sizes + 1, 0)
