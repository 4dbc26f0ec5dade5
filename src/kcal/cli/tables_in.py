"""Reading tables from csv and parquet files: a header row, columns by name, numbers as features."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.errors import FileFormatError, InvalidInputError, MissingExtraError

SEPARATORS = {";": "';'", "\t": "a tab", "|": "'|'"}
"""What some programs write between columns in place of a comma, and what it is called."""

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


def require_pyarrow() -> Any:
    """Return pyarrow, or say how to install it."""
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise MissingExtraError(
            "csv and parquet files are read and written with pyarrow, which is not installed. "
            "Run: pip install 'kcal[tables]', or use npz and npy files."
        ) from error
    return pyarrow


class TableFile:
    """The columns of a csv or parquet file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._table = _read(path)
        try:
            names = self._table.column_names
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{path}: the names of the columns are not UTF-8. Save it as UTF-8.") from error
        named = [name for name in names if not _PANDAS_INDEX.fullmatch(name)]
        self._table = self._table.select(named) if len(set(named)) == len(named) else self._table
        self.columns: tuple[str, ...] = tuple(named)
        self._check_header()

    @property
    def n_rows(self) -> int:
        """Number of rows below the header."""
        return int(self._table.num_rows)

    def find(self, column: str) -> NDArray[Any] | None:
        """Return a column's values, or None where there is no such column."""
        return self.get(column, "") if column in self.columns else None

    def get(self, column: str, option: str) -> NDArray[Any]:
        """Return a column's values; ``option`` is what the user types to name another one."""
        if column not in self.columns:
            raise InvalidInputError(
                f"{self.path} has no column called {column!r}; it has {listed(self.columns)}. "
                f"Name the right one with {option}."
            )
        pyarrow = require_pyarrow()
        values = self._table.column(column)
        if values.null_count:
            row = int(np.flatnonzero(values.is_null().to_numpy())[0])
            raise InvalidInputError(
                f"{self.path}: column {column!r} has no value in row {row} (counted from 0 below the header). "
                "Leave such rows out."
            )
        if pyarrow.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        kinds = pyarrow.types
        if kinds.is_integer(values.type) or kinds.is_floating(values.type) or kinds.is_boolean(values.type):
            array: NDArray[Any] = values.to_numpy()
            return array
        try:
            texts = [value.decode() if isinstance(value, bytes) else str(value) for value in values.to_pylist()]
        except UnicodeDecodeError as error:
            raise FileFormatError(
                f"{self.path}: column {column!r} holds text that is not UTF-8. Save it as UTF-8."
            ) from error
        return np.array(texts)

    def matching(self, pattern: str, option: str) -> tuple[str, ...]:
        """Return the columns that a pattern such as ``e_*`` names, in the order of the file."""
        found = tuple(name for name in self.columns if fnmatchcase(name, pattern))
        if not found:
            raise InvalidInputError(
                f"{self.path}: {option} {pattern!r} matches no column; there are {listed(self.columns)}."
            )
        return found

    def matrix(self, names: Sequence[str]) -> NDArray[Any]:
        """Return numeric columns side by side, (n_rows, len(names)): float32 if all of them are that narrow."""
        if not names:
            raise InvalidInputError(f"{self.path} has no columns left for features; it has {listed(self.columns)}.")
        columns = [self._numbers(name) for name in names]
        narrow = all(column.dtype in (np.float16, np.float32) for column in columns)
        matrix: NDArray[Any] = np.empty((self.n_rows, len(names)), dtype=np.float32 if narrow else np.float64)
        for index, column in enumerate(columns):
            matrix[:, index] = column
        return matrix

    def _numbers(self, name: str) -> NDArray[Any]:
        kinds = require_pyarrow().types
        values = self._table.column(name)
        if not (kinds.is_integer(values.type) or kinds.is_floating(values.type) or kinds.is_boolean(values.type)):
            raise InvalidInputError(
                f"{self.path}: column {name!r} is to be a feature, but it holds {_kind(values)}, not numbers. Choose "
                "the features with --feature-columns 'e_*', or say what the column is with --label-column, "
                "--group-column, --weight-column or --id-column."
            )
        array: NDArray[Any] = values.to_numpy()  # missing numbers become nan, which the check of the matrix names
        return array

    def _check_header(self) -> None:
        separator = _other_separator(self.path) if len(self.columns) == 1 else None
        if separator is not None:
            raise FileFormatError(f"{self.path} has one column only: {_separated_by(separator)}")
        repeated = sorted({name for name in self.columns if self.columns.count(name) > 1})
        if repeated:
            raise InvalidInputError(f"{self.path} has more than one column called {listed(repeated)}. Rename them.")
        if "" in self.columns:
            raise InvalidInputError(
                f"{self.path}: column {self.columns.index('') + 1} has no name; it may be a row index. Give it a name, "
                "or write the table without it (pandas: index=False)."
            )
        if sum(bool(re.fullmatch(r"-?\d+\.\d*(e[+-]?\d+)?", name, re.I)) for name in self.columns) > 1:
            raise InvalidInputError(
                f"{self.path}: the first row looks like data ({listed(self.columns)}); it must hold the columns' names."
            )
        if self.n_rows == 0:
            raise InvalidInputError(f"{self.path} has no rows below its header.")


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return names as they are to be read in a message: the first few of them."""
    more = f", … ({len(names):,} in all)" if len(names) > most else ""
    return ", ".join(str(name) for name in names[:most]) + more


def _read(path: Path) -> Any:
    pyarrow = require_pyarrow()
    try:
        if path.suffix.lower() == ".csv":
            return pyarrow.csv.read_csv(path)
        return pyarrow.parquet.ParquetFile(path).read()
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        separator = _other_separator(path)
        if separator is not None:
            raise FileFormatError(f"{path} cannot be read as csv: {_separated_by(separator)}") from error
        raise FileFormatError(
            f"{path} cannot be read as {path.suffix[1:].lower()}: {reason.rstrip('.')}. A csv file needs commas, a "
            "header row and the same number of cells in every row."
            if path.suffix.lower() == ".csv"
            else f"{path} cannot be read as parquet: {reason.rstrip('.')}. It is truncated, corrupt or something else."
        ) from error


def _other_separator(path: Path) -> str | None:
    """Return what seems to separate the columns of a csv file, where it is no comma."""
    if path.suffix.lower() != ".csv":
        return None
    with path.open("rb") as file:
        header = file.readline(1_000_000).decode(errors="replace")
    counts = {separator: header.count(separator) for separator in SEPARATORS}
    likeliest = max(counts, key=lambda separator: counts[separator])
    return likeliest if counts[likeliest] > header.count(",") else None


def _separated_by(separator: str) -> str:
    return (
        f"the separator seems to be {SEPARATORS[separator]}, where kcal expects a comma. Save the table with commas "
        f"between columns and points in decimals (pandas: read_csv(..., sep={separator!r}), then to_csv)."
    )


def _kind(values: Any) -> str:
    kinds = require_pyarrow().types
    if kinds.is_string(values.type) or kinds.is_large_string(values.type):
        try:
            row, text = next((row, text) for row, text in enumerate(values.to_pylist()) if not _is_number(text))
            return f"text ({text!r} in row {row}, counted from 0)"
        except (UnicodeDecodeError, StopIteration):
            return "text"
    return "nothing" if kinds.is_null(values.type) else str(values.type)


def _is_number(text: str | None) -> bool:
    try:
        float(text or "0")
    except ValueError:
        return False
    return True
