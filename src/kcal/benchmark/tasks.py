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
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array

from kcal.datasets import COMPANIONS, load_example
from kcal.embeddings import ClassifierOutputs
from kcal.errors import FileFormatError, InvalidInputError, KcalWarning, printable, warn
from kcal.files import array_names, check_path, read_array, write_arrays
from kcal.validation import check_number, shown, to_array

MAX_LISTED = 10_000
"""Combinations of groups up to which all are listed and permuted; beyond, they are drawn one by one."""
MIN_CALIBRATION_GROUPS = 2
"""Each calibration group can then be predicted from another one."""
HALF_COLUMN_ERROR = 1e-3
"""Largest root mean squared rounding error of a column in half precision, as a share of its standard deviation."""
HALF_LOGIT_ERROR = 0.01
"""Largest rounding error of a logit in half precision; it changes a probability by at most a quarter of that."""
OUT_OF_SCOPE = "out_of_scope"
KINDS = {
    "train": ("embeddings", "logits", "labels"),
    "pool": ("embeddings", "logits", "labels"),
    OUT_OF_SCOPE: ("embeddings", "logits"),
}
"""Arrays that each part of a file needs, if it has the part."""


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
    return _task_of(_read_arrays(place), place)


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
    """Read every task of a folder once, so that a bad file is reported before long work; warn of unused companions."""
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
    """Write a task and return what is read back; everything is checked before the file is written.

    Matrices are stored in half precision where its rounding is negligible, otherwise in single precision.

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
    shares = {"calibration_share": calibration_share, "group_calibration_share": group_calibration_share}
    arrays: dict[str, NDArray[Any]] = {
        name: np.array(check_number(share, name, minimum=0.0, maximum=1.0, exclusive=True))
        for name, share in shares.items()
        if share is not None
    }
    for name, part in {"train": train, "pool": pool, OUT_OF_SCOPE: out_of_scope}.items():
        if not isinstance(part, ClassifierOutputs) and (part is not None or name != OUT_OF_SCOPE):
            raise InvalidInputError(name, "must be a kcal.ClassifierOutputs", got=shown(part))
        for kind in ("embeddings", "logits", "labels", "groups"):
            values = getattr(part, kind, None)
            if values is not None:
                arrays[f"{name}_{kind}"] = to_array(values, f"{name}.{kind}")
    if classes is not None:
        arrays["classes"] = np.asarray(classes, dtype=str)
    _task_of(arrays, place)  # checks all of them
    for name, values in arrays.items():
        if name.endswith(("_embeddings", "_logits")):
            largest_error = HALF_LOGIT_ERROR if name.endswith("_logits") else np.inf
            arrays[name] = in_least_precision(values.astype(np.float32), largest_error=largest_error)
        elif values.dtype.kind in "iu" and name.endswith("_labels"):
            arrays[name] = values.astype(np.int32)
        elif values.dtype.kind == "O":
            arrays[name] = values.astype(str)
    write_arrays(place, arrays)
    return _task_of(arrays, place)


def in_least_precision(values: NDArray[np.float32], *, largest_error: float = np.inf) -> NDArray[Any]:
    """Return values in half precision if that keeps every column and entry within the limits, else unchanged."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    errors = np.abs(half.astype(np.float64) - values)  # (n, n_columns); infinite beyond the range
    rounded = np.sqrt(np.mean(errors**2, axis=0))
    keeps_spread = rounded <= HALF_COLUMN_ERROR * values.astype(np.float64).std(axis=0)
    keeps_spread |= np.ptp(values, axis=0) == 0  # a constant column stays constant however it is rounded
    within = np.isfinite(errors) & (errors <= largest_error)
    return half if within.all() and keeps_spread.all() else values


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file by name."""
    try:
        if not (names := array_names(path)):
            raise ValueError("it has no arrays")
        return {name: read_array(path, name) for name in names}
    except FileNotFoundError:
        raise FileFormatError(f"{path} does not exist.") from None
    except Exception as error:  # numpy, zipfile and zlib raise almost any error on damaged files
        raise FileFormatError(f"{path} is not an npz file of arrays, or is damaged ({error}).") from error


def _task_of(arrays: Mapping[str, NDArray[Any]], place: Path) -> Task:
    """Return the task that the arrays of a file make up, with the companions beside the file; raise if they do not."""
    with _naming(place):
        has_outside = any(name.startswith(OUT_OF_SCOPE) for name in arrays)
        for part, kinds in KINDS.items():
            missing = [name for kind in kinds if (name := f"{part}_{kind}") not in arrays]
            is_needed = part != OUT_OF_SCOPE or has_outside
            _require(not (missing and is_needed), f"{', '.join(missing)} missing. It has {', '.join(arrays)}")
        pool = _part(arrays, "pool")
        train = _part(arrays, "train", like=pool)
        outside = _part(arrays, OUT_OF_SCOPE, like=pool) if has_outside else None
        _require((train.groups is None) == (pool.groups is None), "groups are given for only one of train and pool")
        _require(len(pool.labels) >= 2, "the pool has 1 sample; to calibrate and to test it needs at least 2")
        shares = {name: arrays[name] for name in ("calibration_share", "group_calibration_share") if name in arrays}
        _require("calibration_share" in shares, "calibration_share is missing: the share of the pool to calibrate with")
        for name, share in shares.items():
            is_share = share.shape == () and share.dtype.kind == "f" and 0 < float(share) < 1
            _require(is_share, f"{name} must be a number between 0 and 1; got {share!r}")
        group_share = float(shares["group_calibration_share"]) if "group_calibration_share" in shares else None
        _require(group_share is None or pool.groups is not None, "group_calibration_share is given without groups")
        n_classes = pool.logits.shape[1]
        names = arrays.get("classes", np.arange(n_classes))
        _require(names.shape == (n_classes,), f"classes must name all {n_classes} columns; got shape {names.shape}")
    companions = {
        loss: _companion_logits(path, pool)
        for loss in COMPANIONS
        if (path := place.with_name(f"{place.stem}@{loss}.npz")).is_file()
    }
    classes = tuple(str(name) for name in names.tolist())
    return Task(place.stem, train, pool, float(shares["calibration_share"]), classes, companions, outside, group_share)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in errors about its arrays."""
    try:
        yield
    except ValueError as error:
        raise FileFormatError(f"{path.name}: {str(error).rstrip('.')}.") from error


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def _part(arrays: Mapping[str, NDArray[Any]], part: str, *, like: ClassifierOutputs | None = None) -> ClassifierOutputs:
    """Return the outputs on "train" or "pool", or those out of scope, which have no labels; ``like`` is the pool."""
    embeddings, logits = _matrix(arrays, f"{part}_embeddings"), _matrix(arrays, f"{part}_logits")
    n_samples, n_classes = logits.shape
    for kind, values in (("embeddings", embeddings), ("logits", logits)):
        shape = (n_samples, values.shape[1] if like is None else getattr(like, kind).shape[1])
        _require(values.shape == shape, f"{part}_{kind} must have the shape {shape}; got {values.shape}")
    if part == OUT_OF_SCOPE:
        return ClassifierOutputs(embeddings, logits)
    labels, groups = arrays[f"{part}_labels"], arrays.get(f"{part}_groups")
    for kind, vector in (("labels", labels), ("groups", groups)):
        has_entries = vector is None or vector.shape == (n_samples,)
        _require(has_entries, f"{part}_{kind} must have one entry per row, {n_samples:,}")
    are_columns = labels.dtype.kind in "iu" and bool(((labels >= 0) & (labels < n_classes)).all())
    _require(are_columns, f"{part}_labels must be columns of the logits, integers from 0 to {n_classes - 1}")
    return ClassifierOutputs(embeddings, logits, labels.astype(np.int64), groups)


def _matrix(arrays: Mapping[str, NDArray[Any]], name: str) -> NDArray[np.float32]:
    """Return a matrix of finite numbers in single precision."""
    with np.errstate(over="ignore", invalid="ignore"):
        matrix: NDArray[np.float32] = check_array(arrays[name], dtype=np.float32, input_name=name)
    return matrix


def _companion_logits(path: Path, pool: ClassifierOutputs) -> NDArray[np.float32]:
    """Return the logits of a companion's file, for the rows of the pool."""
    arrays = _read_arrays(path)
    with _naming(path):
        _require("pool_logits" in arrays, "pool_logits is missing; a companion needs it")
        logits, labels = _matrix(arrays, "pool_logits"), arrays.get("pool_labels")
        expected = f"pool_logits must have the rows and classes of the task, {pool.logits.shape}; got {logits.shape}"
        _require(logits.shape == pool.logits.shape, expected)
        same_labels = labels is None or np.array_equal(labels, pool.labels)
        _require(same_labels, "pool_labels differ from those of the task: other rows, or another order")
    return logits
