"""Read a classifier's outputs from a file: npz, npy, csv, parquet, or a folder of ``kcal.extract``.

No code in a file is ever run, and no array is allocated before its header was compared with the bytes that hold it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kcal.embeddings.folder import read_outputs as read_folder
from kcal.embeddings.outputs import MATRICES, PARTS, VECTORS, ClassifierOutputs
from kcal.errors import FileFormatError, InvalidInputError, KcalError, MissingExtraError
from kcal.files import MAX_EXPANSION, MIN_CHECKED_BYTES, array_names, check_path, read_array, without_mark
from kcal.validation import check_labels, check_matrix, check_weights, collect_classes, shorten, shown

SUFFIXES = (".npz", ".npy", ".parquet", ".csv")
TABLES = (".parquet", ".csv")
_OTHER_FILE = re.compile(r"(.+\.(?:npz|npy|parquet|csv))(?::(.+))?", re.IGNORECASE)

READ_BYTES = 2**18
"""Bytes of a column that are read at once: by default pyarrow would hold whole row groups."""
ABSENT = ("NA", "N/A", "#N/A", "n/a", "null", "NULL")
"""Text that stands for missing numbers in a column of numbers."""

Names = str | Sequence[str] | None


@dataclass(frozen=True, repr=False)
class FileOutputs(ClassifierOutputs):
    """A classifier's outputs as a file has them; ``available`` are the names of all arrays or columns of the file."""

    available: tuple[str, ...] = ()


def read_outputs(
    path: str | os.PathLike[str],
    *,
    embeddings: Names = "embeddings",
    logits: Names = "logits",
    labels: str | None = "labels",
    groups: str | None = "groups",
    weights: str | None = "weights",
    ids: str | None = "ids",
    classes: Sequence[Any] | None = None,
    prefix: str = "",
) -> FileOutputs:
    """Read a classifier's outputs from an npz, npy, csv or parquet file, or a folder that :func:`extract` wrote.

    A part is an array of an npz file or columns of a table. A part under its default name, or the singular of it
    (``label``), may be missing; one that is named otherwise must be there. None leaves a part out. In a table,
    embeddings and logits are one column of lists, the columns that begin with the name and an underscore
    (``logits_cat``, ``logits_dog``), those that match a pattern (``"z*"``; ``"*"`` for all that are nothing else), or a
    list of columns. An npy file holds the embeddings or, with ``embeddings=None``, the logits. The name of another file
    (``"labels.npy"``, ``"labels.csv:diagnosis"``) reads a part from there.

    Parameters
    ----------
    path : str or path
        The file or folder.
    embeddings, logits : str, list of str or None
        Names of the matrices; default "embeddings" and "logits".
    labels, groups, weights, ids : str or None
        Names of the values per sample; default as the arguments.
    classes : sequence, optional
        The class of every column of the logits. By default the array ``classes`` of an npz file or what the columns of
        a table are called after the prefix. Integer labels are positions among classes that are passed, or that are in
        the same npz file; otherwise labels are classes.
    prefix : str, default ""
        Text before all names in an npz file, such as ``train_``.

    Returns
    -------
    FileOutputs
        A :class:`ClassifierOutputs` with ``classes`` and the names of columns; arrays in numpy, checked.
    """
    wanted = dict(zip(PARTS, (embeddings, logits, labels, groups, weights, ids), strict=True))
    for part, name in {**wanted, "prefix": prefix}.items():
        several = name if isinstance(name, list | tuple) else ["" if name is None and part != "prefix" else name]
        if not all(isinstance(text, str) for text in several):
            raise InvalidInputError(part, "must be a name, or a list of columns", got=shown(name))
    single = next((part for part in MATRICES if wanted[part] is not None and not other_file(wanted[part])), "")
    file = _open(check_path(path), single)
    found: dict[str, NDArray[Any]] = {}
    columns: dict[str, tuple[str, ...]] = {}
    for part in sorted(PARTS, key=lambda part: wanted[part] == "*"):  # those that take all other columns come last
        if (match := other_file(wanted[part])) is not None:
            source = _open(Path(match[1]), part)
            names = source.find(part, match[2] or part) or source.only(part)
        else:
            source, names = (
                file,
                file.find(part, wanted[part], prefix, [text for used in columns.values() for text in used]),
            )
        if names:
            found[part] = source.read(part, names)
            columns |= {part: names} if source.is_table else {}
    with errors_about(f"{file.path}: "):
        checked = check_parts(found)
        order, stored = _find_classes(file, classes, class_names(columns.get("logits", ()), logits), prefix)
        if order is not None and "labels" in checked:
            positions = classes is not None or (stored and not other_file(labels))
            checked["labels"], order = _match_labels(checked["labels"], order, positions=positions)
    return FileOutputs(**checked, classes=order, columns=columns, available=file.names)


def match_columns(
    part: str, name: Names, available: Sequence[str], taken: Collection[str] = (), *, is_table: bool = True
) -> tuple[str, ...]:
    """Return the columns of a table that are a part of the outputs, by its name as in :func:`read_outputs`.

    ``taken`` are columns that the pattern ``"*"`` leaves out. Raise if the name is not a default and matches nothing.
    Without ``is_table``, the part is one array.
    """
    if name is None:
        return ()
    if not isinstance(name, str):
        missing = [column for column in name if column not in available]
        if missing:
            raise InvalidInputError(
                part, f"must be in the table, which lacks {shorten(missing)}", got=_listed(available)
            )
        return tuple(name)
    candidates = (name, name[:-1]) if name == part else (name,)
    is_matrix = is_table and part in MATRICES
    matches: list[tuple[str, ...]] = [(text,) for text in candidates if text in available]
    if is_matrix and "*" in name:
        reserved = {text for vector in VECTORS for text in (vector, vector[:-1])} | set(taken)
        matches = [tuple(text for text in available if fnmatchcase(text, name) and text not in reserved)]
    elif is_matrix:
        matches += [tuple(text for text in available if text.startswith(f"{start}_")) for start in candidates]
    columns = next((names for names in matches if names), ())
    if not columns and name != part:
        choices = available if part in MATRICES else [text for text in available if text not in (*MATRICES, "classes")]
        raise InvalidInputError(part, f"must name what is there, {_listed(choices)}", got=repr(name))
    return columns


def class_names(columns: Sequence[str], name: Names) -> tuple[str, ...]:
    """Return what columns of logits are called after the start of their pattern or prefix: cat for logits_cat."""
    if len(columns) < 2 or not isinstance(name, str):
        return ()
    match = other_file(name)
    pattern = (match[2] or "*") if match else name
    if "*" not in pattern:
        pattern = f"{pattern if columns[0].startswith(f'{pattern}_') else pattern[:-1]}_*"
    start, _, end = pattern.partition("*")
    return tuple(column[len(start) : len(column) - len(end)] for column in columns)


def classes_of(names: Sequence[str]) -> NDArray[Any] | None:
    """Return the classes that columns of logits are called after; None without names, or if these count from 0."""
    return None if list(names) == [str(number) for number in range(len(names))] else np.array(names)


def _listed(names: Sequence[str]) -> str:
    return shorten(names) or "nothing with a name"


def other_file(name: Names) -> re.Match[str] | None:
    """Return the match of a file, and of a name in it, in place of the name of an array or column."""
    return _OTHER_FILE.fullmatch(name) if isinstance(name, str) else None


@contextmanager
def errors_about(prefix: str) -> Iterator[None]:
    """Put a prefix, such as the name of a file, before the parameter that an error is about."""
    try:
        yield
    except InvalidInputError as error:
        name = f"{prefix}{error.parameter}"
        raise InvalidInputError(name, error.expected, got=error.got, remedy=error.remedy) from error


def check_parts(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return parts of outputs as arrays: matrices of finite numbers, and one value per sample of everything else."""
    checked: dict[str, Any] = {}
    for part, values in found.items():
        if part in VECTORS:
            continue
        is_mapped = isinstance(values, np.memmap)  # it stays on disk, and is checked when it is used
        checked[part] = values if is_mapped else check_matrix(values, part, logits=part == "logits").numpy()
    n_samples = len(next(iter((checked or found).values()), ()))
    for part, matrix in checked.items():
        if len(matrix) != n_samples:
            raise InvalidInputError(part, "must have one row per sample", got=f"{len(matrix):,} for {n_samples:,}")
    return checked | {part: _check_vector(found[part], part, n_samples) for part in VECTORS if part in found}


def _check_vector(values: NDArray[Any], part: str, n_samples: int) -> NDArray[Any]:
    """Return labels, groups, ids or weights, one per sample; bytes are decoded, and 3.0 is 3."""
    values = values.reshape(-1) if values.shape[1:] == (1,) else values
    if part == "weights":
        check_weights(values, n_samples, part)
        return values
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    values = check_labels(values, n_samples, part)
    if values.dtype.kind == "U" and (values == "").any():
        raise InvalidInputError(part, "must not be blank", got=f"a blank at row {int(np.argmax(values == ''))}")
    return values.astype(np.int64) if values.dtype.kind == "f" else values


def _find_classes(
    file: _File, given: Sequence[Any] | None, names: Sequence[str], prefix: str
) -> tuple[NDArray[Any] | None, bool]:
    """Return the class of every column of the logits, if it is known, and whether an npz file stores it.

    ``names`` are those that the columns of a table have.
    """
    if given is not None:
        classes = collect_classes([], given)
        typed = [str(label) for label in classes.tolist()]
        if len(set(typed)) < max(len(typed), 2):
            raise InvalidInputError("classes", "must be at least two, each once", got=shorten(typed) or "none")
        if sorted(typed) == sorted(names) and typed != list(names):
            raise InvalidInputError("classes", f"must follow the columns, {shorten(names)}", got=shorten(typed))
        return classes, False
    stored = next((name for name in (f"{prefix}classes", "classes") if name in file.names), None)
    if stored is not None and not file.is_table and not names:  # columns of another file have names of their own
        classes = file.read("classes", (stored,))
        return _check_vector(classes, "classes", classes.size), True
    return classes_of(names), False


def _match_labels(labels: NDArray[Any], classes: NDArray[Any], *, positions: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return labels and classes of one type; integers are positions among named classes only if that is known."""
    if labels.dtype.kind not in "iu" or classes.dtype.kind != "U":
        return labels, classes
    if all(name.isdecimal() for name in classes.tolist()):
        return labels, classes.astype(np.int64)
    if not positions:
        problem = f"are integers, but the classes have names: {shorten(classes.tolist())}"
        remedy = "Give the labels by name, or pass the classes in the order in which the integers count them."
        raise InvalidInputError("labels", problem, remedy=remedy)
    if labels.min(initial=0) < 0 or labels.max(initial=0) >= len(classes):
        worst = labels[(labels < 0) | (labels >= len(classes))][0]
        raise InvalidInputError("labels", f"must be positions of classes, 0 to {len(classes) - 1}", got=str(worst))
    return classes[labels], classes


class _File(NamedTuple):
    """The arrays of an npz file or a folder by name, the array of an npy file, or the columns of a table."""

    path: Path
    names: tuple[str, ...]
    read: Callable[[str, Sequence[str]], NDArray[Any]]
    """Return the array of a part from the names of its array or columns."""
    is_table: bool = False

    def find(self, part: str, name: Names, prefix: str = "", taken: Collection[str] = ()) -> tuple[str, ...]:
        """Return the names of the arrays or columns of a part; arrays have a prefix."""
        prefix = "" if self.is_table else prefix
        available = [text.removeprefix(prefix) for text in self.names if text.startswith(prefix)]
        with errors_about(f"{self.path}: "):
            return tuple(prefix + text for text in match_columns(part, name, available, taken, is_table=self.is_table))

    def only(self, part: str) -> tuple[str, ...]:
        """Return the columns of a part in a table of its own that does not have it under its name."""
        if self.is_table and part in MATRICES:
            return match_columns(part, "*", self.names)
        if not self.is_table or len(self.names) > 1:
            raise InvalidInputError(str(self.path), f"has no {part}; it has {_listed(self.names)}")
        return self.names


def _open(path: Path, single: str = "") -> _File:
    """Open a data file by its suffix, or a folder of ``kcal.extract``; ``single`` names the array of an npy file."""
    suffix = path.suffix.lower()
    if path.is_dir():
        arrays = read_folder(path).parts()
        return _File(path, tuple(arrays), lambda part, names: arrays[names[0]])  # they stay on disk
    if not path.exists():
        raise InvalidInputError(str(path), "does not exist")
    if suffix not in SUFFIXES:
        raise InvalidInputError(str(path), f"must end in {', '.join(SUFFIXES)} to be a data file")
    if suffix in TABLES:
        return _open_table(path)
    is_npy = suffix == ".npy"

    def read(part: str, names: Sequence[str]) -> NDArray[Any]:
        with _damage(path, names[0]):
            return read_array(path, None if is_npy else names[0])

    with _damage(path, "it"):
        return _File(path, (single,) if is_npy else array_names(path), read)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of an npz file by name."""
    file = _open(path)
    return {name: file.read("", [name]) for name in file.names}


@contextmanager
def _damage(path: Path, name: str) -> Iterator[None]:
    """Turn what numpy, zipfile and zlib raise on damaged files, which is almost anything, into one error."""
    try:
        yield
    except KcalError as error:
        raise FileFormatError(f"{path} cannot be read: {name} {error}") from error
    except PermissionError:
        raise
    except Exception as error:
        problem = f"is truncated, damaged or not in numpy's {path.suffix[1:]} format"
        raise FileFormatError(f"{path} cannot be read: {name} {problem}.") from error


def require_pyarrow() -> Any:
    """Return pyarrow; raise with the command that installs it if it is missing."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "parquet files are read and written with pyarrow, which is not installed. "
            "Run: pip install 'kcal[tables]', or use csv, npz and npy files."
        ) from error
    return pyarrow


def _open_table(path: Path) -> _File:
    """Open a csv or parquet file; of parquet only the columns that are wanted are read."""
    is_csv = path.suffix.lower() == ".csv"
    names, n_rows, columns = (_read_csv if is_csv else _read_parquet)(path)
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated or not n_rows:
        problem = f"has more than one column called {shorten(repeated)}" if repeated else "has no rows"
        raise InvalidInputError(str(path), problem)

    def read(part: str, wanted: Sequence[str]) -> NDArray[Any]:
        with errors_about(f"{path}: "), nullcontext() if is_csv else reading_parquet(path):
            found = columns(wanted)
            return matrix_of(found, wanted) if part in MATRICES else _vector(wanted[0], found[wanted[0]])

    known = tuple(name for name in names if name and not name.startswith("__index_level_"))  # of pandas
    return _File(path, known, read, is_table=True)


Columns = Callable[[Sequence[str]], Any]
"""Return columns by their names, of pandas or pyarrow, as a mapping or table."""


def _read_csv(path: Path) -> tuple[list[str], int, Columns]:
    """Return the names of the columns of a csv file, the number of rows, and the columns."""
    import pandas as pd

    options: dict[str, Any] = {"keep_default_na": False, "encoding": "utf-8-sig", "low_memory": False}
    try:
        names = pd.read_csv(path, header=None, nrows=1, dtype=str, **options).iloc[0].tolist()
        frame = pd.read_csv(path, header=0, names=[*range(len(names))], na_values=["", "NaN", "nan"], **options)
        if not isinstance(frame.index, pd.RangeIndex):
            raise ValueError(f"there are more cells in a row than the {len(names):,} of the header")
    except (ValueError, IndexError, MemoryError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        reason = "it contains text that is not UTF-8" if isinstance(error, UnicodeError) else reason
        advice = "It needs commas, a header, UTF-8 and as many cells in every row."
        raise FileFormatError(f"{path} cannot be read as csv: {reason}. {advice}") from error
    names = [without_mark(name) for name in names]
    places = {name: place for place, name in enumerate(names)}

    def column(name: str) -> Any:
        values = frame[places[name]]
        if values.dtype.kind != "O":
            return values
        absent = values.isin(ABSENT)
        numbers = pd.to_numeric(values[~absent], errors="coerce") if absent.any() else None
        if numbers is not None and numbers.notna().all():
            return numbers.reindex(values.index)  # NaN where a number is missing
        return values.map(without_mark, na_action="ignore")

    return names, len(frame), lambda wanted: {name: column(name) for name in wanted}


def _read_parquet(path: Path) -> tuple[list[str], int, Columns]:
    """Return the names of the columns of a parquet file, the number of rows, and a function that reads columns."""
    with open_parquet(path) as file:
        names, n_rows = file.schema_arrow.names, file.metadata.num_rows

    def read(wanted: Sequence[str]) -> Any:
        with open_parquet(path) as file:
            chosen, metadata, stored = set(wanted), file.metadata, path.stat().st_size
            groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
            chunks = (group.column(place) for group in groups for place in range(group.num_columns))
            paths = ((chunk.path_in_schema, chunk.num_values) for chunk in chunks)
            size = sum(8 * count for name, count in paths if name in chosen or name.partition(".")[0] in chosen)
            if size > max(MIN_CHECKED_BYTES, MAX_EXPANSION * stored):
                raise FileFormatError(f"{path} cannot be read: it declares {size:,} bytes, and holds {stored:,}.")
            return file.read(columns=list(wanted), use_threads=False)

    return names, n_rows, read


def open_parquet(path: str | Path) -> Any:
    """Open a parquet file; raise if it cannot be read as one."""
    parquet = require_pyarrow().parquet
    with reading_parquet(path):
        return parquet.ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES)


@contextmanager
def reading_parquet(path: str | Path) -> Iterator[None]:
    """Raise one clear error if a file, or a part of it, cannot be read as parquet."""
    try:
        yield
    except KcalError:
        raise
    except (require_pyarrow().ArrowException, OSError, ValueError, MemoryError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise FileFormatError(f"{path} cannot be read as parquet: {reason}.") from error


def matrix_of(table: Any, names: Sequence[str]) -> NDArray[Any]:
    """Return columns of numbers side by side, (n, n_columns), or the lists or tensors of one column, (n, …).

    The columns ``table[name]`` are of pandas or pyarrow. Of several, the result is float32 if all numbers are at most
    that, else float64.
    """
    arrays = {name: _array_of(table[name]) for name in names}
    (name, first), *others = arrays.items()
    if not others and first.dtype == object and len(first) and not isinstance(first[0], str):
        try:
            first = arrays[name] = np.stack(list(first))
        except ValueError as error:
            expected = "must have lists of one length in all rows"
            raise InvalidInputError(f"column {name!r}", expected, got=str(error)) from error
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            wrong = next((cell for cell in array.flat if not _is_number(cell)), array.dtype)
            remedy = "Name the columns of numbers, such as 'e_*'."
            raise InvalidInputError(
                f"column {name!r}", "must be numbers, or lists of them", got=repr(wrong), remedy=remedy
            )
    if first.ndim > 1:
        return first
    is_narrow = all(array.dtype in (np.float16, np.float32) for array in arrays.values())
    return np.stack(list(arrays.values()), axis=1).astype(np.float32 if is_narrow else np.float64)


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


def _array_of(values: Any) -> NDArray[Any]:
    """Return a column as an array, of objects if it has text or lists; missing numbers are NaN."""
    if not hasattr(values, "combine_chunks"):  # of pandas
        return np.asarray(values)
    values = values.combine_chunks()
    is_tensor = hasattr(values, "to_numpy_ndarray")
    return np.asarray(values.to_numpy_ndarray() if is_tensor else values.to_numpy(zero_copy_only=False))


def _vector(name: str, values: Any) -> NDArray[Any]:
    """Return the values of a column of pandas or pyarrow: numbers, or text."""
    series = values.to_pandas() if hasattr(values, "to_pandas") else values
    missing, array = series.isna().to_numpy(), series.to_numpy()
    if missing.any():
        row = int(missing.argmax())
        raise InvalidInputError(f"column {name!r}", "must have a value in every row", got=f"none in row {row}")
    if array.dtype.kind in "biuf":
        return np.asarray(array)
    texts = series.tolist()
    if isinstance(next(iter(texts), None), bytes):
        raise InvalidInputError(f"column {name!r}", "must be numbers or text", got="bytes")
    return np.array([str(text) for text in texts])
