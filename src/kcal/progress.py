"""Progress bars for long work: shown in a terminal or on request, silent elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Advance = Callable[[str], None]
"""Called once per step, with a short note for the end of the bar; empty text keeps the last note."""


@contextmanager
def progress_bar(title: str, total: int, *, show: bool | None = None) -> Iterator[Advance]:
    """Yield a function that advances the bar by one step.

    Parameters
    ----------
    title : str
        Text in front of the bar.
    total : int
        Number of steps.
    show : bool, optional
        Whether to show the bar; None shows it if standard error is a terminal, and removes it at the end.
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
            bar.advance(task)
            if note:
                bar.update(task, note=note)

        yield advance


@contextmanager
def working(title: str) -> Iterator[None]:
    """Show a spinner if standard error is a terminal, for work whose steps cannot be counted."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(title):
        yield


def _silent(note: str = "") -> None:
    """Do nothing: the bar is not shown."""
