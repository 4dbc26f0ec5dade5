"""What the commands print and write; a file is complete or absent."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import BadParameter

import kcal
from kcal.errors import InvalidInputError, printable


class _NothingToWriteError(Exception):
    """Leave the block that would write a file."""


def console() -> Console:
    """Return standard output as a rich console that does not colour numbers by itself."""
    return Console(highlight=False)


def shown(text: object) -> str:
    """Return text from data, files or options for a rich console: control characters and markup escaped."""
    return escape(printable(text))


def simple_table(*titles: str, n_texts: int = 1) -> Table:
    """Return an empty table with a line below its heading: ``n_texts`` columns of text, then numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, title in enumerate(titles):
        table.add_column(title, justify="left" if place < n_texts else "right", overflow="fold")
    return table


class Result(NamedTuple):
    """What a command found: figures for ``--json``, and a function that shows them."""

    figures: Any
    show: Callable[[], None]


def line(text: object, **figures: Any) -> Result:
    """Return a result that is shown as one line, which may be wider than the terminal, such as one with a path."""
    return Result(figures, lambda: console().print(shown(text), soft_wrap=True))


def finish(result: Result, *, quiet: bool, json_file: str | None) -> None:
    """Show a result, unless ``quiet``, and write it as JSON where the user wants it; NaN is null."""
    standard = json.loads(json.dumps(result.figures, default=str), parse_constant=lambda _: None)
    text = json.dumps(standard, indent=2, allow_nan=False)
    if json_file == "-":
        typer.echo(text)
    elif not quiet:
        result.show()
    if json_file not in (None, "-"):
        kcal.files.write_whole(json_file, f"{text}\n".encode())


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
    path: Path | str | None,
    suffixes: tuple[str, ...] = (),
    *,
    inputs: Sequence[Path | None] = (),
    option: str = "--out",
) -> None:
    """Raise early if a file could not be written later, or is also an input; ``option`` is how the user named it."""
    if path is None or str(path) == "-":
        return
    path = Path(path)
    if suffixes and path.suffix.lower() not in suffixes and not path.is_dir():
        raise BadParameter(f"{option} must end in {', '.join(suffixes)}; got {str(path)!r}.")
    for other in inputs:
        if other is not None and path.exists() and other.exists() and path.samefile(other):
            raise InvalidInputError(option, "must not replace an input", got=str(path), remedy="Choose another name.")
    with suppress(_NothingToWriteError), kcal.files.atomic_path(path, name=option):
        raise _NothingToWriteError


def make_folder(path: Path, option: str = "--out") -> Path:
    """Make a folder, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidInputError(option, "must be a folder", got=f"{path}, which is or is in a file") from error
    return path


def write_table(path: Path, columns: Mapping[str, Any]) -> None:
    """Write columns by name to a parquet or csv file; text that a spreadsheet program would run is marked as text."""
    pyarrow, with_mark = kcal.embeddings.read.require_pyarrow(), kcal.files.with_mark
    is_csv = path.suffix.lower() == ".csv"

    def cells(values: Any) -> Any:
        if not is_csv or values.dtype.kind not in "UO":
            return values
        marked = [with_mark(cell) if isinstance(cell, str) else cell for cell in values.tolist()]
        return pyarrow.array(marked, from_pandas=True)  # missing text is empty

    table = pyarrow.table({with_mark(name) if is_csv else name: cells(values) for name, values in columns.items()})
    with kcal.files.atomic_path(path) as temporary:
        (pyarrow.csv.write_csv if is_csv else pyarrow.parquet.write_table)(table, temporary)
