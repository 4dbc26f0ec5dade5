"""Progress bars for long work: shown in a terminal, silent elsewhere and when asked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Advance = Callable[[str], None]
"""Called once a step, with a few words on how it goes (may be empty)."""


@contextmanager
def progress_bar(title: str, total: int, *, show: bool | None = None) -> Iterator[Advance]:
    """Yield a function that advances the bar by one step.

    ``show=None`` shows the bar only where a person can see it: when standard error is a terminal.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield _silent
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True), transient=show is None
    ) as bar:
        task = bar.add_task(title, total=total, note="")

        def advance(note: str = "") -> None:
            bar.update(task, advance=1, **({"note": note} if note else {}))  # type: ignore[arg-type]

        yield advance


@contextmanager
def working(title: str) -> Iterator[None]:
    """Show that something goes on, where a person can see it and its steps cannot be counted."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(title):
        yield


def _silent(note: str = "") -> None:
    """Advance nothing."""
