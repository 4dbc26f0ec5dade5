"""Write a run's results to its folder (JSON, tables in three formats, reliability grids), and print its tables."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from rich.console import Console

from kcal.benchmark.results import Results, Row
from kcal.benchmark.running import Plan
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tables import METRIC_NOTE, all_sheets, all_tables, group_note, split_note
from kcal.errors import MissingExtraError
from kcal.files import write_whole
from kcal.metrics import ReliabilityBins

GRID_CLASSES = 8
"""Classes in a reliability grid, at most."""
NOT_TRANSPOSED = ("corrected", "failures")
"""In the other tables tasks become columns, because there are more methods than tasks."""
BOLD, UNDERLINED = "*", "_"
"""Marks for files and pipes, which show neither."""


def write_results(results: Results, plan: Plan, folder: str | Path) -> list[Path]:
    """Write results.json, tables.md, tables.tex, one csv per table and one picture per row; return the files."""
    place = Path(folder)
    (place / "csv").mkdir(parents=True, exist_ok=True)
    tables = all_tables(results)
    files = [
        write_whole(place / "results.json", json.dumps(as_json(results, plan), indent=1, allow_nan=False).encode()),
        write_whole(place / "tables.md", markdown(tables, split_note(results), group_note(results)).encode()),
        write_whole(place / "tables.tex", "\n".join(table.as_latex() for table in tables).encode()),
    ]
    files += [write_whole(place / "csv" / f"{name}.csv", text.encode()) for name, text in all_sheets(results).items()]
    pictures = joblib.Parallel(n_jobs=min(plan.jobs, len(results.rows)))(
        joblib.delayed(draw_reliability)(results, row, place) for row in results.rows
    )
    return files + [path for path in pictures if path is not None]


def as_json(results: Results, plan: Plan) -> dict[str, Any]:
    """Return every number with its origin."""
    return {
        "settings": {"seed": plan.seed, "methods": list(plan.methods), "n_splits": plan.n_splits},
        "versions": results.versions,
        "too_few_groups": results.too_few_groups,
        "results": [result.as_json() for result in results.results],
    }


def markdown(tables: list[Table], *more: str) -> str:
    """Return all tables as one text, each with its note; the note that all metrics share comes once, after them."""
    metrics = [table.as_markdown() for table in tables if table.note == METRIC_NOTE]
    others = [part for table in tables if table.note != METRIC_NOTE for part in (table.as_markdown(), table.note)]
    return "\n\n".join(part.strip("\n") for part in (*metrics, METRIC_NOTE, *more, *others) if part) + "\n"


def draw_reliability(results: Results, row: Row, folder: Path) -> Path | None:
    """Draw the reliability of methods and classes on the first split; None without matplotlib or data.

    A picture that already shows the same is kept: drawing takes far longer than writing everything else.
    """
    firsts = [result for method in results.methods for result in results.of_method(row, method)[:1]]
    stored = {result.key.method: result.reliability for result in firsts if result.reliability is not None}
    if not stored:
        return None
    path = reliability_picture(folder, row)
    digest = hashlib.sha256(json.dumps([row.label, stored, GRID_CLASSES, version("kcal")]).encode()).hexdigest()
    if path.is_file() and digest.encode() in path.read_bytes():
        return path
    try:
        from kcal.plots import reliability_grid
    except MissingExtraError:
        return None
    first = next(iter(stored.values()))
    shown = list(first)[: 1 + GRID_CLASSES]  # the confidence comes first
    bins = {method: [_bins(events[event], event) for event in shown] for method, events in stored.items()}
    names = [first[event]["name"] for event in shown]
    axes = reliability_grid(bins, names, title=f"{row.label}, first split")
    buffer = io.BytesIO()
    axes[0, 0].get_figure(root=True).savefig(buffer, format="png", dpi=90, metadata={"Comment": digest})
    path.parent.mkdir(exist_ok=True)
    return write_whole(path, buffer.getvalue())


def reliability_picture(folder: Path, row: Row) -> Path:
    """Return the path of the reliability grid of a row."""
    return folder / "reliability" / (f"{row.task}-by-group.png" if row.by_group else f"{row.task}.png")


def _bins(stored: Mapping[str, Any], event: str) -> ReliabilityBins:
    means, frequencies = (
        np.array([np.nan if value is None else value for value in stored[name]], dtype=np.float64)
        for name in ("mean_prediction", "observed_frequency")
    )
    counts = np.array(stored["counts"], dtype=np.intp)
    edges = np.arange(len(counts) + 1) / len(counts)
    of: Any = event if event == "confidence" else int(event)
    weights = counts.astype(np.float64)
    return ReliabilityBins(counts, means, frequencies, edges, of, False, weights, weights)


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
        marked = [[f"{BOLD * bold}{UNDERLINED * under}{text}" for text, bold, under in row] for row in shown.rows]
        shown = replace(shown, rows=tuple(tuple(map(Entry, row)) for row in marked))
    for part in shown.fitting(screen.width):
        screen.print(part.as_rich())
