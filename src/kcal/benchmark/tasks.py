"""Benchmark tasks: a trained classifier's outputs on its training data and on a pool of unseen samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.benchmark.splits import MIN_CALIBRATION_GROUPS, Split, group_splits, row_splits
from kcal.benchmark.table import printable
from kcal.benchmark.task_files import TaskArrays, read_arrays
from kcal.calibrators import ClassifierOutputs
from kcal.datasets import COMPANIONS, load_example
from kcal.errors import FileFormatError, InvalidInputError, KcalWarning, warn
from kcal.persistence import check_path


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
    companions = {loss: example.companion(loss) for loss in COMPANIONS}
    return Task(
        example.name,
        ClassifierOutputs(example.train.embeddings, example.train.logits, example.train.labels),
        ClassifierOutputs(*pool),
        len(example.calibration) / len(pool[-1]),
        example.classes,
        {loss: np.concatenate([each.calibration_logits, each.test_logits]) for loss, each in companions.items()},
    )


def read_task(path: str | Path) -> Task:
    """Read and check one task and its companions."""
    place = check_path(path)
    return task_of(read_arrays(place), place)


def read_tasks(folder: str | Path) -> Iterator[Task]:
    """Yield the tasks of a folder in the order of their names, one at a time because they can be large."""
    yield from (read_task(path) for path in task_paths(folder))


def task_paths(folder: str | Path) -> list[Path]:
    """Return the files of the tasks in a folder in the order of their names; raise if there is none."""
    place = check_path(folder, "folder")
    if not place.is_dir():
        raise InvalidInputError("folder", "must be a folder of tasks, NAME.npz", got=str(place))
    paths = sorted(path for path in place.glob("*.npz") if "@" not in path.stem)
    if not paths:
        raise InvalidInputError(
            "folder", "must hold a task, NAME.npz", got=f"{place} without one", remedy="Make one with kcal task."
        )
    return paths


def check_tasks(folder: str | Path) -> None:
    """Read every task of a folder once, so that a bad file is reported before long work; warn of unused companions.

    Raises
    ------
    FileFormatError
        If a task or a companion cannot be used; the message names the file.
    """
    paths = task_paths(folder)
    for path in paths:
        try:
            read_task(path)
        except FileFormatError as error:
            raise FileFormatError(f"{error} Nothing was run: repair the file, or remove it from {folder}.") from error
    names = {path.stem for path in paths}
    for path in sorted(Path(folder).glob("*@*.npz")):
        name, _, loss = path.stem.partition("@")
        if loss not in COMPANIONS:
            known = ", ".join(COMPANIONS)
            warn(f"{path} is not used: companions are NAME@LOSS.npz with LOSS one of {known}.", KcalWarning)
        elif name not in names:
            warn(f"{path} is not used: there is no task {name}.npz beside it.", KcalWarning)


def task_of(arrays: Mapping[str, NDArray[Any]], place: Path) -> Task:
    """Return the task that the arrays of a file make up, with the companions beside the file."""
    checked = TaskArrays(arrays, place.name)
    train, pool = checked.part("train"), checked.part("pool")
    checked.check_parts_match(train, pool)
    share, classes = checked.calibration_share(), checked.classes(pool.logits.shape[1])
    files = {loss: place.with_name(f"{place.stem}@{loss}.npz") for loss in COMPANIONS}
    companions = {
        loss: TaskArrays(read_arrays(path), path.name).companion_logits(pool)
        for loss, path in files.items()
        if path.is_file()
    }
    return Task(place.stem, train, pool, share, classes, companions, checked.out_of_scope(pool))
