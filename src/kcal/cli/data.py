"""Load a classifier's outputs from files: one record, whatever the format and however many files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators import ClassifierOutputs
from kcal.cli.files import ArraysFile, TableFile, check_readable, read_npy
from kcal.errors import InvalidInputError
from kcal.validation import check_matrix, check_weights

COLUMNS = {"labels": "label", "groups": "group", "weights": "weight", "ids": "id"}
"""Values per sample: the key in an npz file, and the default column of a table."""


@dataclass(frozen=True)
class Source:
    """Where to load samples from.

    ``columns`` and ``files`` are what the user named, by key ("labels", "groups", …); ``columns`` may also contain the
    patterns "features" and "logits". ``prefixes`` may precede the keys of an npz file.
    """

    path: Path
    columns: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    prefixes: Sequence[str] = ("",)
    classes: Sequence[str] | None = None


@dataclass(frozen=True)
class Request:
    """What to load.

    Attributes
    ----------
    matrix : str
        "embeddings", "logits" or "probabilities": the array to take from an npz file, and what the columns of a table
        or the array of an npy file are taken for. Probabilities are stored as ``outputs.logits``.
    logits : bool
        Whether to load logits beside embeddings, where there are any.
    keys : sequence of str
        Which of labels, groups, weights and ids to load, where there are any.
    labelled : bool
        Whether labels are required.
    feature_names, logit_names : sequence of str
        The columns that a model was fitted on: a table is read in their order, whatever else it contains.
    """

    matrix: str
    logits: bool = False
    keys: Sequence[str] = tuple(COLUMNS)
    labelled: bool = False
    feature_names: Sequence[str] = ()
    logit_names: Sequence[str] = ()


@dataclass(frozen=True)
class Dataset:
    """A classifier's outputs, and the names that belong to them.

    ``classes`` are the classes of the logits' columns, if the file or the user lists them. ``column_classes`` are the
    classes that a table's columns of logits or probabilities are named after. ``feature_columns`` and
    ``logit_columns`` are the names of the columns in the table.
    """

    name: str
    outputs: ClassifierOutputs
    classes: NDArray[Any] | None = None
    column_classes: tuple[str, ...] = ()
    feature_columns: tuple[str, ...] = ()
    logit_columns: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.outputs.logits if self.outputs.embeddings is None else self.outputs.embeddings)


def load(source: Source, request: Request) -> Dataset:
    """Load and check a data set; see :class:`Request`."""
    suffix = check_readable(source.path)
    parts: dict[str, Any]
    if suffix == ".npz":
        parts = _load_arrays(source, request)
    elif suffix == ".npy":
        parts = {"matrix": read_npy(source.path)}
        if request.labelled and "labels" not in source.files:
            raise InvalidInputError(
                str(source.path), "is a single array without labels", remedy="Give them with --labels FILE."
            )
    else:
        parts = _load_table(source, request)
    for key, path in source.files.items():
        parts |= _load_logits(path, source, request) if key == "logits" else {key: _load_vector(path, key, source)}
    return _check(source, request.matrix, parts)


def has_array(path: Path, key: str) -> bool:
    """Return whether a file is an npz file with an array of that name."""
    if check_readable(path) != ".npz":
        return False
    with ArraysFile(path) as stored:
        return key in stored.keys


def _load_arrays(source: Source, request: Request) -> dict[str, Any]:
    with ArraysFile(source.path) as stored:
        parts: dict[str, Any] = {"matrix": stored.get(request.matrix, source.prefixes)}
        prefix = next(prefix for prefix in source.prefixes if f"{prefix}{request.matrix}" in stored.keys)
        if request.logits and request.matrix != "logits":
            parts["logits"] = stored.find(f"{prefix}logits")
        for key in request.keys:
            if key not in source.files:
                required = request.labelled and key == "labels"
                parts[key] = stored.get(f"{prefix}{key}") if required else stored.find(f"{prefix}{key}")
        parts["classes"] = stored.find("classes")
    return parts


def _load_table(source: Source, request: Request) -> dict[str, Any]:
    table, parts = TableFile(source.path), dict[str, Any]()
    for key in request.keys:
        if key not in source.files:
            required = key in source.columns or (request.labelled and key == "labels")
            column = source.columns.get(key, COLUMNS[key])
            parts[key] = table.get(column, _option(key)) if required else table.find(column)
    logits: tuple[str, ...] = ()
    if "logits" in source.columns and "logits" not in source.files:
        logits = table.matching(source.columns["logits"], "--logit-columns")
    names = _choose_features(table, source, request, logits)
    parts |= {"matrix": table.matrix(names, "--feature-columns"), "feature_columns": names}
    if request.matrix != "embeddings":
        pattern = source.columns.get("logits") or source.columns.get("features") or "*"
        parts["column_classes"] = class_names(names, pattern)
    elif request.logits and "logits" not in source.files:
        parts |= _choose_logits(table, source, request.logit_names)
    return parts


def _choose_features(table: TableFile, source: Source, request: Request, logits: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns of the matrix: those that the user names, those of the model, or all that remain."""
    named: tuple[str, ...] = ()
    if request.matrix == "logits" and logits:
        named = logits
    elif "features" in source.columns:
        named = table.matching(source.columns["features"], "--feature-columns")
    if named and sorted(named) != sorted(request.feature_names):
        return named
    if request.feature_names:
        return tuple(request.feature_names)
    reserved = {*logits, *(source.columns.get(key, default) for key, default in COLUMNS.items())}
    return tuple(name for name in table.columns if name not in reserved)


def _choose_logits(table: TableFile, source: Source, logit_names: Sequence[str]) -> dict[str, Any]:
    """Return the logits in columns that the user names, or in those of the model; nothing if there are neither."""
    if "logits" in source.columns:
        names = table.matching(source.columns["logits"], "--logit-columns")
        if sorted(names) != sorted(logit_names):
            classes = class_names(names, source.columns["logits"])
            matrix = table.matrix(names, "--logit-columns")
            return {"logits": matrix, "column_classes": classes, "logit_columns": names}
    if not logit_names:
        return {}
    return {"logits": table.matrix(logit_names, "--logit-columns"), "logit_columns": tuple(logit_names)}


def _load_logits(path: Path, source: Source, request: Request) -> dict[str, Any]:
    """Return the logits of a separate file, and the names of their columns if it is a table."""
    suffix = check_readable(path)
    if suffix == ".npy":
        return {"logits": read_npy(path)}
    if suffix == ".npz":
        with ArraysFile(path) as stored:
            return {"logits": stored.get("logits", source.prefixes)}
    table = TableFile(path)
    known = "logits" in source.columns or set(request.logit_names) <= set(table.columns)
    parts = _choose_logits(table, source, request.logit_names if known else ())
    if parts:
        return parts
    reserved = {source.columns.get(key, default) for key, default in COLUMNS.items()}
    names = tuple(name for name in table.columns if name not in reserved)
    return {"logits": table.matrix(names, "--logit-columns"), "column_classes": names, "logit_columns": names}


def _load_vector(path: Path, key: str, source: Source) -> NDArray[Any]:
    """Return the labels, groups, weights or ids of a separate file."""
    suffix = check_readable(path)
    if suffix == ".npy":
        return read_npy(path)
    if suffix == ".npz":
        with ArraysFile(path) as stored:
            return stored.get(key, source.prefixes)
    table = TableFile(path)
    column = source.columns.get(key, COLUMNS[key])
    if column not in table.columns and len(table.columns) == 1:
        column = table.columns[0]
    return table.get(column, _option(key))


def _option(key: str) -> str:
    return f"--{COLUMNS[key]}-column"


def class_names(columns: Sequence[str], pattern: str) -> tuple[str, ...]:
    """Return what the star of a pattern matches in each column: cat and dog for z_cat and z_dog with ``z_*``."""
    if pattern.count("*") != 1 or set("?[") & set(pattern):
        return tuple(columns)
    start, end = pattern.split("*")
    return tuple(name[len(start) : len(name) - len(end)] for name in columns)


def _check(source: Source, matrix_name: str, parts: dict[str, Any]) -> Dataset:
    """Return the data set, with every array checked."""
    matrix = _check_numbers(parts.pop("matrix"), f"{source.path}: {matrix_name}")
    logits = parts.pop("logits", None)
    if logits is not None:
        name = f"{source.files.get('logits', source.path)}: logits"
        logits = _check_numbers(logits, name)
        _check_length(logits, len(matrix), name)
    arrays = {"embeddings": matrix, "logits": logits} if matrix_name == "embeddings" else {"logits": matrix}
    for key in COLUMNS:
        values = parts.pop(key, None)
        if values is not None:
            arrays[key] = _check_vector(values, key, len(matrix), f"{source.files.get(key, source.path)}: {key}")
    classes = parts.pop("classes", None) if source.classes is None else np.array(source.classes)
    parts.pop("classes", None)
    if classes is not None:
        classes = _normalize(classes, f"{source.path}: classes")
    return Dataset(str(source.path), ClassifierOutputs(**arrays), classes, **parts)


def _check_numbers(values: NDArray[Any], name: str) -> NDArray[Any]:
    if values.dtype.kind not in "fiub":
        raise InvalidInputError(name, "must be numbers", got=str(values.dtype))
    if values.ndim != 2:
        raise InvalidInputError(name, "must have one row per sample and one column per feature", got=f"{values.shape}")
    checked: NDArray[Any] = check_matrix(values, name).numpy()
    return checked


def _check_length(values: NDArray[Any], n_samples: int, name: str) -> None:
    if len(values) != n_samples:
        raise InvalidInputError(name, "must have one row per sample", got=f"{len(values):,} for {n_samples:,} samples")


def _check_vector(values: NDArray[Any], key: str, n_samples: int, name: str) -> NDArray[Any]:
    """Return labels, groups, weights or ids; the library's own checks, after what files need."""
    if key == "weights" and values.dtype.kind == "U":
        raise InvalidInputError(name, "must be numbers", got=f"text, {str(values[0])!r}")
    if key != "weights":
        values = _normalize(values, name)
    elif values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    _check_length(values, n_samples, name)
    if key == "weights":
        check_weights(values, n_samples, name)
    return values


def _normalize(values: NDArray[Any], name: str) -> NDArray[Any]:
    """Return a single column of integers or text: bytes are decoded, and 3.0, as many programs write it, is 3."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        remedy = "If they are one-hot, store labels.argmax(axis=1)." if name.endswith("labels") else ""
        raise InvalidInputError(name, "must be a single column", got=f"shape {values.shape}", remedy=remedy)
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind not in "fiubU":
        raise InvalidInputError(name, "must be numbers or text", got=str(values.dtype))
    if values.dtype.kind == "U" and (values == "").any():
        row = int(np.argmax(values == ""))
        raise InvalidInputError(name, f"must not be blank; row {row} is", remedy="Leave such rows out.")
    if values.dtype.kind != "f":
        return values
    whole = np.isfinite(values) & (values == np.floor(values)) & (np.abs(values) < 2.0**63)
    if not whole.all():
        row = int(np.argmin(whole))
        raise InvalidInputError(name, "must be integers or text", got=f"{values[row]} at row {row}")
    return values.astype(np.int64)
