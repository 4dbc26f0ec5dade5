"""What ``kcal explain`` shows and writes: tables on the screen, csv, JSON and a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from kcal.calibrators import Explanation
from kcal.cli.data import Dataset
from kcal.cli.output import check_writable, console, shown, write_table
from kcal.errors import InvalidInputError
from kcal.files import atomic_path

SHOWN_ROWS = 3
"""Rows that are shown, at most."""
PICTURES = (".png", ".pdf", ".svg")

Index = NDArray[np.int64]


def chosen_rows(data: Dataset, rows: Sequence[int] | None, ids: Sequence[str] | None) -> Index:
    """Return the rows that the user chose by number or by id, in this order; all rows without a choice."""
    if rows:
        last = len(data) - 1
        if max(rows) > last:
            raise InvalidInputError("--row", f"must be a row of {data.name}, 0 to {last:,}", got=f"{max(rows):,}")
        return np.array(rows)
    if not ids:
        return np.arange(len(data))
    if data.ids is None:
        remedy = "Store them in the npz file, name their column with --id-column, or pass --ids FILE."
        raise InvalidInputError("--id", f"needs ids, and {data.name} has none", remedy=remedy)
    known = [str(name) for name in data.ids.tolist()]
    for name in ids:
        if known.count(name) != 1:
            got = f"{name!r}, which it has {known.count(name):,} times"
            raise InvalidInputError("--id", f"must be an id that {data.name} has once", got=got)
    return np.array([known.index(name) for name in ids])


def show_explanation(explanation: Explanation, rows: Index, ids: NDArray[Any] | None) -> None:
    """Print the tables of the first rows."""
    screen = console()
    for place in range(min(len(rows), SHOWN_ROWS)):
        label = shown(explanation.predictions[place])
        screen.print(f"[bold]{shown(heading(rows, ids, place))}[/]: {label}", soft_wrap=True)
        screen.print(to_table(explanation.cells(place), n_texts=2))
        if lines := explanation.log_odds_cells(place):
            screen.print(to_table(lines))
    if len(rows) > SHOWN_ROWS:
        screen.print(f"and {len(rows) - SHOWN_ROWS:,} more; --csv FILE and --json FILE have all, --row N shows one.")


def heading(rows: Index, ids: NDArray[Any] | None, place: int) -> str:
    """Return how a row is called."""
    return f"row {rows[place]}" if ids is None else f"row {rows[place]}, {ids[place]}"


def to_table(lines: list[list[str]], n_texts: int = 1) -> Table:
    """Return lines as a table, the first a heading and the last bold: ``n_texts`` columns of text, then numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, title in enumerate(lines[0]):
        table.add_column(shown(title), justify="left" if place < n_texts else "right", overflow="fold")
    for line in lines[1:]:
        table.add_row(*map(shown, line), style="bold" if line is lines[-1] else None)
    return table


def explanation_to_json(explanation: Explanation, rows: Index, ids: NDArray[Any] | None) -> str:
    """Return everything as JSON; infinite numbers become null."""
    entries = replace(explanation, numbers=rows).to_dict()
    if ids is not None:
        entries = [
            {"row": entry.pop("row"), "id": name, **entry} for name, entry in zip(ids.tolist(), entries, strict=True)
        ]
    return json.dumps(entries, indent=2, allow_nan=False)


def write_shares(path: Path, explanation: Explanation, rows: Index, ids: NDArray[Any] | None) -> None:
    """Write a csv file with a row for each share; text that a spreadsheet program would run is marked."""
    columns = explanation.columns()
    places = columns.pop("row")
    first = {"row": rows[places]} | ({} if ids is None else {"row_id": ids[places]})
    write_table(path, first | columns)


def write_plot(path: Path, explanation: Explanation, rows: Index, ids: NDArray[Any] | None) -> None:
    """Draw the first row to a file."""
    from kcal.plots import explanation as draw
    from kcal.plots.style import wrap_label

    title = f"{heading(rows, ids, 0)}: {explanation.predictions[0]}"
    figure: Any = draw(explanation, 0, title=wrap_label(title)).get_figure(root=True)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=150)


def check_plot(path: Path, inputs: tuple[Path | None, ...]) -> None:
    """Raise early for a picture that could not be drawn or written."""
    check_writable(path, PICTURES, inputs=inputs, option="--plot")
    import_module("kcal.plots")  # raises with the command that installs matplotlib if it is missing
