"""Benchmark tasks: a trained classifier's outputs on its training data and on a pool of unseen samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.benchmark.splits import MIN_CALIBRATION_GROUPS, Split, group_splits, row_splits
from kcal.calibrators import ClassifierOutputs
from kcal.datasets import COMPANIONS, load_example
from kcal.errors import printable


@dataclass(frozen=True, eq=False)
class Task:
    """A classifier's outputs, checked; labels are columns of the logits.

    ``companions`` are the pool's logits of networks trained with another loss, by loss. ``out_of_scope`` are outputs
    for inputs that belong to no class, without labels.
    """

    name: str
    train: ClassifierOutputs = field(repr=False)
    pool: ClassifierOutputs = field(repr=False)
    calibration_share: float
    classes: tuple[str, ...] = field(repr=False)
    companions: Mapping[str, NDArray[np.floating[Any]]] = field(default_factory=dict, repr=False)
    out_of_scope: ClassifierOutputs | None = field(default=None, repr=False)

    @property
    def n_groups(self) -> int | None:
        """How many groups the pool has; None if samples have no groups."""
        return None if self.pool.groups is None else len(np.unique(self.pool.groups))

    @property
    def can_split_groups(self) -> bool:
        """Whether there are enough groups to calibrate with some and test on others."""
        return self.n_groups is not None and self.n_groups > MIN_CALIBRATION_GROUPS

    def splits(self, n_splits: int, seed: int, *, by_group: bool = False) -> list[Split]:
        """Return splits of the pool into calibration and test, by row or by whole groups."""
        if by_group:
            return group_splits(self.pool.groups, self.calibration_share, n_splits, seed)
        return row_splits(len(self.pool.labels), self.calibration_share, n_splits, seed)

    def __str__(self) -> str:
        groups = "" if self.n_groups is None else f", {self.n_groups} groups"
        companions = f"; companions {', '.join(self.companions)}" if self.companions else ""
        outside = f"; {len(self.out_of_scope.logits):,} out of scope" if self.out_of_scope is not None else ""
        return (
            f"{printable(self.name)}: {len(self.classes)} classes, embeddings of {self.pool.embeddings.shape[1]} "
            f"dimensions, {len(self.train.labels):,} training and {len(self.pool.labels):,} unseen samples{groups}, "
            f"{self.calibration_share:.0%} of them to calibrate{companions}{outside}"
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
