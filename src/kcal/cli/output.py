"""What the commands print and write; a file is complete or absent."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import BadParameter

import kcal
from kcal.cli.options import PARTS
from kcal.errors import InvalidInputError, printable

OUTPUTS = ("json_file", "out", "path", "csv", "plot", "report")
"""Parameters of commands that name what is written."""


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


def check_writable(path: Path | str | None, suffixes: tuple[str, ...] = (), *, option: str = "--out") -> None:
    """Raise early if a file could not be written later; ``option`` is how the user named it."""
    if path is None or str(path) == "-":
        return
    path = Path(path)
    if suffixes and path.suffix.lower() not in suffixes and not path.is_dir():
        raise BadParameter(f"{option} must end in {', '.join(suffixes)}; got {str(path)!r}.")
    kcal.files.check_target(path, option)


def check_distinct(values: Mapping[str, Any], options: Mapping[str, str]) -> None:
    """Raise if a file that a command writes is also one that it reads, or another one that it writes.

    ``values`` are those of its parameters, and ``options`` their names for the user.
    """
    files = {name: [value] for name, value in values.items() if isinstance(value, Path)}
    files |= {
        name: [text, text.rpartition(":")[0]] for name in PARTS if (text := values.get(name))
    }  # FILE or FILE:NAME
    if values.get("json_file") not in (None, "-"):
        files["json_file"] = [values["json_file"]]
    if "report" in files:
        files["report"].append(values["report"] / "report.html")
    for name in OUTPUTS:
        for path, (other_name, others) in product(files.get(name, ()), files.items()):
            if other_name != name and any(_is_same(path, other) for other in others):
                expected = f"must not replace {'another output' if other_name in OUTPUTS else 'an input'}"
                raise InvalidInputError(options[name], expected, got=str(path), remedy="Choose another name.")


def _is_same(first: Path | str, second: Path | str) -> bool:
    if Path(second).is_dir():
        return False
    are_there = Path(first).exists() and Path(second).exists()
    return os.path.realpath(first) == os.path.realpath(second) or (are_there and Path(first).samefile(second))


def make_folder(path: Path, option: str = "--out") -> Path:
    """Make a folder, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidInputError(option, "must be a folder", got=f"{path}, which is or is in a file") from error
    return path


def write_table(path: Path, columns: Mapping[str, Any]) -> None:
    """Write columns by name to a parquet or csv file; text that a spreadsheet program would run is marked as text."""
    if path.suffix.lower() != ".csv":
        pyarrow = kcal.embeddings.read.require_pyarrow()
        with kcal.files.atomic_path(path) as temporary:
            pyarrow.parquet.write_table(pyarrow.table(dict(columns)), temporary)
        return
    import csv

    import pandas

    with_mark = kcal.files.with_mark

    def cells(values: Any) -> Any:
        if values.dtype.kind == "f":  # as float64 with the digits of the smaller type
            return values.astype(str).astype("float64") if values.dtype.itemsize < 8 else values
        return [with_mark(cell) if isinstance(cell, str) else cell for cell in values.tolist()]

    frame = pandas.DataFrame({with_mark(name): cells(values) for name, values in columns.items()})
    with kcal.files.atomic_path(path) as temporary:
        frame.to_csv(temporary, index=False, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
