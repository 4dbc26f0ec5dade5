"""Read arrays from npz and npy files and columns from csv and parquet files; no code in a file is ever run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from kcal.embeddings.folder import RECORD, read_outputs
from kcal.errors import FileFormatError, InvalidInputError, MissingExtraError
from kcal.files import load_arrays, without_mark

SUFFIXES = (".npz", ".npy", ".parquet", ".csv")
TABLES = (".parquet", ".csv")
MAX_NAMES = 8
"""Names that a message lists, at most."""

DAMAGED_ARRAY = "is truncated, damaged or not in numpy's format. Write it again with numpy.savez or numpy.save."
OBJECT_ARRAY = (
    "contains Python objects, which are not read because that could run code. Convert it first: array.astype(str) for "
    "names, array.astype(float) for numbers."
)


def open_file(path: Path, max_rows: int | None = None) -> ArrayFile | TableFile:
    """Open a data file or a folder of outputs; raise if there is none of that name, or if its suffix is unknown.

    ``max_rows`` are the first rows of a parquet file that are read, if not all.
    """
    if (path / RECORD).is_file():
        return OutputsFolder(path)
    if path.is_dir() or not path.exists():
        raise InvalidInputError(str(path), "is a folder, not a file" if path.is_dir() else "does not exist")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidInputError(str(path), f"is not a data file: the name must end in {', '.join(SUFFIXES)}")
    if path.stat().st_size == 0:
        raise FileFormatError(f"{path} is empty.")
    return TableFile(path, max_rows) if suffix in TABLES else ArrayFile(path)


def shorten(names: Sequence[Any]) -> str:
    """Return the first few names, for a message."""
    more = f", … ({len(names):,} in all)" if len(names) > MAX_NAMES else ""
    return ", ".join(str(name) for name in names[:MAX_NAMES]) + more


class ArrayFile:
    """The arrays of an npz file by name, or the single array of an npy file; each is read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_single = path.suffix.lower() == ".npy"
        self.names: tuple[str, ...] = () if self.is_single else self._read("it", lambda arrays: tuple(arrays.files))

    def find(self, name: str, prefixes: Sequence[str] = ("",)) -> NDArray[Any] | None:
        """Return the array of that name, with the first prefix for which there is one; None if there is none."""
        key = next((key for key in (f"{prefix}{name}" for prefix in prefixes) if key in self.names), None)
        return None if key is None else self._read(f"array {key}", lambda arrays: arrays[key])

    def get(self, name: str, prefixes: Sequence[str] = ("",), option: str = "") -> NDArray[Any]:
        """Return the array of that name, or the single array; raise if there is none.

        ``option`` named the array on the command line, for the message.
        """
        array = self._read("it", np.asarray) if self.is_single else self.find(name, prefixes)
        if array is None:
            expected = " or ".join(f"{prefix}{name}" for prefix in prefixes)
            problem = f"has no array called {expected}; it has {', '.join(self.names) or 'no arrays'}"
            remedy = f"Write it with numpy.savez({str(self.path)!r}, {name}=..., ...)."
            remedy = f"Name the right one with {option}." if option else remedy
            raise InvalidInputError(str(self.path), problem, remedy=remedy)
        return array

    def _read(self, part: str, content: Callable[[Any], Any]) -> Any:
        """Return the content of what numpy loads; ``part`` names it in errors."""
        with self.path.open("rb") as file:  # opened here, because numpy leaves damaged files open
            try:
                stored = load_arrays(file)
                if isinstance(stored, NpzFile) != self.is_single:
                    return content(stored)
            except Exception as error:  # numpy, zipfile and zlib raise almost any error on damaged files
                problem = DAMAGED_ARRAY if "Object arrays" not in str(error) else OBJECT_ARRAY
                raise FileFormatError(f"{self.path} cannot be read: {part} {problem}") from error
        kind, suffix = ("several arrays", ".npz") if self.is_single else ("one array without a name", ".npy")
        raise FileFormatError(f"{self.path} contains {kind}; rename it to {self.path.with_suffix(suffix).name}.")


class OutputsFolder(ArrayFile):
    """The arrays of a folder that ``kcal.extract(..., to=folder)`` wrote."""

    def __init__(self, path: Path) -> None:
        self.path, self.is_single = path, False
        self._arrays = {name: array for name, array in vars(read_outputs(path)).items() if array is not None}
        self.names = tuple(self._arrays)

    def _read(self, part: str, content: Callable[[Any], Any]) -> Any:
        return content(self._arrays)


def require_pyarrow() -> Any:
    """Return pyarrow; raise with the command that installs it if it is missing."""
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "csv and parquet files are read and written with pyarrow, which is not installed. "
            "Run: pip install 'kcal[tables]', or use npz and npy files."
        ) from error
    return pyarrow


def as_table(matrix: Any, names: Sequence[str]) -> Any:
    """Return the columns of a matrix under their names, or the matrix itself if they have none."""
    return require_pyarrow().table(list(matrix.T), names=list(names)) if names else matrix


class TableFile:
    """The columns of a csv or parquet file."""

    def __init__(self, path: Path, max_rows: int | None = None) -> None:
        self.path, self._max_rows = path, max_rows
        self._is_csv = path.suffix.lower() == ".csv"
        table = self._read()
        try:
            names = [name for name in table.column_names if not re.fullmatch(r"__index_level_\d+__", name)]  # pandas
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{path}: the column names are not UTF-8. Save the file as UTF-8.") from error
        self._check_header(names, int(table.num_rows))
        self.columns = tuple(without_mark(name) if self._is_csv else name for name in names)
        self._table = table.select(names).rename_columns(list(self.columns))

    def find(self, column: str) -> NDArray[Any] | None:
        """Return a column's values, or None if there is no such column."""
        return self.get(column, "") if column in self.columns else None

    def get(self, column: str, option: str) -> NDArray[Any]:
        """Return a column's values; ``option`` names the column on the command line, for the message."""
        if column not in self.columns:
            problem = f"has no column called {column!r}; it has {shorten(self.columns)}"
            raise InvalidInputError(str(self.path), problem, remedy=f"Name the right one with {option}.")
        values, name = self._table.column(column), f"{self.path}: column {column!r}"
        if values.null_count:
            row = int(np.flatnonzero(values.is_null().to_numpy())[0])
            problem = f"has no value in row {row} (counted from 0 below the header)"
            raise InvalidInputError(name, problem, remedy="Leave such rows out.")
        if require_pyarrow().types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if _is_numeric(values.type):
            array: NDArray[Any] = values.to_numpy()
            return array
        try:
            texts = [value.decode() if isinstance(value, bytes) else str(value) for value in values.to_pylist()]
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{name} contains text that is not UTF-8. Save the file as UTF-8.") from error
        return np.array([without_mark(text) for text in texts] if self._is_csv else texts)

    def matching(self, pattern: str | None, option: str) -> tuple[str, ...]:
        """Return the columns that match a pattern such as ``e_*``, in the order of the file; without one, none."""
        if pattern is None:
            return ()
        names = tuple(name for name in self.columns if fnmatchcase(name, pattern))
        if not names:
            problem = f"matches no column; there are {shorten(self.columns)}"
            raise InvalidInputError(f"{self.path}: {option} {pattern!r}", problem)
        return names

    def matrix(self, names: Sequence[str], option: str) -> NDArray[Any]:
        """Return numeric columns side by side, (n_rows, len(names)); float32 if all of them are at most that."""
        if not names:
            raise InvalidInputError(str(self.path), f"has no columns left for features; it has {shorten(self.columns)}")
        missing = [name for name in names if name not in self.columns]
        if missing:
            problem = f"lacks {len(missing):,} of the {len(names):,} columns that the model was fitted on: "
            problem += f"{shorten(missing)}. It has {shorten(self.columns)}"
            raise InvalidInputError(str(self.path), problem, remedy=f"Name the right ones with {option}.")
        columns = [self._numbers(name) for name in names]
        is_narrow = all(column.dtype in (np.float16, np.float32) for column in columns)
        return np.stack(columns, axis=1).astype(np.float32 if is_narrow else np.float64)

    def _numbers(self, name: str) -> NDArray[Any]:
        values = self._table.column(name)
        if not _is_numeric(values.type):
            content = str(values.type)
            if content in ("string", "large_string"):
                content = f"text, such as {str(self.get(name, '')[0])!r}"
            remedy = "Choose the features with --feature-columns 'e_*', or say with --label-column, --group-column, "
            remedy += "--weight-column or --id-column what it is."
            problem = f"must be numbers to be a feature; it contains {content}"
            raise InvalidInputError(f"{self.path}: column {name!r}", problem, remedy=remedy)
        array: NDArray[Any] = values.to_numpy()  # missing numbers become NaN, which the check of the matrix reports
        return array

    def _read(self) -> Any:
        pyarrow = require_pyarrow()
        advice = "It is truncated, damaged or of another format."
        if self._is_csv:
            advice = "A csv file needs commas, a header row and the same number of cells in every row."
            with self.path.open("rb") as file:
                header = file.readline(1_000_000).decode(errors="replace")
            separator = next((mark for mark in ";\t|" if mark in header and "," not in header), None)
            if separator is not None:
                called = "a tab" if separator == "\t" else repr(separator)
                raise FileFormatError(
                    f"{self.path}: the separator seems to be {called}, where kcal expects a comma. Save "
                    f"it with commas between columns and points in decimals (pandas: read_csv(..., sep={separator!r}), "
                    "then to_csv)."
                )
        try:
            if self._is_csv:
                return pyarrow.csv.read_csv(self.path)
            file = pyarrow.parquet.ParquetFile(self.path)
            if self._max_rows is None:
                return file.read()
            return pyarrow.Table.from_batches(islice(file.iter_batches(self._max_rows), 1), file.schema_arrow)
        except (pyarrow.ArrowException, OSError, ValueError, MemoryError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            kind = self.path.suffix[1:].lower()
            raise FileFormatError(f"{self.path} cannot be read as {kind}: {reason}. {advice}") from error

    def _check_header(self, names: list[str], n_rows: int) -> None:
        repeated = sorted({name for name in names if names.count(name) > 1})
        blank = names.index("") + 1 if "" in names else 0
        numbers = sum(bool(re.fullmatch(r"-?\d+\.\d*(e[+-]?\d+)?", name, re.I)) for name in names)
        for is_wrong, problem, remedy in (
            (repeated, f"has more than one column called {shorten(repeated)}", "Rename them."),
            (blank, f"has no name for column {blank}; it may be a row index", "Name it, or leave it out."),
            (numbers > 1, "must begin with the column names, but its first row looks like data", ""),
            (n_rows == 0, "has no rows below its header", ""),
        ):
            if is_wrong:
                raise InvalidInputError(str(self.path), problem, remedy=remedy)


def _is_numeric(kind: Any) -> bool:
    types = require_pyarrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))
