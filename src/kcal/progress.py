"""Progress of long work: bars in a terminal; of a benchmark also lines in a file or a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from kcal.errors import printable

Advance = Callable[[str], None]
"""Called once per step, with a short note for the end of the bar; empty text keeps the last note."""
Report = Callable[[str, int, int], None]
"""Called with "name: step", the number of finished steps and their total."""
SECONDS_BETWEEN_LINES = 60.0
"""Minimum time between two lines if nothing starts or ends."""


@contextmanager
def progress_bar(title: str, total: int | None, *, show: bool | None = None) -> Iterator[Advance]:
    """Yield a function that advances the bar by one step.

    Parameters
    ----------
    title : str
        Text in front of the bar.
    total : int, optional
        Number of steps, None if it is not known.
    show : bool, optional
        Whether to show the bar; None shows it if standard error is a terminal, and removes it at the end.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield _silent
        return
    with _bars(TextColumn("{task.fields[note]}"), transient=show is None) as bar:
        task = bar.add_task(title, total=total, note="")

        def advance(note: str = "") -> None:
            bar.advance(task)
            if note:
                bar.update(task, note=note)

        yield advance


@contextmanager
def show_progress(quiet: bool) -> Iterator[Report]:
    """Yield a function that shows a bar for each name, or lines without a terminal; nothing is shown if ``quiet``."""
    if quiet or not sys.stderr.isatty():
        yield (lambda *_: None) if quiet else progress_lines()
        return
    with _bars(transient=True) as progress:
        bars: dict[str, TaskID] = {}

        def report(description: str, done: int, total: int) -> None:
            name = description.partition(":")[0]
            if name not in bars:
                bars[name] = progress.add_task(escape(printable(name)), total=total)
            progress.update(bars[name], completed=done, description=escape(printable(description)))

        yield report


def progress_lines() -> Report:
    """Return a function that prints a line when something starts, is prepared or ends, and now and then in between."""
    reported: set[tuple[str, bool]] = set()
    last_line = time.monotonic()

    def report(description: str, done: int, total: int) -> None:
        nonlocal last_line
        (name, _, step), ends = description.partition(": "), done == total
        is_late = time.monotonic() - last_line >= SECONDS_BETWEEN_LINES
        if (name, ends) not in reported or is_late or step.startswith("preparing"):
            last_line = time.monotonic()
            reported.add((name, ends))
            text = printable(f"{f'{name}: done' if ends else description}, {done} of {total}")
            sys.stderr.write(f"{text}\n")

    return report


@contextmanager
def working(title: str) -> Iterator[None]:
    """Show a spinner if standard error is a terminal, for work whose steps cannot be counted."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(title):
        yield


def _bars(*more: TextColumn, transient: bool) -> Progress:
    """Return bars on standard error, with further columns at their end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), *more)
    return Progress(*columns, console=Console(stderr=True), transient=transient)


def _silent(note: str = "") -> None:
    """Do nothing: the bar is not shown."""
