"""Splits of a pool into calibration and test rows: by row, or by whole groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from kcal.errors import InvalidInputError

MAX_LISTED = 10_000
"""Combinations of groups up to which all are listed and permuted; beyond, they are drawn one by one."""
MIN_CALIBRATION_GROUPS = 2
"""So that each calibration group can be predicted from another one."""


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of the pool to calibrate with and rows to test on; disjoint."""

    index: int
    calibration: NDArray[np.intp] = field(repr=False)
    test: NDArray[np.intp] = field(repr=False)


def row_splits(n_samples: int, share: float, n_splits: int, seed: int) -> list[Split]:
    """Split single rows at random; ``share`` of them calibrate."""
    if n_samples < 2:
        raise InvalidInputError("n_samples", "must be at least 2 to be split", got=str(n_samples))
    n_calibration = min(max(round(share * n_samples), 1), n_samples - 1)
    orders = [np.random.default_rng([seed, index]).permutation(n_samples) for index in range(n_splits)]
    return [
        Split(index, np.sort(order[:n_calibration]), np.sort(order[n_calibration:]))
        for index, order in enumerate(orders)
    ]


def group_splits(groups: NDArray[np.generic], share: float, n_splits: int, seed: int) -> list[Split]:
    """Split whole groups at random; ``share`` of them calibrate, but at least ``MIN_CALIBRATION_GROUPS``.

    All splits differ. Where fewer combinations of groups exist than splits are asked for, each is used once.
    """
    names, codes = np.unique(groups, return_inverse=True)
    if len(names) <= MIN_CALIBRATION_GROUPS:
        expected = f"must have at least {MIN_CALIBRATION_GROUPS + 1} different values"
        raise InvalidInputError("groups", expected, got=str(len(names)))
    n_calibration = min(max(round(share * len(names)), MIN_CALIBRATION_GROUPS), len(names) - 1)
    splits = []
    for index, combination in enumerate(_combinations(len(names), n_calibration, n_splits, seed)):
        calibrates = np.isin(codes.reshape(-1), combination)
        splits.append(Split(index, np.flatnonzero(calibrates), np.flatnonzero(~calibrates)))
    return splits


def _combinations(n_groups: int, size: int, n_splits: int, seed: int) -> list[tuple[int, ...]]:
    """Return different combinations of groups; asking for more keeps the first ones."""
    generator = np.random.default_rng(seed)
    if comb(n_groups, size) <= MAX_LISTED:
        every = list(combinations(range(n_groups), size))
        return [every[place] for place in generator.permutation(len(every))[:n_splits]]
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < n_splits:
        drawn[tuple(sorted(generator.permutation(n_groups)[:size].tolist()))] = None
    return list(drawn)
