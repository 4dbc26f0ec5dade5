"""A classifier's outputs as a command line names them: one file or several, arrays by key or columns by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.cli.arrays_in import ArraysFile, check_readable, read_npy
from kcal.cli.tables_in import TableFile, listed
from kcal.cli.vectors import check_vector
from kcal.errors import InvalidInputError
from kcal.validation import check_matrix

VECTORS = {"labels": "label", "groups": "group", "weights": "weight", "ids": "id"}
"""What belongs to each sample: its key in an npz file, and the column of a table that holds it by default."""


@dataclass(frozen=True)
class Source:
    """Where samples are to be read from.

    ``columns`` and ``files`` hold what the user named, by key ("labels", "groups", …); ``columns`` may also hold the
    patterns "features" and "logits". ``prefixes`` may precede the keys of an npz file.
    """

    path: Path
    columns: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    prefixes: Sequence[str] = ("",)
    classes: Sequence[str] | None = None


@dataclass(frozen=True)
class Samples:
    """What was read, checked: ``matrix`` is what the method takes, all else may be missing.

    ``classes`` names the columns of the logits where the file or the user says so; ``columns`` are the names of the
    matrix's columns, ``logit_columns`` those of the logits by class, where they come from a table, and
    ``logit_names`` the same as the table has them.
    """

    source: Source
    matrix: NDArray[Any] = field(repr=False)
    logits: NDArray[Any] | None = field(default=None, repr=False)
    labels: NDArray[Any] | None = field(default=None, repr=False)
    groups: NDArray[Any] | None = field(default=None, repr=False)
    weights: NDArray[Any] | None = field(default=None, repr=False)
    ids: NDArray[Any] | None = field(default=None, repr=False)
    classes: NDArray[Any] | None = None
    columns: tuple[str, ...] | None = None
    logit_columns: tuple[str, ...] | None = None
    logit_names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.matrix)

    @property
    def true_labels(self) -> NDArray[Any]:
        """The labels, where they had to be there."""
        assert self.labels is not None
        return self.labels

    @property
    def name(self) -> str:
        """The file, for messages."""
        return str(self.source.path)


def read_samples(
    source: Source,
    *,
    inputs: str,
    vectors: Sequence[str] = tuple(VECTORS),
    labelled: bool = False,
    with_logits: bool = False,
    feature_names: Sequence[str] | None = None,
    logit_names: Sequence[str] = (),
) -> Samples:
    """Read samples for a method that takes ``inputs`` ("embeddings", "logits" or "probabilities").

    Parameters
    ----------
    source : Source
        Where from.
    inputs : str
        What the matrix of the samples is to hold. A table or an npy file does not say what it holds: it is this.
    vectors : sequence of str
        Which of labels, groups, weights and ids to read, where there are any.
    labelled : bool
        Whether labels must be there.
    with_logits : bool
        Read the logits too, where there are any.
    feature_names : sequence of str, optional
        The columns that a model was fitted on: a table is read in their order, whatever else it holds.
    logit_names : sequence of str
        The same for the logits of a model that takes both.
    """
    suffix = check_readable(source.path)
    labelled = labelled and "labels" not in source.files
    vectors = [key for key in vectors if key not in source.files]
    if suffix == ".npz":
        parts = _parts_of_npz(source, inputs, vectors, labelled, with_logits)
    elif suffix == ".npy":
        parts = {"matrix": read_npy(source.path)}
        if labelled:
            raise InvalidInputError(f"{source.path} holds one array and so no labels; give them with --labels FILE.")
    else:
        parts = _parts_of_table(source, inputs, vectors, labelled, with_logits, feature_names, logit_names)
    for key, path in source.files.items():
        if key == "logits":
            parts |= read_logits(path, source, logit_names)
        else:
            parts[key] = read_vector(path, key, source)
    return _checked(source, parts, inputs)


def read_vector(path: Path, key: str, source: Source) -> NDArray[Any]:
    """Return the labels, groups, weights or ids of a file that holds nothing else that matters."""
    suffix = check_readable(path)
    if suffix == ".npy":
        return read_npy(path)
    if suffix == ".npz":
        with ArraysFile(path) as stored:
            return stored.get(key, source.prefixes)
    table = TableFile(path)
    wanted = source.columns.get(key, VECTORS[key])
    if wanted not in table.columns and len(table.columns) == 1:
        wanted = table.columns[0]
    return table.get(wanted, option_of(key))


def read_logits(path: Path, source: Source, logit_names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the logits of a file of their own, and the names of their columns if it is a table."""
    suffix = check_readable(path)
    if suffix == ".npy":
        return {"logits": read_npy(path)}
    if suffix == ".npz":
        with ArraysFile(path) as stored:
            return {"logits": stored.get("logits", source.prefixes)}
    table = TableFile(path)
    if "logits" not in source.columns and not set(logit_names) <= set(table.columns):
        logit_names = ()
    found = _logits_of_table(table, source, logit_names)
    if found:
        return found
    taken = {source.columns.get(key, default) for key, default in VECTORS.items()}
    columns = tuple(name for name in table.columns if name not in taken)
    return {"logits": table.matrix(columns), "logit_columns": columns, "logit_names": columns}


def option_of(key: str) -> str:
    """Return the option with which a column is named."""
    return f"--{VECTORS[key]}-column"


def _parts_of_npz(
    source: Source, inputs: str, vectors: Sequence[str], labelled: bool, with_logits: bool
) -> dict[str, Any]:
    with ArraysFile(source.path) as stored:
        parts: dict[str, Any] = {"matrix": stored.get(inputs, source.prefixes)}
        prefix = next(prefix for prefix in source.prefixes if f"{prefix}{inputs}" in stored.keys)
        if with_logits and inputs != "logits":
            parts["logits"] = stored.find(f"{prefix}logits")
        for key in vectors:
            must = labelled and key == "labels"
            parts[key] = stored.get(f"{prefix}{key}") if must else stored.find(f"{prefix}{key}")
        parts["classes"] = stored.find("classes")
    return parts


def _parts_of_table(
    source: Source,
    inputs: str,
    vectors: Sequence[str],
    labelled: bool,
    with_logits: bool,
    feature_names: Sequence[str] | None,
    logit_names: Sequence[str],
) -> dict[str, Any]:
    table = TableFile(source.path)
    parts: dict[str, Any] = {}
    taken = {source.columns.get(key, default) for key, default in VECTORS.items()}
    for key in vectors:
        must = key in source.columns or (labelled and key == "labels")
        column = source.columns.get(key, VECTORS[key])
        parts[key] = table.get(column, option_of(key)) if must else table.find(column)
    logits: tuple[str, ...] = ()
    if "logits" in source.columns and "logits" not in source.files:
        logits = table.matching(source.columns["logits"], "--logit-columns")
    columns = _feature_columns(table, source, inputs, taken, logits, feature_names)
    parts |= {"matrix": table.matrix(columns), "columns": columns}
    if with_logits and inputs != "logits" and "logits" not in source.files:
        parts |= _logits_of_table(table, source, logit_names)
    elif inputs != "embeddings":
        pattern = source.columns.get("logits") or source.columns.get("features") or "*"
        parts["logit_columns"] = class_names(columns, pattern)
    return parts


def _logits_of_table(table: TableFile, source: Source, logit_names: Sequence[str]) -> dict[str, Any]:
    """Return the logits of columns that the user names, or of those that a model was fitted on; nothing for neither."""
    if "logits" in source.columns:
        names = table.matching(source.columns["logits"], "--logit-columns")
        if sorted(names) != sorted(logit_names):
            classes = class_names(names, source.columns["logits"])
            return {"logits": table.matrix(names), "logit_columns": classes, "logit_names": names}
    if not logit_names:
        return {}
    _refuse_missing(table, logit_names, "--logit-columns")
    return {"logits": table.matrix(logit_names), "logit_names": tuple(logit_names)}


def _feature_columns(
    table: TableFile,
    source: Source,
    inputs: str,
    taken: set[str],
    logits: tuple[str, ...],
    feature_names: Sequence[str] | None,
) -> tuple[str, ...]:
    named: tuple[str, ...] = ()
    if inputs == "logits" and logits:
        named = logits
    elif "features" in source.columns:
        named = table.matching(source.columns["features"], "--feature-columns")
    if named and sorted(named) != sorted(feature_names or ()):
        return named
    if feature_names is not None:
        _refuse_missing(table, feature_names, "--feature-columns")
        return tuple(feature_names)
    return tuple(name for name in table.columns if name not in taken and name not in logits)


def _refuse_missing(table: TableFile, names: Sequence[str], option: str) -> None:
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise InvalidInputError(
            f"{table.path} lacks {len(missing):,} of the {len(names):,} columns that the model was fitted on: "
            f"{listed(missing)}. It has {listed(table.columns)}. Name the right ones with {option}."
        )


def class_names(columns: Sequence[str], pattern: str) -> tuple[str, ...]:
    """Return what the star of a pattern stands for in each column: cat and dog for z_cat and z_dog under ``z_*``."""
    if pattern.count("*") != 1 or set("?[") & set(pattern):
        return tuple(columns)
    before, after = pattern.split("*")
    return tuple(name[len(before) : len(name) - len(after)] for name in columns)


def _checked(source: Source, parts: dict[str, Any], inputs: str) -> Samples:
    matrix = parts["matrix"] = _numbers(parts["matrix"], f"{source.path}: {inputs}")
    if parts.get("logits") is not None:
        where = source.files.get("logits", source.path)
        parts["logits"] = _numbers(parts["logits"], f"{where}: logits")
        if len(parts["logits"]) != len(matrix):
            raise InvalidInputError(
                f"{where}: logits must have one row a sample; got {len(parts['logits']):,} for {len(matrix):,} samples."
            )
    for key in VECTORS:
        if parts.get(key) is not None:
            parts[key] = check_vector(parts[key], key, len(matrix), f"{source.files.get(key, source.path)}: {key}")
    if source.classes is not None:
        parts["classes"] = np.array(source.classes)
    if parts.get("classes") is not None:
        parts["classes"] = check_vector(parts["classes"], "classes", None, f"{source.path}: classes")
    return Samples(source, **parts)


def _numbers(values: NDArray[Any], name: str) -> NDArray[Any]:
    if values.dtype.kind not in "fiub":
        raise InvalidInputError(f"{name} must be numbers; got {values.dtype}.")
    if values.ndim != 2:
        raise InvalidInputError(
            f"{name} must have one row a sample and one column a feature; got shape {values.shape}."
        )
    checked: NDArray[Any] = check_matrix(values, name).numpy()
    return checked
