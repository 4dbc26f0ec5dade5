"""Load a classifier's outputs from files: one record, whatever the format and however many files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.cli.files import ArrayFile, TableFile, as_table, open_file, shorten
from kcal.cli.messages import check_options, errors_about, option_name
from kcal.cli.parameters import parse_classes
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError
from kcal.validation import check_labels, check_matrix, check_probs, check_weights

COLUMNS = {"labels": "label", "groups": "group", "weights": "weight", "ids": "id"}
"""Values per sample: the key in an npz file, and the default column of a table."""


def column_option(key: str) -> str:
    """Return the option that names the column of labels, groups, weights or ids, or those of features or logits."""
    return option_name(f"{COLUMNS[key]}_column" if key in COLUMNS else f"{key[:-1]}_columns")


@dataclass(frozen=True)
class Source:
    """Where to load samples from.

    ``columns`` and ``files`` are what the user named, by key ("labels", "groups", …); ``columns`` may also contain
    "features" and "logits". They are columns of a table, patterns in the case of features and logits, or arrays of an
    npz file. ``prefixes`` may precede the keys of an npz file. ``labels_are_positions`` says that integer labels are
    positions among classes that have names. ``used`` collects the options of columns and files that had an effect;
    sources that are made from this one share it.
    """

    path: Path
    columns: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    prefixes: Sequence[str] = ("",)
    classes: Sequence[str] | None = None
    labels_are_positions: bool = False
    max_rows: int | None = None  # of a table, where its first rows are enough
    used: set[str] = field(default_factory=set)

    @classmethod
    def from_options(cls, path: Path, options: Mapping[str, Any], *, prefixes: Sequence[str]) -> Source:
        """Return where to load samples from, with what the options of a command name, by the name of the option."""
        columns = {key: options.get(f"{column}_column") for key, column in COLUMNS.items()}
        columns |= {"features": options.get("feature_columns"), "logits": options.get("logit_columns")}
        files = {key: options.get(key) for key in ("logits", *COLUMNS)}
        return cls(
            path,
            columns={key: name for key, name in columns.items() if name is not None},
            files={key: file for key, file in files.items() if file is not None},
            prefixes=prefixes,
            classes=parse_classes(options.get("classes")),
            labels_are_positions=options.get("labels_are_positions", False),
        )

    @property
    def reserved(self) -> set[str]:
        """The columns of labels, groups, weights and ids."""
        return {self.columns.get(key, default) for key, default in COLUMNS.items()}

    def matrix_array(self, matrix: str) -> tuple[str, str]:
        """Return the key and the name of the array of embeddings, logits or probabilities in an npz file."""
        key = next((key for key in (matrix, "features") if key in self.columns), matrix)
        return key, self.columns.get(key, key)

    def array(self, file: ArrayFile, key: str, prefixes: Sequence[str], *, required: bool = True) -> Any:
        """Return the array that the user named for a key or, after one of the prefixes, that of the key's own name."""
        if key not in self.columns:
            return file.get(key, prefixes) if required else file.find(key, prefixes)
        self.used.add(column_option(key))
        return file.get(self.columns[key], tuple(dict.fromkeys((*prefixes, *self.prefixes))), column_option(key))

    def check_used(self) -> None:
        """Raise if an option had no effect on what was loaded."""
        options = [*map(column_option, self.columns), *map(option_name, self.files)]
        unused = ", ".join(option for option in options if option not in self.used)
        check_options((unused, f"{unused} would have no effect with {self.path} in this command. Leave it out."))


@dataclass(frozen=True)
class Request:
    """What to load.

    ``matrix`` is "embeddings", "logits" or "probabilities" (stored as ``logits``). ``logits`` asks for logits
    beside embeddings, if there are any. ``feature_names`` and ``logit_names`` are the columns that a model was fitted
    on, in order.
    """

    matrix: str
    logits: bool = False
    keys: Sequence[str] = tuple(COLUMNS)
    labelled: bool = False
    feature_names: Sequence[str] = ()
    logit_names: Sequence[str] = ()


@dataclass(frozen=True)
class Dataset(ClassifierOutputs):
    """A classifier's outputs, with the classes that the file or the user lists and the names of a table's columns.

    ``labels_are_positions`` is whether integer labels are positions among named classes: if the user says so or lists
    the classes, or if one npz file has both. Labels and names from different places may be in different orders.
    """

    name: str = ""
    classes: NDArray[Any] | None = None
    column_classes: tuple[str, ...] = ()  # classes that a table's columns of logits or probabilities are named after
    feature_columns: tuple[str, ...] = ()
    logit_columns: tuple[str, ...] = ()
    value_columns: tuple[tuple[str, str], ...] = ()  # the columns of a table that are labels, groups, weights and ids
    labels_are_positions: bool = False

    def __len__(self) -> int:
        return len(self.logits if self.embeddings is None else self.embeddings)

    def with_names(self, inputs: str) -> Dataset:
        """Return the data for a method with such ``inputs``, as tables where columns have names."""
        if inputs == "logits":
            return replace(self, logits=as_table(self.logits, self.feature_columns))
        embeddings = as_table(self.embeddings, self.feature_columns)
        return replace(self, embeddings=embeddings, logits=as_table(self.logits, self.logit_columns))


def load(source: Source, request: Request) -> Dataset:
    """Load and check a data set."""
    file = open_file(source.path, source.max_rows)
    parts = _read_table(file, source, request) if isinstance(file, TableFile) else _read_arrays(file, source, request)
    for key, path in source.files.items():
        if key in request.keys or (key == "logits" and request.logits):
            parts |= _read_file(open_file(path), key, source, request)
            source.used.add(option_name(key))
    return _check(source, request.matrix, parts)


def _read_file(file: ArrayFile | TableFile, key: str, source: Source, request: Request) -> dict[str, Any]:
    """Return the values of a key from a file of their own."""
    if isinstance(file, ArrayFile):
        return {key: file.get(key) if file.is_single else source.array(file, key, source.prefixes)}
    if key == "logits":
        return _read_logits(file, source, request.logit_names, is_separate=True)
    column = source.columns.get(key, COLUMNS[key])
    is_only = key not in source.columns and column not in file.columns and len(file.columns) == 1
    return {key: _column(file, source, key, file.columns[0] if is_only else column)}


def _read_arrays(file: ArrayFile, source: Source, request: Request) -> dict[str, Any]:
    if file.is_single:
        if request.labelled and "labels" not in source.files:
            raise InvalidInputError(str(file.path), "is a single array without labels", remedy="Pass --labels FILE.")
        return {"matrix": file.get(request.matrix)}
    key, name = source.matrix_array(request.matrix)
    prefix = next((prefix for prefix in source.prefixes if f"{prefix}{name}" in file.names), "")
    parts: dict[str, Any] = {"matrix": source.array(file, key, source.prefixes), "classes": file.find("classes")}
    if request.logits and request.matrix != "logits" and "logits" not in source.files:
        parts["logits"] = source.array(file, "logits", (prefix,), required=False)
    for part in request.keys:
        if part not in source.files:
            required = request.labelled and part == "labels"
            parts[part] = source.array(file, part, (prefix,), required=required)
    return parts


def _read_table(table: TableFile, source: Source, request: Request) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    columns: dict[str, str] = {}
    for key in request.keys:
        if key not in source.files:
            required = key in source.columns or (request.labelled and key == "labels")
            column = source.columns.get(key, COLUMNS[key])
            parts[key] = _column(table, source, key, column) if required else table.find(column)
            columns |= {} if parts[key] is None else {key: column}
    described = {key for key, column in source.columns.items() if key in COLUMNS and column in table.columns}
    source.used.update(map(column_option, described))  # these columns are not features
    names = _choose_features(table, source, request)
    parts |= {"matrix": table.matrix(names, "--feature-columns"), "feature_columns": names}
    parts["value_columns"] = tuple(columns.items())
    if request.matrix != "embeddings":
        pattern = source.columns.get("logits") or source.columns.get("features") or "*"
        parts["column_classes"] = class_names(names, pattern)
    elif request.logits and "logits" not in source.files:
        parts |= _read_logits(table, source, request.logit_names)
    return parts


def _column(table: TableFile, source: Source, key: str, column: str) -> NDArray[Any]:
    """Return the values of a column of labels, groups, weights or ids; raise if there is none."""
    values = table.get(column, column_option(key))
    source.used.add(column_option(key))
    return values


def _choose_features(table: TableFile, source: Source, request: Request) -> tuple[str, ...]:
    """Return the columns of the matrix: those that the user names, those of the model, or all that remain.

    Raise if the columns that remain seem to be of more than one kind.
    """
    logits, features = logit_columns(table, source), _matching(table, source, "features")
    named = (logits if request.matrix == "logits" else ()) or features
    if named and sorted(named) != sorted(request.feature_names):
        return named
    remaining = remaining_columns(table, source)
    if not request.feature_names and request.matrix != "probabilities":
        _check_one_kind(table, remaining, request.matrix)
    return tuple(request.feature_names) or remaining


def logit_columns(table: TableFile, source: Source) -> tuple[str, ...]:
    """Return the columns of a table that the user names as logits; none if the logits are in a file of their own."""
    return () if "logits" in source.files else _matching(table, source, "logits")


def remaining_columns(table: TableFile, source: Source) -> tuple[str, ...]:
    """Return the columns of a table that are not known to be something else than features."""
    return tuple(name for name in table.columns if name not in {*logit_columns(table, source), *source.reserved})


def _matching(table: TableFile, source: Source, key: str) -> tuple[str, ...]:
    """Return the columns of the pattern of the features or of the logits, without labels, groups, weights and ids."""
    names = table.matching(source.columns.get(key), column_option(key))
    source.used.add(column_option(key))
    return tuple(name for name in names if name not in source.reserved)


def _check_one_kind(table: TableFile, names: Sequence[str], matrix: str) -> None:
    """Raise if columns form several families, such as e0, e1, … and logit_0, logit_1, …, or are called logits."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(_family(name), []).append(name)
    large = {family: members for family, members in families.items() if len(members) > 1}
    if len(large) < 2 and not (matrix == "embeddings" and any(family.lower().startswith("logit") for family in large)):
        return
    patterns = {f"{family or '[0-9]'}*": len(members) for family, members in large.items()}
    listed = ", ".join(f"{pattern} ({count:,})" for pattern, count in patterns.items())
    problem = f"has columns {listed}; it is unclear which of them are {matrix}"
    remedy = f"Name embeddings with --feature-columns {next(iter(patterns))!r} and logits with "
    remedy += f"--logit-columns {list(patterns)[-1]!r}; --{'logit' if matrix == 'logits' else 'feature'}-columns '*' "
    raise InvalidInputError(str(table.path), problem, remedy=f"{remedy}takes all as {matrix}.")


def _family(name: str) -> str:
    """Return what a column's name has in common with those beside it: e for e12, z_ for z_cat; else the name."""
    without_number = name.rstrip("0123456789")
    if without_number != name:
        return without_number
    return f"{name.partition('_')[0]}_" if "_" in name else name


def _read_logits(
    table: TableFile, source: Source, logit_names: Sequence[str], *, is_separate: bool = False
) -> dict[str, Any]:
    """Return the logits in columns that the user names, in those of the model, or in all of a separate file."""
    pattern, names = source.columns.get("logits"), tuple(logit_names)
    named = _matching(table, source, "logits")
    if named:
        names = names if sorted(named) == sorted(names) else named
    elif is_separate and (not names or not set(names) <= set(table.columns)):
        names = tuple(name for name in table.columns if name not in source.reserved)
    if not names:
        return {}
    classes = () if names == tuple(logit_names) else class_names(names, pattern or "*")
    return {"logits": table.matrix(names, "--logit-columns"), "column_classes": classes, "logit_columns": names}


def class_names(columns: Sequence[str], pattern: str) -> tuple[str, ...]:
    """Return what the star of a pattern matches in each column: cat and dog for z_cat and z_dog with ``z_*``.

    For all columns, ``*``, their numbers if the names differ only by these.
    """
    stems = {name.rstrip("0123456789") for name in columns}
    if pattern == "*" and len(stems) == 1 and not stems & set(columns):
        pattern = f"{stems.pop()}*"
    if pattern.count("*") != 1 or set("?[") & set(pattern):
        return tuple(columns)
    start, end = pattern.split("*")
    return tuple(name[len(start) : len(name) - len(end)] for name in columns)


def _check(source: Source, matrix_name: str, parts: dict[str, Any]) -> Dataset:
    """Return the data set, with every array checked."""
    with errors_about(str(source.path)):
        matrix = check_matrix(parts.pop("matrix"), matrix_name, logits=matrix_name == "logits").numpy()
        if matrix_name == "probabilities":
            check_probs(matrix, matrix_name)
        listed = parts.pop("classes", None)
        classes = listed if source.classes is None else np.array(source.classes)
        classes = None if classes is None else _check_names(classes, classes.size, "classes")
    arrays: dict[str, Any] = {"embeddings" if matrix_name == "embeddings" else "logits": matrix}
    for key in ("logits", *COLUMNS):
        values = parts.pop(key, None)
        if values is None:
            continue
        with errors_about(str(source.files.get(key, source.path))):
            if key == "logits":
                arrays[key] = check_matrix(values, key, logits=True).numpy()
                if len(values) != len(matrix):
                    got = f"{len(values):,} for {len(matrix):,} samples"
                    raise InvalidInputError(key, "must have one entry per sample", got=got)
            elif key == "weights":
                arrays[key] = values.reshape(-1) if values.shape[1:] == (1,) else values
                check_weights(arrays[key], len(matrix), key)
            else:
                arrays[key] = _check_names(values, len(matrix), key)
    if source.labels_are_positions:
        labels = arrays.get("labels")
        is_text = labels is not None and labels.dtype.kind == "U"
        check_options((is_text, f"--labels-are-positions needs integer labels; those of {source.path} are text."))
        check_positions_among(() if classes is None else classes.tolist())
    in_one_file = listed is not None and "labels" not in source.files
    positions = source.labels_are_positions or source.classes is not None or in_one_file
    return Dataset(**arrays, name=str(source.path), classes=classes, labels_are_positions=positions, **parts)


def check_positions_among(classes: Sequence[Any]) -> None:
    """Raise if labels are to be positions among classes that are other numbers: it is unclear which are meant."""
    names = [str(label) for label in classes]
    are_numbers = bool(names) and all(name.isdecimal() for name in names)
    is_unclear = are_numbers and names != [str(position) for position in range(len(names))]
    check_options((is_unclear, f"--labels-are-positions is for classes with names; these are {shorten(names)}."))


def _check_names(values: NDArray[Any], n_samples: int, name: str) -> NDArray[Any]:
    """Return labels, groups, ids or classes as one column of text or integers; bytes are decoded, and 3.0 is 3."""
    values = values.reshape(-1) if values.shape[1:] == (1,) else values
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    values = check_labels(values, n_samples, name)
    if values.dtype.kind == "U" and (values == "").any():
        row = int(np.argmax(values == ""))
        raise InvalidInputError(name, "must not be blank", got=f"a blank at row {row}", remedy="Leave such rows out.")
    return values.astype(np.int64) if values.dtype.kind == "f" else values
