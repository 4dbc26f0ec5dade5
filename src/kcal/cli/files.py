"""Read arrays from npz and npy files and columns from csv and parquet files; no code in a file is ever run."""

from __future__ import annotations

import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from kcal.errors import FileFormatError, InvalidInputError, MissingExtraError

SUFFIXES = (".npz", ".npy", ".parquet", ".csv")
TABLES = (".parquet", ".csv")

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""A text cell that begins with one of these is a formula for spreadsheet programs."""
TEXT_MARK = "'"
"""Written before such cells in csv files, and removed again when they are read."""

SEPARATORS = {";": "';'", "\t": "a tab", "|": "'|'"}
"""What some programs write between columns in place of a comma, and its name."""

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")

# What numpy, zipfile and zlib raise on damaged files.
_DAMAGE = (
    ValueError, OSError, EOFError, KeyError, TypeError, SyntaxError, MemoryError, RuntimeError,
    IndexError, OverflowError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def check_readable(path: Path) -> str:
    """Return the suffix of a data file, one of :data:`SUFFIXES`; raise if there is no such file."""
    if path.is_dir():
        raise InvalidInputError(str(path), "is a folder", remedy="Give the name of a file.")
    if not path.exists():
        raise InvalidInputError(str(path), "does not exist")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidInputError(str(path), f"is not a data file: the name must end in {', '.join(SUFFIXES)}")
    if path.stat().st_size == 0:
        raise FileFormatError(f"{path} is empty.")
    return suffix


def shorten(names: Sequence[Any], limit: int = 8) -> str:
    """Return the first few names, for a message."""
    more = f", … ({len(names):,} in all)" if len(names) > limit else ""
    return ", ".join(str(name) for name in names[:limit]) + more


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array of an npy file."""
    with path.open("rb") as file:
        stored = _load(path, file)
    if isinstance(stored, NpzFile):
        raise FileFormatError(f"{path} contains several arrays; rename it to {path.with_suffix('.npz').name}.")
    array: NDArray[Any] = stored
    return array


class ArraysFile:
    """An npz file: arrays by name, read when they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb")  # opened here, because numpy leaves damaged files open
        try:
            stored = _load(path, self._file)
            if not isinstance(stored, NpzFile):
                raise FileFormatError(
                    f"{path} contains one array without a name; rename it to {path.with_suffix('.npy').name}."
                )
        except BaseException:
            self._file.close()
            raise
        self._stored = stored

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return tuple(self._stored.files)

    def find(self, name: str, prefixes: Sequence[str] = ("",)) -> NDArray[Any] | None:
        """Return the array of that name, with the first prefix for which there is one; None if there is none."""
        for key in (f"{prefix}{name}" for prefix in prefixes):
            if key in self.keys:
                return self._read(key)
        return None

    def get(self, name: str, prefixes: Sequence[str] = ("",)) -> NDArray[Any]:
        """Return the array of that name; raise if there is none."""
        array = self.find(name, prefixes)
        if array is None:
            expected = " or ".join(f"{prefix}{name}" for prefix in prefixes)
            raise InvalidInputError(
                str(self.path),
                f"has no array called {expected}; it has {', '.join(self.keys) or 'no arrays'}",
                remedy=f"Write it with numpy.savez({str(self.path)!r}, {name}=..., ...).",
            )
        return array

    def __enter__(self) -> ArraysFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._stored.close()
        self._file.close()

    def _read(self, key: str) -> NDArray[Any]:
        try:
            array: NDArray[Any] = self._stored[key]
        except _DAMAGE as error:
            raise _damaged(self.path, error, f"array {key}") from error
        return array


def _load(path: Path, file: BinaryIO) -> Any:
    try:
        return np.load(file, allow_pickle=False)
    except _DAMAGE as error:
        raise _damaged(path, error, "it") from error


def _damaged(path: Path, error: BaseException, part: str) -> FileFormatError:
    if "Object arrays" in str(error):
        return FileFormatError(
            f"{path}: {part} contains Python objects, which are not read because that could run code. Convert it "
            "first: array.astype(str) for names, array.astype(float) for numbers."
        )
    return FileFormatError(
        f"{path} cannot be read: {part} is truncated, damaged or not in numpy's format. Write it again with "
        "numpy.savez or numpy.save."
    )


def require_pyarrow() -> Any:
    """Return pyarrow; raise with the command that installs it if it is missing."""
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
        self._is_csv = path.suffix.lower() == ".csv"
        table = _read_table(path)
        try:
            names = [name for name in table.column_names if not _PANDAS_INDEX.fullmatch(name)]
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{path}: the column names are not UTF-8. Save the file as UTF-8.") from error
        self._check_header(names, int(table.num_rows))
        table = table.select(names)
        self.columns = tuple(_without_mark(name) if self._is_csv else name for name in names)
        self._table = table.rename_columns(list(self.columns))

    def find(self, column: str) -> NDArray[Any] | None:
        """Return a column's values, or None if there is no such column."""
        return self.get(column, "") if column in self.columns else None

    def get(self, column: str, option: str) -> NDArray[Any]:
        """Return a column's values; ``option`` names the column on the command line, for the message."""
        if column not in self.columns:
            raise InvalidInputError(
                str(self.path),
                f"has no column called {column!r}; it has {shorten(self.columns)}",
                remedy=f"Name the right one with {option}.",
            )
        values = self._table.column(column)
        if values.null_count:
            row = int(np.flatnonzero(values.is_null().to_numpy())[0])
            raise InvalidInputError(
                f"{self.path}: column {column!r}",
                f"has no value in row {row} (counted from 0 below the header)",
                remedy="Leave such rows out.",
            )
        if require_pyarrow().types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if _is_numeric(values.type):
            array: NDArray[Any] = values.to_numpy()
            return array
        try:
            texts = [value.decode() if isinstance(value, bytes) else str(value) for value in values.to_pylist()]
        except UnicodeDecodeError as error:
            raise FileFormatError(
                f"{self.path}: column {column!r} contains text that is not UTF-8. Save the file as UTF-8."
            ) from error
        return np.array([_without_mark(text) for text in texts] if self._is_csv else texts)

    def matching(self, pattern: str, option: str) -> tuple[str, ...]:
        """Return the columns that match a pattern such as ``e_*``, in the order of the file."""
        names = tuple(name for name in self.columns if fnmatchcase(name, pattern))
        if not names:
            raise InvalidInputError(
                f"{self.path}: {option} {pattern!r}", f"matches no column; there are {shorten(self.columns)}"
            )
        return names

    def matrix(self, names: Sequence[str], option: str) -> NDArray[Any]:
        """Return numeric columns side by side, (n_rows, len(names)); float32 if all of them are at most that."""
        if not names:
            raise InvalidInputError(str(self.path), f"has no columns left for features; it has {shorten(self.columns)}")
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise InvalidInputError(
                str(self.path),
                f"lacks {len(missing):,} of the {len(names):,} columns that the model was fitted on: "
                f"{shorten(missing)}. It has {shorten(self.columns)}",
                remedy=f"Name the right ones with {option}.",
            )
        columns = [self._numbers(name) for name in names]
        narrow = all(column.dtype in (np.float16, np.float32) for column in columns)
        return np.stack(columns, axis=1).astype(np.float32 if narrow else np.float64)

    def _numbers(self, name: str) -> NDArray[Any]:
        values = self._table.column(name)
        if not _is_numeric(values.type):
            raise InvalidInputError(
                f"{self.path}: column {name!r}",
                f"must be numbers to be a feature; it contains {_describe(values)}",
                remedy="Choose the features with --feature-columns 'e_*', or name the column with --label-column, "
                "--group-column, --weight-column or --id-column.",
            )
        array: NDArray[Any] = values.to_numpy()  # missing numbers become NaN, which the check of the matrix reports
        return array

    def _check_header(self, names: list[str], n_rows: int) -> None:
        separator = _other_separator(self.path) if len(names) == 1 else None
        if separator is not None:
            raise FileFormatError(f"{self.path} has only one column: {_separated_by(separator)}")
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise InvalidInputError(
                str(self.path), f"has more than one column called {shorten(repeated)}", remedy="Rename them."
            )
        if "" in names:
            raise InvalidInputError(
                f"{self.path}: column {names.index('') + 1}",
                "has no name; it may be a row index",
                remedy="Give it a name, or write the table without it (pandas: index=False).",
            )
        if sum(bool(re.fullmatch(r"-?\d+\.\d*(e[+-]?\d+)?", name, re.I)) for name in names) > 1:
            raise InvalidInputError(
                f"{self.path}: the first row", f"must contain the column names; it looks like data ({shorten(names)})"
            )
        if n_rows == 0:
            raise InvalidInputError(str(self.path), "has no rows below its header")


def _without_mark(text: str) -> str:
    """Return a cell or a column name without the mark that keeps it from being a formula."""
    return text[1:] if text.startswith(TEXT_MARK) and text[1:].lstrip(TEXT_MARK).startswith(FORMULA_STARTS) else text


def _read_table(path: Path) -> Any:
    pyarrow = require_pyarrow()
    is_csv = path.suffix.lower() == ".csv"
    try:
        return pyarrow.csv.read_csv(path) if is_csv else pyarrow.parquet.ParquetFile(path).read()
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        separator = _other_separator(path)
        if separator is not None:
            raise FileFormatError(f"{path} cannot be read as csv: {_separated_by(separator)}") from error
        kind, advice = "parquet", "It is truncated, damaged or of another format."
        if is_csv:
            kind, advice = "csv", "A csv file needs commas, a header row and the same number of cells in every row."
        raise FileFormatError(f"{path} cannot be read as {kind}: {reason}. {advice}") from error


def _other_separator(path: Path) -> str | None:
    """Return what probably separates the columns of a csv file, if it is not a comma."""
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


def _is_numeric(kind: Any) -> bool:
    types = require_pyarrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _describe(values: Any) -> str:
    """Return what a column contains that is not numeric, for a message."""
    types = require_pyarrow().types
    if types.is_null(values.type):
        return "nothing"
    if not (types.is_string(values.type) or types.is_large_string(values.type)):
        return str(values.type)
    try:
        for row, text in enumerate(values.to_pylist()):
            if not re.fullmatch(r"\s*[+-]?[\d.]+(e[+-]?\d+)?\s*", text or "0", re.I):
                return f"text ({text!r} in row {row}, counted from 0)"
    except UnicodeDecodeError:
        pass
    return "text"
