"""Parquet files: found, cut into parts, read in blocks; the columns that a model takes and those of its predictions.

A part is a range of rows of one file. Its predictions are one file of the output. The blocks in which a part is scored
begin at fixed rows of its file: the numbers of a row depend neither on the engine nor on where a run was stopped.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.embeddings.read import open_parquet, reading_parquet
from kcal.errors import FileFormatError, InvalidInputError
from kcal.files import check_path

PART_ROWS = 131_072
"""Rows of a part; more where a row group of the file has more: hardly any row is read twice."""
PROBABILITY_COLUMN = "p_"
"""Precedes the name of a class: no class can be mistaken for another column."""
NOT_FEATURES = ("label", "group", "weight", "id")
"""Columns that are never taken as features by default."""


@dataclass(frozen=True)
class Part:
    """Rows ``start`` to ``stop`` of a parquet file.

    ``digest`` is that of the file when the parts were cut, ``settings`` that of what the predictions depend on.
    """

    path: str
    start: int
    stop: int
    digest: str
    settings: str = ""

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def name(self) -> str:
        """Name of the file of the predictions."""
        return f"{Path(self.path).stem}-{self.digest}{self.settings}-{self.start:012d}.parquet"

    def blocks(self, columns: Sequence[str], rows: int) -> Iterator[Any]:
        """Yield tables of ``rows`` rows, the last with those that are left; little more than one is held."""
        import pyarrow

        with reading_parquet(self.path), open_parquet(self.path) as file:
            self._check_unchanged()
            sizes = row_groups(file)
            first, last = np.searchsorted(np.cumsum(sizes), [self.start, self.stop - 1], side="right").tolist()
            skip, left, waiting = self.start - sum(sizes[:first]), len(self), None
            for batch in file.iter_batches(rows, row_groups=range(first, last + 1), columns=list(columns)):
                offset = min(skip, len(batch))
                skip -= offset
                table = pyarrow.Table.from_batches([batch.slice(offset)])
                waiting = table if waiting is None else pyarrow.concat_tables([waiting, table])
                while 0 < (size := min(rows, left)) <= len(waiting):
                    yield waiting.slice(0, size)
                    waiting, left = waiting.slice(size), left - size
            self._check_unchanged()

    def _check_unchanged(self) -> None:
        if file_digest(self.path) != self.digest:
            raise FileFormatError(f"{self.path} was changed during the run. Write to another folder.")


@dataclass(frozen=True)
class InputFile:
    """A parquet file with what identifies its content."""

    path: str
    digest: str
    rows: int
    max_row_group: int
    columns: dict[str, str]  # types by name

    @classmethod
    def read(cls, path: Path) -> InputFile:
        """Return the description of a file from its footer."""
        place = os.path.realpath(path)
        digest = file_digest(place)
        with open_parquet(path) as file:
            groups = row_groups(file)
            columns = {field.name: str(field.type) for field in file.schema_arrow}
        return cls(place, digest, sum(groups), max(groups, default=0), columns)

    def parts(self, rows: int, block_rows: int, settings: str = "") -> Iterator[Part]:
        """Yield the parts of the file, which begin at multiples of ``block_rows``."""
        step = -(-max(rows, self.max_row_group) // block_rows) * block_rows
        for start in range(0, self.rows, step):
            yield Part(self.path, start, min(start + step, self.rows), self.digest, settings)


def row_groups(file: Any) -> list[int]:
    """Return the number of rows of each row group of an open parquet file."""
    return [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]


def file_digest(path: str) -> str:
    """Return a short hash of the path, the size and the time of the last change of a file."""
    stored = Path(path).stat()
    return hashlib.sha256(f"{path}\0{stored.st_size}\0{stored.st_mtime_ns}".encode()).hexdigest()[:10]


def find_files(paths: Any) -> list[Path]:
    """Return the files that paths, folders and patterns such as ``data/*.parquet`` name, each once, by name.

    A folder stands for its parquet files.
    """
    files: dict[str, Path] = {}
    for entry in paths if isinstance(paths, Iterable) and not isinstance(paths, str) else [paths]:
        path = check_path(entry, "data")
        matches = [path]
        if path.is_dir():
            matches = sorted(path.glob("*.parquet"))
        elif not path.exists() and has_magic(str(path)):
            matches = [Path(name) for name in sorted(glob(str(path), recursive=True))]  # noqa: PTH207 (may be absolute)
        matches = [match for match in matches if not match.name.startswith(("_", "."))]
        if not matches or not all(match.is_file() for match in matches):
            expected = "must be parquet files, a folder of them or a pattern that some match"
            remedy = "A folder of kcal.extract must hold its outputs.json." if path.is_dir() else ""
            raise InvalidInputError("data", expected, got=repr(str(entry)), remedy=remedy)
        files |= {os.path.realpath(match): match for match in matches}
    if not files:
        raise InvalidInputError("data", "must name at least one file", got="none")
    return list(files.values())


@dataclass(frozen=True)
class Columns:
    """Columns of a table that a model takes.

    ``features`` are embeddings, logits or inputs of a network, by the model: a column per number, or one column of
    lists or tensors. ``logits`` stand beside embeddings. ``ids`` are copied to the predictions as ``id_name``.
    """

    features: tuple[str, ...]
    logits: tuple[str, ...] = ()
    ids: str | None = None
    id_name: str = "id"

    @property
    def names(self) -> list[str]:
        """All columns that are read."""
        return [*dict.fromkeys([*self.features, *self.logits, *([] if self.ids is None else [self.ids])])]

    def check(self, types: Mapping[str, str], table: str, *, like: Mapping[str, str]) -> None:
        """Raise if a table, given by the types of its columns, lacks one, or has ids of another type than another."""
        missing = [name for name in self.names if name not in types]
        if missing:
            problem = f"has no column {missing[0]!r}" + (f" and {len(missing) - 1:,} others" if missing[1:] else "")
            raise InvalidInputError(table, problem, remedy="All files must have the columns that the model takes.")
        if self.ids is not None and types[self.ids] != like[self.ids]:
            expected = f"must have ids of one type, {like[self.ids]} as in the first file"
            raise InvalidInputError(table, expected, got=types[self.ids])


def default_columns(names: Sequence[str], fitted: Sequence[str]) -> Columns:
    """Return the columns of a table: those that a model was ``fitted`` on, or all that may be features."""
    features = tuple(fitted) or tuple(name for name in names if name not in NOT_FEATURES)
    if not features:
        raise InvalidInputError("data", "must have columns of features", got=f"only {', '.join(names) or 'no columns'}")
    return Columns(features, ids="id" if "id" in names and "id" not in features else None)


def prediction_columns(
    probs: NDArray[Any],
    classes: NDArray[Any],
    *,
    ids: Any = None,
    id_column: str = "id",
    evidence: NDArray[Any] | None = None,
) -> dict[str, Any]:
    """Return the columns of predictions by name: ids, the most probable class, a column per class, the evidence."""
    named = {f"{PROBABILITY_COLUMN}{label}": probs[:, index] for index, label in enumerate(classes.tolist())}
    columns = {"prediction": classes[probs.argmax(axis=1)]} | named
    columns |= {} if evidence is None else {"evidence": evidence}
    return ({} if ids is None else {"id" if id_column in columns else id_column: ids}) | columns
