"""Which samples train the network, which choose its checkpoint, and which are left for calibration and test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from experiments.paper.prepared import PARTS
from kcal.errors import InvalidInputError

TRAIN, VALIDATION, POOL = range(len(PARTS))


def stratified_parts(labels: ArrayLike, shares: Sequence[float], *, seed: int) -> NDArray[np.int8]:
    """Draw a part for every sample, with the same shares in every class.

    Parameters
    ----------
    labels : (n,) array
    shares : sequence of float
        Share of each part; they sum to 1. The cuts of a class are at its size times the cumulated shares, rounded.
    seed : int
        Same seed, same parts.

    Returns
    -------
    (n,) int8 array
        Index into ``shares``.
    """
    if abs(sum(shares) - 1) > 1e-9 or min(shares) < 0:
        raise InvalidInputError("shares", "must be at least 0 and sum to 1", got=str(tuple(shares)))
    values = np.asarray(labels)
    generator = np.random.default_rng(seed)
    parts = np.empty(len(values), np.int8)
    for value in np.unique(values):
        rows = generator.permutation(np.flatnonzero(values == value))
        cuts = np.rint(len(rows) * np.cumsum(shares)[:-1]).astype(int)
        for part, chosen in enumerate(np.split(rows, cuts)):
            parts[chosen] = part
    return parts


def group_parts(groups: ArrayLike, n_train: int, *, seed: int) -> NDArray[np.int8]:
    """Put ``n_train`` groups drawn at random into the training set and all others into the pool.

    Fewer groups than the paper's, as in a part of a data set, are split in its proportion by the caller.
    """
    values = np.asarray(groups)
    train = np.random.default_rng(seed).permutation(np.unique(values))[:n_train]
    return np.where(np.isin(values, train), TRAIN, POOL).astype(np.int8)
