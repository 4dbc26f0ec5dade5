"""How far long runs are: bars in a terminal, one a thing that is worked on, and lines in a file or a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Watch = Callable[[str, int, int], None]
SECONDS_BETWEEN_LINES = 60.0
"""At least, where nothing begins or ends."""


@contextmanager
def watching(quiet: bool) -> Iterator[Watch]:
    """Yield what shows how far the run is, on standard error; nothing if it is to be quiet."""
    if quiet:
        yield lambda *_: None
        return
    if not sys.stderr.isatty():
        yield in_lines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bars: dict[str, TaskID] = {}

        def watch(what: str, done: int, total: int) -> None:
            name = what.partition(":")[0]
            if name not in bars:
                bars[name] = progress.add_task(name, total=total)
            progress.update(bars[name], completed=done, description=what)

        yield watch


def in_lines() -> Watch:
    """Return what writes a line when something begins, is prepared or is done, and now and then in between."""
    begun: set[str] = set()
    ended: set[str] = set()
    written = time.monotonic()

    def watch(what: str, done: int, total: int) -> None:
        nonlocal written
        name, _, step = what.partition(": ")
        ends = done == total and name not in ended
        late = done < total and time.monotonic() - written >= SECONDS_BETWEEN_LINES
        if name not in begun or ends or late or step.startswith("preparing"):
            written = time.monotonic()
            begun.add(name)
            ended.update([name] if ends else [])
            typer.echo(f"{f'{name}: done' if ends else what}, {done} of {total}", err=True)

    return watch
