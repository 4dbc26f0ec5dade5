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


def reserved(n_samples: int, share: float, *, seed: int) -> NDArray[np.bool_]:
    """Draw round(share · n_samples) samples at random and return where they are."""
    mask = np.zeros(n_samples, np.bool_)
    mask[np.random.default_rng(seed).permutation(n_samples)[: round(share * n_samples)]] = True
    return mask


def group_parts(groups: ArrayLike, n_train: int, n_all: int, *, seed: int) -> NDArray[np.int8]:
    """Put whole groups, drawn at random, into the training set and all others into the pool.

    Parameters
    ----------
    groups : (n,) array
    n_train, n_all : int
        Groups in the paper's training set and in all. Of G groups here, min(n_train, ⌈G · n_train / n_all⌉, G − 1) are
        for training, so that a whole data set is split as in the paper and a part of it in the same proportion.
    seed : int
        Same seed, same parts.
    """
    values = np.asarray(groups)
    different = np.unique(values)
    n_chosen = min(n_train, -(-len(different) * n_train // n_all), len(different) - 1)
    chosen = np.random.default_rng(seed).permutation(different)[:n_chosen]
    return np.where(np.isin(values, chosen), TRAIN, POOL).astype(np.int8)
