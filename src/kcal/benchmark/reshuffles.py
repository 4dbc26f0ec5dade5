"""How a pool is dealt into calibration and test, again and again: by rows, or by whole groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from kcal.errors import InvalidInputError

FEW = 10_000
"""Choices of groups that are listed before some are drawn; beyond, they are drawn one by one."""
LEAST_GROUPS = 2
"""To calibrate with, so that each group can be judged by another one."""


@dataclass(frozen=True, eq=False)
class Reshuffle:
    """Rows of the pool to calibrate with and rows to test on; no row is both."""

    index: int
    calibration: NDArray[np.intp] = field(repr=False)
    test: NDArray[np.intp] = field(repr=False)


def reshuffles_by_row(n_samples: int, share: float, n_reshuffles: int, seed: int) -> list[Reshuffle]:
    """Deal single rows; ``share`` of them calibrate."""
    n_calibration = min(max(round(share * n_samples), 1), n_samples - 1)
    if n_samples < 2:
        raise InvalidInputError(f"a pool needs at least 2 samples to be dealt out; got {n_samples}.")
    orders = [np.random.default_rng([seed, index]).permutation(n_samples) for index in range(n_reshuffles)]
    return [
        Reshuffle(index, np.sort(order[:n_calibration]), np.sort(order[n_calibration:]))
        for index, order in enumerate(orders)
    ]


def reshuffles_by_group(groups: NDArray[np.generic], share: float, n_reshuffles: int, seed: int) -> list[Reshuffle]:
    """Deal whole groups; ``share`` of them calibrate, but at least two.

    Where there are no more choices of groups than reshuffles, each is taken once; otherwise as many are drawn, all
    different.
    """
    names, codes = np.unique(groups, return_inverse=True)
    if len(names) <= LEAST_GROUPS:
        raise InvalidInputError(f"a pool dealt by groups needs at least {LEAST_GROUPS + 1} groups; got {len(names)}.")
    chosen = min(max(round(share * len(names)), LEAST_GROUPS), len(names) - 1)
    reshuffles = []
    for index, calibrating in enumerate(_choices(len(names), chosen, n_reshuffles, seed)):
        calibrates = np.isin(codes.reshape(-1), calibrating)
        reshuffles.append(Reshuffle(index, np.flatnonzero(calibrates), np.flatnonzero(~calibrates)))
    return reshuffles


def _choices(n_groups: int, chosen: int, n_reshuffles: int, seed: int) -> list[tuple[int, ...]]:
    """Return different choices of groups, the same first ones however many are asked for."""
    generator = np.random.default_rng(seed)
    if comb(n_groups, chosen) <= FEW:
        every = list(combinations(range(n_groups), chosen))
        return [every[place] for place in generator.permutation(len(every))[:n_reshuffles]]
    found: dict[tuple[int, ...], None] = {}
    while len(found) < n_reshuffles:
        found[tuple(sorted(generator.permutation(n_groups)[:chosen].tolist()))] = None
    return list(found)
