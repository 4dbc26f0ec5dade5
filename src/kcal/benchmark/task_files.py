"""The file of a benchmark task, NAME.npz: read and check it.

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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.benchmark.tasks import Task
from kcal.datasets import COMPANIONS
from kcal.embeddings import ClassifierOutputs
from kcal.errors import FileFormatError, InvalidInputError, KcalWarning, warn
from kcal.files import check_path, load_arrays

OUT_OF_SCOPE = "out_of_scope"


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


def task_of(arrays: Mapping[str, NDArray[Any]], place: Path) -> Task:
    """Return the task that the arrays of a file make up, with the companions beside the file."""
    checked = TaskArrays(arrays, place.name)
    train, pool = checked.part("train"), checked.part("pool")
    has_out_of_scope = any(name.startswith(OUT_OF_SCOPE) for name in arrays)
    out_of_scope = checked.part(OUT_OF_SCOPE, labelled=False) if has_out_of_scope else None
    checked.check_columns("train", train, pool)
    if out_of_scope is not None:
        checked.check_columns(OUT_OF_SCOPE, out_of_scope, pool)
    if (train.groups is None) != (pool.groups is None):
        raise checked.error("groups are given for only one of train and pool; give both or none.")
    if len(pool.labels) < 2:
        raise checked.error("the pool has 1 sample; to calibrate and to test it needs at least 2.")
    files = {loss: place.with_name(f"{place.stem}@{loss}.npz") for loss in COMPANIONS}
    companions = {
        loss: TaskArrays(read_arrays(path), path.name).companion_logits(pool)
        for loss, path in files.items()
        if path.is_file()
    }
    share, group_share = checked.share("calibration_share"), checked.share("group_calibration_share")
    if share is None:
        raise checked.error("calibration_share is missing: the share of the pool to calibrate with.")
    if group_share is not None and pool.groups is None:
        raise checked.error("group_calibration_share is given, but there are no groups.")
    classes = checked.classes(pool.logits.shape[1])
    return Task(place.stem, train, pool, share, classes, companions, out_of_scope, group_share)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file by name."""
    try:
        with path.open("rb") as file, load_arrays(file) as stored:
            arrays = {name: stored[name] for name in stored.files}
        for name, values in arrays.items():
            if not isinstance(values, np.ndarray):
                raise ValueError(f"{name} is not an array")
        return arrays
    except FileNotFoundError:
        raise FileFormatError(f"{path} does not exist.") from None
    except Exception as error:  # numpy, zipfile and zlib raise almost any error on damaged files
        raise FileFormatError(f"{path} is not an npz file of arrays, or is damaged ({error}).") from error


@dataclass(frozen=True)
class TaskArrays:
    """The arrays of a task's file; methods return parts of the task, or raise an error that names the file."""

    arrays: Mapping[str, NDArray[Any]]
    file: str

    def part(self, part: str, *, labelled: bool = True) -> ClassifierOutputs:
        """Return the outputs on "train" or "pool", or those out of scope, which have no labels."""
        kinds = ("embeddings", "logits", "labels") if labelled else ("embeddings", "logits")
        missing = [name for kind in kinds if (name := f"{part}_{kind}") not in self.arrays]
        if missing:
            raise self.error(f"{', '.join(missing)} missing; a task needs them. It has {', '.join(self.arrays)}.")
        embeddings, logits = self.matrix(f"{part}_embeddings"), self.matrix(f"{part}_logits")
        n_samples, n_classes = logits.shape
        if len(embeddings) != n_samples:
            raise self.error(f"{part}_embeddings has {len(embeddings):,} rows, but {part}_logits has {n_samples:,}.")
        if not labelled:
            return ClassifierOutputs(embeddings, logits)
        labels, groups = self.arrays[f"{part}_labels"], self.arrays.get(f"{part}_groups")
        for kind, vector in (("labels", labels), ("groups", groups)):
            if vector is not None and vector.shape != (n_samples,):
                raise self.error(f"{part}_{kind} must have one entry per row, {n_samples:,}; got shape {vector.shape}.")
        if labels.dtype.kind not in "iu" or not ((labels >= 0) & (labels < n_classes)).all():
            raise self.error(f"{part}_labels must be columns of the logits, integers from 0 to {n_classes - 1}.")
        return ClassifierOutputs(embeddings, logits, labels.astype(np.int64), groups)

    def check_columns(self, part: str, outputs: ClassifierOutputs, pool: ClassifierOutputs) -> None:
        """Raise if a part differs from the pool in the columns of its embeddings or logits."""
        for kind in ("embeddings", "logits"):
            width, expected = getattr(outputs, kind).shape[1], getattr(pool, kind).shape[1]
            if width != expected:
                raise self.error(f"{part}_{kind} has {width} columns, but those of the pool have {expected}.")

    def share(self, name: str) -> float | None:
        """Return a share of the pool that calibrates; None if it is missing."""
        share = self.arrays.get(name)
        if share is None:
            return None
        if share.shape != () or share.dtype.kind != "f" or not 0 < float(share) < 1:
            raise self.error(f"{name} must be a number between 0 and 1; got {share!r}.")
        return float(share)

    def classes(self, n_classes: int) -> tuple[str, ...]:
        """Return the names of the columns of the logits; their numbers if the file has none."""
        names = self.arrays.get("classes", np.arange(n_classes))
        if names.shape != (n_classes,):
            raise self.error(f"classes must name all {n_classes} columns of the logits; got shape {names.shape}.")
        return tuple(str(name) for name in names.tolist())

    def companion_logits(self, pool: ClassifierOutputs) -> NDArray[np.float32]:
        """Return the logits of a companion's file, for the rows of the pool."""
        if "pool_logits" not in self.arrays:
            raise self.error("pool_logits is missing; a companion needs it.")
        logits = self.matrix("pool_logits")
        if logits.shape != pool.logits.shape:
            raise self.error(
                f"pool_logits must have the rows and classes of the task, {pool.logits.shape}; got {logits.shape}."
            )
        if "pool_labels" in self.arrays and not np.array_equal(self.arrays["pool_labels"], pool.labels):
            raise self.error("pool_labels differ from those of the task: other rows, or another order.")
        return logits

    def matrix(self, name: str) -> NDArray[np.float32]:
        """Return a matrix of finite numbers in single precision."""
        values = self.arrays[name]
        if values.ndim != 2 or 0 in values.shape or values.dtype.kind != "f":
            raise self.error(f"{name} must be a matrix of floats; got shape {values.shape}, dtype {values.dtype}.")
        with np.errstate(over="ignore"):
            single = values.astype(np.float32)
        finite = np.isfinite(single).all(axis=1)
        if not finite.all():
            raise self.error(f"{name} must be finite in single precision; row {int(np.argmin(finite))} is not.")
        return single

    def error(self, message: str) -> FileFormatError:
        """Return an error that names the file."""
        return FileFormatError(f"{self.file}: {message}")
