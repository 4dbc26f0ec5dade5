"""Progress of long runs: bars in a terminal, lines in a file or a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from kcal.errors import printable

Report = Callable[[str, int, int], None]
"""Called with "name: step", the number of finished steps and their total."""
SECONDS_BETWEEN_LINES = 60.0
"""Least time between two lines if nothing starts or ends."""


@contextmanager
def show_progress(quiet: bool) -> Iterator[Report]:
    """Yield a function that shows progress on standard error; nothing is shown if ``quiet``."""
    if quiet or not sys.stderr.isatty():
        yield (lambda *_: None) if quiet else progress_lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
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
        is_late = not ends and time.monotonic() - last_line >= SECONDS_BETWEEN_LINES
        is_new = (name, ends) not in reported and (ends or (name, True) not in reported)
        if is_new or is_late or step.startswith("preparing"):
            last_line = time.monotonic()
            reported.add((name, ends))
            text = printable(f"{f'{name}: done' if ends else description}, {done} of {total}")
            sys.stderr.write(f"{text}\n")

    return report
