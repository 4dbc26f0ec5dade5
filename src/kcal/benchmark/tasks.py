"""Benchmark tasks, a classifier's outputs on its training data and on a pool of unseen samples, and their splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.datasets import COMPANIONS, load_example
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError, printable

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


@dataclass(frozen=True, eq=False)
class Task:
    """A classifier's outputs, checked; labels are columns of the logits.

    ``companions`` are the pool's logits of networks trained with another loss, by loss. ``out_of_scope`` are outputs
    for inputs that belong to no class, without labels. ``calibration_share`` is the share of rows that calibrate,
    ``group_calibration_share`` that of groups in grouped splits, if it is another.
    """

    name: str
    train: ClassifierOutputs = field(repr=False)
    pool: ClassifierOutputs = field(repr=False)
    calibration_share: float
    classes: tuple[str, ...] = field(repr=False)
    companions: Mapping[str, NDArray[np.floating[Any]]] = field(default_factory=dict, repr=False)
    out_of_scope: ClassifierOutputs | None = field(default=None, repr=False)
    group_calibration_share: float | None = None

    @property
    def n_groups(self) -> int | None:
        """How many groups the pool has; None if samples have no groups."""
        return None if self.pool.groups is None else len(np.unique(self.pool.groups))

    @property
    def can_split_groups(self) -> bool:
        """Whether there are enough groups to calibrate with some and test on others."""
        return self.n_groups is not None and self.n_groups > MIN_CALIBRATION_GROUPS

    @property
    def group_share(self) -> float:
        """Share of the groups that calibrate in grouped splits."""
        return self.calibration_share if self.group_calibration_share is None else self.group_calibration_share

    def splits(self, n_splits: int, seed: int, *, by_group: bool = False) -> list[Split]:
        """Return splits of the pool into calibration and test, by row or by whole groups."""
        if by_group:
            return group_splits(self.pool.groups, self.group_share, n_splits, seed)
        return row_splits(len(self.pool.labels), self.calibration_share, n_splits, seed)

    def __str__(self) -> str:
        groups = "" if self.n_groups is None else f", {self.n_groups} groups"
        companions = f"; companions {', '.join(self.companions)}" if self.companions else ""
        if self.n_groups is not None and self.group_share != self.calibration_share:
            groups += f" ({self.group_share:.0%} of them to calibrate)"
        outside = f"; {len(self.out_of_scope.logits):,} out of scope" if self.out_of_scope is not None else ""
        return (
            f"{printable(self.name)}: {len(self.classes)} classes, embeddings of {self.pool.embeddings.shape[1]} "
            f"dimensions, {len(self.train.labels):,} training and {len(self.pool.labels):,} unseen samples{groups}, "
            f"{self.calibration_share:.0%} of the samples to calibrate{companions}{outside}"
        )


def example_task() -> Task:
    """Return the embedded example; its calibration and test parts together are the pool."""
    example = load_example()
    unseen = (example.calibration, example.test)
    pool = [np.concatenate([getattr(part, name) for part in unseen]) for name in ("embeddings", "logits", "labels")]
    trained = {loss: example.companion(loss) for loss in COMPANIONS}
    return Task(
        example.name,
        ClassifierOutputs(example.train.embeddings, example.train.logits, example.train.labels),
        ClassifierOutputs(*pool),
        len(example.calibration) / len(pool[-1]),
        example.classes,
        {loss: np.concatenate([network.calibration_logits, network.test_logits]) for loss, network in trained.items()},
    )


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
