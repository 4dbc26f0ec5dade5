"""Write probabilities, arrays and tables; a file is complete or absent."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from typer import BadParameter

from kcal.cli.files import TABLES, require_pyarrow
from kcal.distributed.tables import prediction_columns
from kcal.errors import InvalidInputError, printable
from kcal.files import atomic_path, with_mark, write_arrays


class _NothingToWriteError(Exception):
    """Leave the block that would write a file."""


def console() -> Console:
    """Return standard output as a rich console that does not colour numbers by itself."""
    return Console(highlight=False)


def shown(text: object) -> str:
    """Return text from data, files or options for a rich console: control characters and markup escaped."""
    return escape(printable(text))


@contextmanager
def shown_log(name: str, quiet: bool) -> Iterator[None]:
    """Write what a logger of kcal says to standard error, unless ``quiet``."""
    logger, handler = logging.getLogger(name), logging.StreamHandler()
    level = logger.level
    if not quiet:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def check_writable(
    path: Path, suffixes: tuple[str, ...] = (), *, inputs: tuple[Path | None, ...] = (), option: str = "--out"
) -> None:
    """Raise early if a file could not be written later, or is also an input; ``option`` is how the user named it."""
    if suffixes and path.suffix.lower() not in suffixes and not path.is_dir():
        example = path.with_suffix(suffixes[0]) if path.name else f"model{suffixes[0]}"
        raise BadParameter(f"{option} must end in {', '.join(suffixes)}; got {str(path)!r}. Try {str(example)!r}.")
    for other in inputs:
        if other is not None and path.exists() and other.exists() and path.samefile(other):
            raise InvalidInputError(option, "must not replace an input", got=str(path), remedy="Choose another name.")
    with suppress(_NothingToWriteError), atomic_path(path, name=option):
        raise _NothingToWriteError


def write_predictions(
    path: Path,
    probs: NDArray[Any],
    classes: NDArray[Any],
    *,
    ids: NDArray[Any] | None = None,
    id_column: str = "id",
    evidence: NDArray[Any] | None = None,
) -> None:
    """Write probabilities (n, n_classes) in the format of the suffix; npy has only these, the others also the rest."""
    if path.suffix.lower() == ".npz":
        arrays = {} if ids is None else {"ids": ids}
        more = {} if evidence is None else {"evidence": evidence}
        prediction = classes[probs.argmax(axis=1)]
        write_arrays(path, arrays | {"prediction": prediction, "probabilities": probs, "classes": classes} | more)
    elif path.suffix.lower() in TABLES:
        write_table(path, prediction_columns(probs, classes, ids=ids, id_column=id_column, evidence=evidence))
    else:
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.save(file, probs, allow_pickle=False)


def write_table(path: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write columns by name to a parquet or csv file; text that a spreadsheet program would run is marked as text."""
    pyarrow = require_pyarrow()
    is_csv = path.suffix.lower() == ".csv"
    if is_csv:
        columns = {with_mark(name): _mark_texts(values) for name, values in columns.items()}
    table = pyarrow.table(dict(columns))
    with atomic_path(path) as temporary:
        (pyarrow.csv.write_csv if is_csv else pyarrow.parquet.write_table)(table, temporary)


def _mark_texts(values: NDArray[Any]) -> NDArray[Any]:
    """Return a column whose texts are marked; an array of objects may hold some."""
    if values.dtype.kind not in "UO":
        return values
    marked = [with_mark(value) if isinstance(value, str) else value for value in values.tolist()]
    return np.array(marked, dtype=object)
