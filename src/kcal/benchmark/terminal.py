"""Print the benchmark's tables in a terminal of any width."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tables import METRIC_NOTE

NOT_TRANSPOSED = ("corrected", "failures")
"""In the other tables tasks become columns, because there are more methods than tasks."""
BOLD, UNDERLINED = "*", "_"
"""Marks for files and pipes, which show neither."""


def show_tables(screen: Console, tables: list[Table], *more: str) -> None:
    """Print tables with their notes, in parts if the terminal is narrow; a note that all metrics share comes once."""
    metrics = [table for table in tables if table.note == METRIC_NOTE]
    for table in metrics:
        _show(screen, table)
    plain = "" if screen.is_terminal else f"{BOLD} stands for bold, {UNDERLINED} for underlined."
    for text in (METRIC_NOTE, plain, *more):
        if text:
            screen.print(text, markup=False)
    for table in tables:
        if table.note != METRIC_NOTE:
            _show(screen, table)
            if table.note:
                screen.print(table.note, markup=False)


def _show(screen: Console, table: Table) -> None:
    screen.print()
    shown = table if table.name in NOT_TRANSPOSED else table.transposed()
    if not screen.is_terminal:
        shown = replace(shown, rows=tuple(tuple(_marked(entry) for entry in row) for row in shown.rows))
    for part in shown.fitting(screen.width):
        screen.print(part.as_rich())


def _marked(entry: Entry) -> Entry:
    return Entry(f"{BOLD * entry.bold}{UNDERLINED * entry.underlined}{entry.text}")
