"""Benchmark tasks, a classifier's outputs on its training data and on a pool of unseen samples; splits and files.

A task is a file, NAME.npz:

    train_embeddings (n, h), train_logits (n, K), train_labels (n,)     outputs on the network's training data
    pool_embeddings, pool_logits, pool_labels                           outputs on unseen samples
    calibration_share                                                   share of the pool that calibrates in a split
    train_groups, pool_groups, classes                                  optional
    group_calibration_share                                             optional: that of groups, if it is another
    out_of_scope_embeddings, out_of_scope_logits                        optional: outputs for inputs of no class

Companions beside it, NAME@focal.npz, NAME@mmce.npz and NAME@smooth.npz, hold ``pool_logits`` of a network that was
trained with another loss, and may hold ``pool_labels``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.datasets import COMPANIONS, load_example
from kcal.embeddings import ClassifierOutputs
from kcal.embeddings.read import check_parts, errors_about, read_arrays
from kcal.errors import FileFormatError, InvalidInputError, KcalWarning, printable, warn
from kcal.files import check_path, write_arrays
from kcal.validation import check_number, shown, to_array

MAX_LISTED = 10_000
"""Combinations of groups up to which all are listed and permuted; beyond, they are drawn one by one."""
MIN_CALIBRATION_GROUPS = 2
"""Each calibration group can then be predicted from another one."""
PARTS = ("train", "pool", "out_of_scope")
KINDS = ("embeddings", "logits", "labels", "groups")


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


def read_task(path: str | Path) -> Task:
    """Read and check one task and its companions."""
    place = check_path(path)
    with _about(place):
        task = _make_task(place.stem, read_arrays(place))
    companions = {}
    for loss in COMPANIONS:
        other = place.with_name(f"{place.stem}@{loss}.npz")
        if other.is_file():
            with _about(other):
                companions[loss] = _companion_logits(read_arrays(other), task.pool)
    return replace(task, companions=companions)


def read_tasks(folder: str | Path) -> Iterator[Task]:
    """Yield the tasks of a folder in the order of their names, one at a time because they can be large."""
    yield from (read_task(path) for path in task_paths(folder))


def task_paths(folder: str | Path) -> list[Path]:
    """Return the files of the tasks in a folder in the order of their names; raise if there is none."""
    place = check_path(folder, "folder")
    paths = sorted(path for path in place.glob("*.npz") if "@" not in path.stem)
    if not paths:
        expected, remedy = "must be a folder with a task, NAME.npz", "Make one with kcal task."
        raise InvalidInputError("folder", expected, got=str(place), remedy=remedy)
    return paths


def check_tasks(folder: str | Path) -> None:
    """Read every task of a folder once, so that a bad file is reported before long work; warn of unused companions."""
    paths = task_paths(folder)
    for path in paths:
        try:
            read_task(path)
        except FileFormatError as error:
            raise FileFormatError(f"{error} Nothing was run: repair the file, or remove it from {folder}.") from error
    used = {f"{path.stem}@{loss}" for path in paths for loss in COMPANIONS}
    for path in sorted(Path(folder).glob("*@*.npz")):
        if path.stem not in used:
            losses = ", ".join(COMPANIONS)
            warn(f"{path} is not used: companions are NAME@LOSS.npz of a task NAME, with LOSS {losses}.", KcalWarning)


def write_task(
    path: str | Path,
    train: ClassifierOutputs,
    pool: ClassifierOutputs,
    *,
    calibration_share: float,
    group_calibration_share: float | None = None,
    classes: Sequence[str] | None = None,
    out_of_scope: ClassifierOutputs | None = None,
) -> Task:
    """Write a task, its matrices in single precision, and return it; everything is checked before.

    Parameters
    ----------
    path
        NAME.npz.
    train, pool
        Embeddings, logits, labels (column indices of the logits) and optional groups of both.
    calibration_share
        Share of the pool that calibrates in each split, between 0 and 1.
    group_calibration_share
        Share of the groups that calibrate in each grouped split; ``calibration_share`` if None.
    classes
        Names of the columns of the logits; their numbers if None.
    out_of_scope
        Embeddings and logits of inputs that belong to no class.
    """
    place = check_path(path)
    if place.suffix != ".npz" or "@" in place.stem:
        raise InvalidInputError("path", "must be NAME.npz without @", got=repr(place.name))
    for part, outputs in zip(PARTS, (train, pool, out_of_scope), strict=True):
        if not isinstance(outputs, ClassifierOutputs) and (outputs is not None or part != "out_of_scope"):
            raise InvalidInputError(part, "must be a kcal.ClassifierOutputs", got=shown(outputs))
    names: Any = None if classes is None else tuple(map(str, classes))
    given = Task(place.stem, train, pool, calibration_share, names, {}, out_of_scope, group_calibration_share)
    task = _make_task(place.stem, _arrays_of(given))
    write_arrays(place, _arrays_of(task))
    return task


def _arrays_of(task: Task) -> dict[str, NDArray[Any]]:
    """Return the arrays of a task's file by name."""
    arrays = {name: getattr(task, name) for name in ("classes", "calibration_share", "group_calibration_share")}
    for part in PARTS:
        arrays |= {f"{part}_{kind}": getattr(getattr(task, part), kind, None) for kind in KINDS}
    return {name: to_array(value, name) for name, value in arrays.items() if value is not None}


@contextmanager
def _about(path: Path) -> Iterator[None]:
    """Name the file in errors about its arrays."""
    try:
        yield
    except InvalidInputError as error:
        raise FileFormatError(f"{path.name}: {error}") from error


def _make_task(name: str, arrays: Mapping[str, NDArray[Any]]) -> Task:
    """Return the task that arrays by name make up; raise if one is missing, or does not fit the others."""
    pool = _make_part("pool", arrays)
    train = _make_part("train", arrays, like=pool)
    has_outside = any(array.startswith("out_of_scope") for array in arrays)
    outside = _make_part("out_of_scope", arrays, like=pool) if has_outside else None
    if (train.groups is None) != (pool.groups is None):
        raise InvalidInputError("train_groups, pool_groups", "must be given for both or none", got="one of them")
    if len(pool.labels) < 2:
        raise InvalidInputError("pool_labels", "must be at least 2, to calibrate and to test", got="1")
    shares: dict[str, Any] = {
        share: check_number(_get(arrays, share).tolist(), share, minimum=0.0, maximum=1.0, exclusive=True)
        for share in ("calibration_share", "group_calibration_share")
        if share in arrays or share == "calibration_share"
    }
    if "group_calibration_share" in shares and pool.groups is None:
        raise InvalidInputError("group_calibration_share", "needs groups", got="none")
    n_classes = pool.logits.shape[1]
    classes = tuple(map(str, arrays.get("classes", np.arange(n_classes)).tolist()))
    if len(classes) != n_classes:
        raise InvalidInputError("classes", f"must name all {n_classes} columns of the logits", got=str(len(classes)))
    return Task(name, train, pool, classes=classes, out_of_scope=outside, **shares)


def _make_part(
    part: str, arrays: Mapping[str, NDArray[Any]], like: ClassifierOutputs | None = None
) -> ClassifierOutputs:
    """Return the outputs on "train" or "pool", or those out of scope, which have no labels; ``like`` is the pool."""
    needed = KINDS[:2] if part == "out_of_scope" else KINDS[:3]
    given = {kind: _get(arrays, f"{part}_{kind}") for kind in needed}
    if part != "out_of_scope" and f"{part}_groups" in arrays:
        given["groups"] = arrays[f"{part}_groups"]
    with errors_about(f"{part}_"):
        checked = check_parts(given)
    for kind in ("embeddings", "logits"):
        checked[kind] = checked[kind].astype(np.float32)
        if like is not None and checked[kind].shape[1] != getattr(like, kind).shape[1]:
            expected = f"must have {getattr(like, kind).shape[1]} columns, as the pool has"
            raise InvalidInputError(f"{part}_{kind}", expected, got=str(checked[kind].shape[1]))
    labels, n_classes = checked.get("labels", np.zeros(1, dtype=int)), checked["logits"].shape[1]
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= n_classes:
        expected = f"must be columns of the logits, integers from 0 to {n_classes - 1}"
        raise InvalidInputError(f"{part}_labels", expected, got=f"{labels.dtype}, such as {labels.tolist()[:3]}")
    return ClassifierOutputs(**checked)


def _get(arrays: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    """Return an array by its name; raise if it is missing."""
    if name not in arrays:
        raise InvalidInputError(name, "is missing", got=", ".join(arrays))
    return arrays[name]


def _companion_logits(arrays: Mapping[str, NDArray[Any]], pool: ClassifierOutputs) -> NDArray[np.float32]:
    """Return the logits of a companion's file, for the rows of the pool."""
    given = {"logits": _get(arrays, "pool_logits")}
    with errors_about("pool_"):
        logits: NDArray[np.float32] = check_parts(given)["logits"].astype(np.float32)
    if logits.shape != pool.logits.shape:
        raise InvalidInputError("pool_logits", f"must have the shape {pool.logits.shape}", got=str(logits.shape))
    if not np.array_equal(arrays.get("pool_labels", pool.labels), pool.labels):
        raise InvalidInputError("pool_labels", "must be those of the task", got="other rows, or another order")
    return logits
