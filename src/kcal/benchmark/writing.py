"""What a run leaves in its folder: every number as JSON, the tables in three formats, reliability grids."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from kcal.benchmark.cells import Cell
from kcal.benchmark.results import Results, Row
from kcal.benchmark.running import Plan
from kcal.benchmark.spreadsheets import all_sheets
from kcal.benchmark.tables import NOTE, Table, all_tables, dealing_note
from kcal.errors import MissingExtraError
from kcal.metrics import ReliabilityBins
from kcal.persistence import write_whole

SHOWN_CLASSES = 8
"""Columns of a reliability grid, at most."""


def write_results(results: Results, plan: Plan, folder: str | Path) -> list[Path]:
    """Write results.json, tables.md, tables.tex, a csv a table and a picture a task; return the files."""
    place = Path(folder)
    (place / "csv").mkdir(parents=True, exist_ok=True)
    tables = all_tables(results)
    files = [
        write_whole(place / "results.json", json.dumps(as_json(results, plan), indent=1, allow_nan=False).encode()),
        write_whole(place / "tables.md", markdown(tables, dealing_note(results)).encode()),
        write_whole(place / "tables.tex", "\n".join(table.as_latex() for table in tables).encode()),
    ]
    files += [write_whole(place / "csv" / f"{name}.csv", text.encode()) for name, text in all_sheets(results).items()]
    drawn = joblib.Parallel(n_jobs=min(plan.jobs, len(results.rows)))(
        joblib.delayed(_draw)(results, row, place) for row in results.rows
    )
    return files + [path for path in drawn if path is not None]


def as_json(results: Results, plan: Plan) -> dict[str, Any]:
    """Return every number, with what it depends on; the versions are those that the cells were measured with."""
    return {
        "settings": {"seed": plan.seed, "methods": list(plan.methods), "reshuffles": plan.reshuffles},
        "versions": results.versions,
        "dealt_by_row_only": results.dealt_by_row_only,
        "outcomes": [outcome.as_json() for outcome in results.outcomes],
    }


def markdown(tables: list[Table], *more: str) -> str:
    """Return all tables as one text, each with its note; the note that all metrics share comes once, after them."""
    metrics = [table.as_markdown() for table in tables if table.note == NOTE]
    others = [part for table in tables if table.note != NOTE for part in (table.as_markdown(), table.note)]
    return "\n\n".join(part.strip("\n") for part in (*metrics, NOTE, *more, *others) if part) + "\n"


def _draw(results: Results, row: Row, place: Path) -> Path | None:
    """Draw methods beside classes, of the first reshuffle; without matplotlib there is no picture.

    A picture that shows the same already is left as it is: drawing takes far longer than all else that is written.
    """
    stored = {}
    for method in results.methods:
        outcome = results.by_cell.get(Cell(row.task, row.by_group, 0, method))
        if outcome is not None and outcome.reliability is not None:
            stored[method] = outcome.reliability
    if not stored:
        return None
    path = reliability_picture(place, row)
    shown = json.dumps([row.label, stored, SHOWN_CLASSES, version("kcal")])
    digest = hashlib.sha256(shown.encode()).hexdigest()
    if path.is_file() and digest.encode() in path.read_bytes():
        return path
    try:
        from kcal.plots import reliability_grid
    except MissingExtraError:
        return None
    events = [of for of in next(iter(stored.values())) if of != "confidence"][:SHOWN_CLASSES]
    rows = {
        method: [_bins_of(found["confidence"], "confidence"), *(_bins_of(found[of], int(of)) for of in events)]
        for method, found in stored.items()
    }
    names = [next(iter(stored.values()))[of].get("name", of) for of in ("confidence", *events)]
    axes = reliability_grid(rows, names, title=f"{row.label}, first reshuffle")
    buffer = io.BytesIO()
    axes[0, 0].get_figure(root=True).savefig(buffer, format="png", dpi=90, metadata={"Comment": digest})
    path.parent.mkdir(exist_ok=True)
    return write_whole(path, buffer.getvalue())


def reliability_picture(folder: Path, row: Row) -> Path:
    """Return where the reliability grid of a row lies."""
    return folder / "reliability" / (f"{row.task}-by-group.png" if row.by_group else f"{row.task}.png")


def _bins_of(stored: Mapping[str, Any], of: Any) -> ReliabilityBins:
    means, frequencies = (
        np.array([np.nan if value is None else value for value in stored[name]], dtype=np.float64)
        for name in ("mean_prediction", "observed_frequency")
    )
    counts = np.array(stored["counts"], dtype=np.intp)
    edges, weights = np.arange(len(counts) + 1) / len(counts), counts.astype(np.float64)
    return ReliabilityBins(counts, means, frequencies, edges, of, False, weights, weights)
