"""Bars of long runs, one a thing that is worked on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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


@contextmanager
def watching(quiet: bool) -> Iterator[Watch]:
    """Yield what shows how far the run is: a bar in a terminal, nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda *_: None
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
