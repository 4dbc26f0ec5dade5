"""Benchmark tasks: a trained classifier's outputs on its training data and on a pool that it never saw.

A task is one npz file, NAME.npz:

    train_embeddings (n, h), train_logits (n, K), train_labels (n,)     what the network was trained on
    pool_embeddings, pool_logits, pool_labels                           what it never saw
    calibration_share                                                   of the pool, in each reshuffle
    train_groups, pool_groups, classes                                  if there are any
    out_of_scope_embeddings, out_of_scope_logits                        of inputs of no class, if there are any

Beside it may lie companions, NAME@focal.npz, NAME@mmce.npz and NAME@smooth.npz: ``pool_logits`` of a network trained
with another loss.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
from numpy.typing import NDArray

from kcal.benchmark.reshuffles import LEAST_GROUPS
from kcal.calibrators import ClassifierOutputs
from kcal.datasets import COMPANIONS, load_example
from kcal.errors import FileFormatError, InvalidInputError, KcalWarning
from kcal.persistence import write_whole

PARTS = ("train", "pool")
DAMAGED = (OSError, ValueError, EOFError, BadZipFile, zlib.error, NotImplementedError, RuntimeError, struct.error)
"""What numpy and zipfile raise at damaged files, one thing or another by the byte that is wrong."""
OUT_OF_SCOPE = "out_of_scope"


@dataclass(frozen=True, eq=False)
class Task:
    """A classifier's outputs, checked; labels are columns of the logits."""

    name: str
    train: ClassifierOutputs = field(repr=False)
    pool: ClassifierOutputs = field(repr=False)
    calibration_share: float
    classes: tuple[str, ...] = field(repr=False)
    companions: Mapping[str, NDArray[np.floating[Any]]] = field(default_factory=dict, repr=False)  # pool logits by loss
    out_of_scope: ClassifierOutputs | None = field(default=None, repr=False)  # of inputs of no class, without labels

    @property
    def has_groups(self) -> bool:
        """Whether it is known which samples of the pool belong together."""
        return self.pool.groups is not None

    def __str__(self) -> str:
        groups = f", {len(np.unique(self.pool.groups))} groups" if self.has_groups else ""
        companions = f"; companions {', '.join(self.companions)}" if self.companions else ""
        outside = f"; {len(self.out_of_scope.logits):,} out of scope" if self.out_of_scope is not None else ""
        return (
            f"{self.name}: {len(self.classes)} classes, embeddings of {self.pool.embeddings.shape[1]} dimensions, "
            f"{len(self.train.labels):,} training and {len(self.pool.labels):,} unseen samples{groups}, "
            f"{self.calibration_share:.0%} of them to calibrate{companions}{outside}"
        )


def can_be_dealt_by_group(task: Task) -> bool:
    """Say whether a task has groups, and enough of them to calibrate with some and test on others."""
    return task.has_groups and len(np.unique(task.pool.groups)) > LEAST_GROUPS


def example_task() -> Task:
    """Return the embedded example; both of its unseen parts are the pool."""
    example = load_example()
    unseen = (example.calibration, example.test)
    pool = [np.concatenate([getattr(part, name) for part in unseen]) for name in ("embeddings", "logits", "labels")]
    read = {loss: example.companion(loss) for loss in COMPANIONS}
    return Task(
        example.name,
        ClassifierOutputs(example.train.embeddings, example.train.logits, example.train.labels),
        ClassifierOutputs(*pool),
        len(example.calibration) / len(pool[-1]),
        example.classes,
        {loss: np.concatenate([found.calibration_logits, found.test_logits]) for loss, found in read.items()},
    )


def read_tasks(folder: str | Path) -> Iterator[Task]:
    """Yield the tasks of a folder, by name; one at a time, because they can be large."""
    yield from (read_task(path) for path in task_paths(folder))


def task_paths(folder: str | Path) -> list[Path]:
    """Return the files of the tasks in a folder, by name, without companions; there must be one."""
    place = Path(folder)
    if not place.is_dir():
        raise InvalidInputError(f"{place} is not a folder; give one that holds tasks, NAME.npz.")
    paths = sorted(path for path in place.glob("*.npz") if "@" not in path.stem)
    if not paths:
        raise InvalidInputError(f"{place} holds no task: no file NAME.npz. Make one with kcal task.")
    return paths


def check_tasks(folder: str | Path) -> None:
    """Read every task of a folder, one at a time, so that a bad one is told before long work; warn of idle companions.

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
            raise FileFormatError(f"{error} Nothing was run: mend the file, or remove it from {folder}.") from error
    names = {path.stem for path in paths}
    for path in sorted(Path(folder).glob("*@*.npz")):
        name, _, loss = path.stem.partition("@")
        if loss not in COMPANIONS:
            known = ", ".join(COMPANIONS)
            warnings.warn(f"{path} is not used: companions are NAME@LOSS.npz, LOSS one of {known}.", KcalWarning, 2)
        elif name not in names:
            warnings.warn(f"{path} is not used: there is no task {name}.npz beside it.", KcalWarning, 2)


def read_task(path: str | Path) -> Task:
    """Read and check one task and its companions."""
    place = Path(path)
    return _task_of(_read(place), place)


def _task_of(arrays: Mapping[str, NDArray[Any]], place: Path) -> Task:
    parts = {part: _part(arrays, part, place.name) for part in PARTS}
    n_classes = parts["pool"].logits.shape[1]
    _check_alike(parts, place.name)
    share = _share(arrays, place.name)
    names = arrays.get("classes", np.arange(n_classes))
    if names.shape != (n_classes,):
        raise FileFormatError(f"{place.name}: classes must name all {n_classes} columns; got shape {names.shape}.")
    if len(parts["pool"].labels) < 2:
        raise FileFormatError(f"{place.name}: the pool has 1 sample; to calibrate and to test it needs at least 2.")
    beside = {loss: place.with_name(f"{place.stem}@{loss}.npz") for loss in COMPANIONS}
    companions = {loss: _companion(path, parts["pool"]) for loss, path in beside.items() if path.is_file()}
    classes = tuple(str(name) for name in names.tolist())
    outside = _out_of_scope(arrays, parts["pool"], place.name)
    return Task(place.stem, parts["train"], parts["pool"], share, classes, companions, outside)


def write_task(
    path: str | Path,
    train: ClassifierOutputs,
    pool: ClassifierOutputs,
    *,
    calibration_share: float,
    classes: Sequence[str] | None = None,
    out_of_scope: ClassifierOutputs | None = None,
) -> Task:
    """Write a task, in half precision, and return what is read back; a file that could not be read is not left behind.

    Parameters
    ----------
    path
        NAME.npz.
    train, pool
        Embeddings, logits, labels (columns of the logits) and, if there are any, groups of both.
    calibration_share
        Share of the pool that calibrates in each reshuffle.
    classes
        Names of the columns; their numbers if None.
    out_of_scope
        Embeddings and logits of inputs that belong to no class, if there are any.
    """
    place = Path(path)
    if place.suffix != ".npz" or "@" in place.stem:
        raise InvalidInputError(f"a task must be called NAME.npz, without @; got {place.name!r}.")
    arrays: dict[str, NDArray[Any]] = {"calibration_share": np.array(float(calibration_share))}
    if classes is not None:
        arrays["classes"] = np.array([str(name) for name in classes])
    outside = {} if out_of_scope is None else {OUT_OF_SCOPE: out_of_scope}
    for name, part in {"train": train, "pool": pool, **outside}.items():
        for what in ("embeddings", "logits"):
            values = np.asarray(getattr(part, what), dtype=np.float32)
            arrays[f"{name}_{what}"] = _halved(values, f"{name}_{what}")
        if name == OUT_OF_SCOPE:
            continue
        arrays[f"{name}_labels"] = np.asarray(part.labels).astype(np.int32)
        if part.groups is not None:
            arrays[f"{name}_groups"] = np.asarray(part.groups)
    checked = _task_of(arrays, place)  # before anything is written
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_whole(place, buffer.getvalue())
    return checked


def _halved(values: NDArray[np.float32], name: str) -> NDArray[Any]:
    """Return values in half precision where they fit in; a network's outputs hold no more digits than that."""
    largest = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    return values.astype(np.float16) if largest < float(np.finfo(np.float16).max) else values


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as stream:
            if not is_zipfile(stream):
                raise ValueError("npz files are zip archives, and this is none")
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        foreign = [name for name, values in arrays.items() if not isinstance(values, np.ndarray)]
        if foreign:
            raise ValueError(f"{foreign[0]} is no array")
        return arrays
    except FileNotFoundError:
        raise FileFormatError(f"{path} is not there.") from None
    except DAMAGED as error:
        raise FileFormatError(f"{path} is no npz file of arrays, or a damaged one ({error}).") from error


def _part(arrays: Mapping[str, NDArray[Any]], part: str, name: str) -> ClassifierOutputs:
    missing = [f"{part}_{what}" for what in ("embeddings", "logits", "labels") if f"{part}_{what}" not in arrays]
    if missing:
        raise FileFormatError(f"{name}: {', '.join(missing)} missing; a task needs them. It has {', '.join(arrays)}.")
    matrices = [_matrix(arrays[f"{part}_{what}"], f"{name}: {part}_{what}") for what in ("embeddings", "logits")]
    labels = arrays[f"{part}_labels"]
    groups = arrays.get(f"{part}_groups")
    n_samples, n_classes = matrices[1].shape
    for what, vector in (("labels", labels), ("groups", groups)):
        if vector is not None and vector.shape != (n_samples,):
            raise FileFormatError(
                f"{name}: {part}_{what} must be one a row, {n_samples:,} of them; got shape {vector.shape}."
            )
    if len(matrices[0]) != n_samples:
        raise FileFormatError(
            f"{name}: {part}_embeddings has {len(matrices[0]):,} rows, but {part}_logits has {n_samples:,}."
        )
    if labels.dtype.kind not in "iu" or not ((labels >= 0) & (labels < n_classes)).all():
        raise FileFormatError(f"{name}: {part}_labels must be columns of the logits, 0 to {n_classes - 1}.")
    return ClassifierOutputs(matrices[0], matrices[1], labels.astype(np.int64), groups)


def _out_of_scope(arrays: Mapping[str, NDArray[Any]], pool: ClassifierOutputs, name: str) -> ClassifierOutputs | None:
    given = [what for what in ("embeddings", "logits") if f"{OUT_OF_SCOPE}_{what}" in arrays]
    if not given:
        return None
    if len(given) == 1:
        raise FileFormatError(f"{name}: {OUT_OF_SCOPE}_{given[0]} is there alone; give embeddings and logits, or none.")
    found = ClassifierOutputs(
        *(_matrix(arrays[f"{OUT_OF_SCOPE}_{what}"], f"{name}: {OUT_OF_SCOPE}_{what}") for what in given)
    )
    for what in given:
        width, expected = getattr(found, what).shape[1], getattr(pool, what).shape[1]
        if width != expected:
            raise FileFormatError(f"{name}: {OUT_OF_SCOPE}_{what} has {width} columns, but the pool's have {expected}.")
    if len(found.embeddings) != len(found.logits):
        raise FileFormatError(
            f"{name}: {OUT_OF_SCOPE}_embeddings has {len(found.embeddings):,} rows, but {OUT_OF_SCOPE}_logits has "
            f"{len(found.logits):,}."
        )
    return found


def _matrix(values: NDArray[Any], name: str) -> NDArray[np.float32]:
    if values.ndim != 2 or 0 in values.shape or values.dtype.kind != "f":
        raise FileFormatError(f"{name} must be a matrix of floats; got shape {values.shape}, dtype {values.dtype}.")
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        raise FileFormatError(f"{name} must be finite; row {int(np.argmin(finite))} is not.")
    return values.astype(np.float32)


def _check_alike(parts: Mapping[str, ClassifierOutputs], name: str) -> None:
    for what in ("embeddings", "logits"):
        widths = [getattr(parts[part], what).shape[1] for part in PARTS]
        if widths[0] != widths[1]:
            raise FileFormatError(f"{name}: train and pool {what} have {widths[0]} and {widths[1]} columns.")
    if (parts["train"].groups is None) != (parts["pool"].groups is None):
        raise FileFormatError(f"{name}: groups are there for one of train and pool only; give both or none.")


def _share(arrays: Mapping[str, NDArray[Any]], name: str) -> float:
    if "calibration_share" not in arrays:
        raise FileFormatError(f"{name}: calibration_share is missing: the share of the pool to calibrate with.")
    share = arrays["calibration_share"]
    if share.shape != () or share.dtype.kind != "f" or not 0 < float(share) < 1:
        raise FileFormatError(f"{name}: calibration_share must be a number between 0 and 1; got {share!r}.")
    return float(share)


def _companion(path: Path, pool: ClassifierOutputs) -> NDArray[np.float32]:
    arrays = _read(path)
    if "pool_logits" not in arrays:
        raise FileFormatError(f"{path.name}: pool_logits is missing; a companion needs it.")
    logits = _matrix(arrays["pool_logits"], f"{path.name}: pool_logits")
    if logits.shape != pool.logits.shape:
        raise FileFormatError(
            f"{path.name}: pool_logits must be for the same rows and classes, {pool.logits.shape}; got {logits.shape}."
        )
    if "pool_labels" in arrays and not np.array_equal(arrays["pool_labels"], pool.labels):
        raise FileFormatError(f"{path.name}: pool_labels are not those of the task; the rows differ, or their order.")
    return logits
