"""The results page: ranks, main metrics and one figure per study; all tables in a folder behind it."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from PIL import Image

from experiments import remedies
from experiments.runner import markdown, n_splits_of, read_measurements
from experiments.studies import STUDIES
from experiments.study import Study, text_of
from kcal.benchmark import PAPER_METHODS, Results
from kcal.benchmark.results import MAIN_METRICS, TABLE_METRICS, Row
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tables import (
    LESS_ACCURATE,
    METRIC_NOTE,
    NO_VALUE,
    corrected_table,
    failure_table,
    group_note,
    metric_table,
    rank_table,
    reliability_picture,
    split_note,
    time_table,
    training_table,
)
from kcal.files import write_whole

PICTURE_COLOURS = 256
PAPER_RANKS = {
    "accuracy": (5.03, 5.03, 4.53, 6.41, 9.99, 5.56, 5.01, 5.64, 4.74, 2.70),
    "classwise_calibration_error": (6.99, 7.41, 3.31, 6.82, 9.46, 4.59, 5.12, 4.37, 4.69, 1.83),
    "expected_calibration_error": (8.42, 6.68, 3.33, 7.73, 9.39, 3.51, 4.25, 2.91, 4.52, 3.84),
    "top_label_brier_loss": (8.18, 6.91, 3.86, 7.42, 8.98, 4.23, 4.88, 3.89, 4.11, 2.05),
}
"""Average ranks that the KCal paper prints, over its own tasks, in the order of ``PAPER_METHODS``."""
TUNED_ON = ("cifar10-resnet56", "cifar100-resnet32", "clinc150-minilm", "sleepedf-mlp", "fashion_mnist_small_cnn")
"""Tasks on which defaults were chosen."""
TIED = "tied"
NOTES = {
    LESS_ACCURATE: f"{LESS_ACCURATE}: significantly less accurate than uncalibrated; such a method does not count as "
    "the best, however good the number.",
    TIED: f"{TIED}: not significantly worse than the best mean (pooled t-test, p = 0.01).",
}
NOWHERE = "Nowhere."
SUMMARY_METHODS = ("uncal", "ts", "sms", "dircal", "dircal-odir", "kcal", "kcal-paper", "kcal-blend")
"""Methods of the summary table."""
SMALL_TABLE = 12
"""Rows of a table that the short page shows."""
TABLES, NOT_FIRST, RELIABILITY = "tables.md", "not-first.md", "reliability.md"
"""Pages in the folder behind the short page."""


def write_page(path: Path, run: Path) -> list[Path]:
    """Write a short page of a run's folder, and its long tables and pictures to the folder NAME; return the files."""
    results, settings = Results.read(run / "results.json")
    folder = path.parent / path.stem
    folder.mkdir(parents=True, exist_ok=True)
    sources: list[tuple[str | Row, Path]] = [(study.name, run / f"{study.name}.png") for study in STUDIES]
    sources += [(row, reliability_picture(run, row)) for row in results.rows]
    pictures: dict[str | Row, Path] = {}
    for key, source in sources:
        if source.is_file():
            name = source.name if isinstance(key, str) else f"reliability-{source.name}"
            pictures[key] = write_whole(folder / name, with_few_colours(source))
    names = {key: picture.name.replace(" ", "%20") for key, picture in pictures.items()}
    page, *others = results_pages(results, settings["n_splits"], settings["seed"], run, names, folder.name).items()
    written = [write_whole(folder / name, text.encode()) for name, text in others]
    return [write_whole(path, page[1].encode()), *written, *pictures.values()]


def with_few_colours(picture: Path | IO[bytes]) -> bytes:
    """Return a PNG with a palette: a third of the bytes, with hardly a visible difference."""
    buffer = io.BytesIO()
    with Image.open(picture) as image:
        reduced = image.convert("RGB").quantize(PICTURE_COLOURS, method=Image.Quantize.FASTOCTREE)
        reduced.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def results_pages(
    results: Results, n_splits: int, seed: int, run: Path, pictures: Mapping[str | Row, str], folder: str = "results"
) -> dict[str, str]:
    """Return the short page, as "", and the pages in the folder behind it, by their names, as Markdown.

    ``pictures`` are names of files in the folder, by study and by row.
    """
    stored = {study: read_measurements(study, run) for study in STUDIES}
    measured = {study: measurements for study, measurements in stored.items() if measurements is not None}
    outputs = {study: study.show(measurements) for study, measurements in measured.items()}
    overview = outputs[remedies.STUDY].tables[0] if remedies.STUDY in outputs else None
    behind = {TABLES: tables_page(results), NOT_FIRST: not_first_page(results)}
    behind |= {RELIABILITY: page} if (page := reliability_page(results, pictures)) else {}
    behind |= {
        f"{study.name}.md": markdown(study, output, n_splits_of(measured[study]), pictures.get(study.name))
        for study, output in outputs.items()
    }
    versions = ", ".join(f"{name} {number}" for name, number in results.versions.items())
    parts = [
        "# Results",
        "Every method on held-out outputs of trained networks: accuracy, class-wise calibration error (CECE), expected "
        "calibration error (ECE), Brier score and log-loss (NLL).",
        f"{n_splits} random splits of each task's samples into calibration and test, seed {seed}; for tasks with "
        "groups, also by whole groups, where each combination of groups is used at most once. A projection is trained "
        "once, on training data; each split picks its checkpoint by the leave-one-out loss of its own calibration set.",
        *(
            text_of(f"chosen-{method}")
            for method in ("kcal", "kcal-blend")
            if method in results.methods and any(row.task in TUNED_ON for row in results.rows)
        ),
        *(text_of(f"about-{method}") for method in ("kcal-paper", "dircal-odir") if method in results.methods),
        *_noted(rank_table(results).transposed()),
        *_noted(summary_table(results)),
        group_note(results),
        f"[All methods and metrics, the corrected test, the paper's ranks and seconds]({folder}/{TABLES})"
        + (f"; [reliability, method by class]({folder}/{RELIABILITY})." if RELIABILITY in behind else "."),
        "## Where KCal and the blend are not first",
        *(first_places(results, method) for method in ("kcal", "kcal-blend") if method in results.methods),
        f"[Where, by how much and why]({folder}/{NOT_FIRST}).",
        *(_what_helped(overview, folder) if overview is not None else []),
        *(_question(study, folder, pictures.get(study.name), output.tables) for study, output in outputs.items()),
        f"Measured with {versions}." if versions else "",
    ]
    return {"": _joined(parts)} | behind


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def summary_table(results: Results) -> Table:
    """Return the main metrics of the main methods, by task."""
    chosen = [place for place, method in enumerate(results.methods, 1) if method in SUMMARY_METHODS]
    tables = {metric: metric_table(results, metric) for metric in MAIN_METRICS}
    rows = tuple(
        (table.rows[place][0], Entry(TABLE_METRICS[metric].title), *(table.rows[place][column] for column in chosen))
        for place in range(len(results.rows))
        for metric, table in tables.items()
    )
    heading = ("task", "metric", *(results.methods[column - 1] for column in chosen))
    return Table("summary", "Main metrics", heading, rows, METRIC_NOTE)


def first_places(results: Results, method: str) -> str:
    """Return a sentence: in how many rows and metrics a method has the best mean, or why none is said to have it."""
    if note := split_note(results):
        return note
    lines = where_not_first(results, method).split("\n\n")[0].splitlines()
    total = len(results.rows) * len(MAIN_METRICS)
    tied = sum(line.endswith(TIED) for line in lines)
    return f"{method} is first in {total - len(lines)} of {total} rows and metrics, and tied with the first in {tied}."


def _question(study: Study, folder: str, picture: str | None, tables: Sequence[Table]) -> str:
    """Return a study in short: the first paragraph of its text, its figure or else a small table, and a link."""
    parts = [f"## {study.title}", study.about.split("\n\n")[0]]
    if picture is not None:
        parts.append(f"![{study.title}]({folder}/{picture})")
    elif tables and len(tables[0].rows) <= SMALL_TABLE:
        parts += _noted(tables[0])
    return _joined([*parts, f"[More, with all tables]({folder}/{study.name}.md)."])


def tables_page(results: Results) -> str:
    """Return all tables of a run."""
    return _joined(
        [
            "# All tables",
            *(metric_table(results, metric).as_markdown() for metric in MAIN_METRICS),
            METRIC_NOTE,
            *(
                part
                for table in (corrected_table, rank_table, paper_ranks, time_table, training_table, failure_table)
                for part in _noted(table(results))
            ),
            "## Other metrics",
            *(metric_table(results, metric).as_markdown() for metric in TABLE_METRICS if metric not in MAIN_METRICS),
        ]
    )


def _noted(table: Table) -> list[str]:
    return [table.as_markdown(), table.note] if table.rows else []


def not_first_page(results: Results) -> str:
    """Return where KCal and the blend are not first, with reasons."""
    parts = ["# Where KCal and the blend are not first", "## Where KCal is not first"]
    if "kcal" in results.methods:
        lines = where_not_first(results, "kcal")
        parts += [lines or NOWHERE, *(_why(results) if lines else [])]
    else:
        parts.append("KCal was not run.")
    if "kcal-blend" in results.methods:
        lines = where_not_first(results, "kcal-blend")
        parts += ["## Where the blend is not first", lines or NOWHERE, *([text_of("why-blend")] if lines else [])]
    return _joined(parts)


def _why(results: Results) -> list[str]:
    groups = [text_of("why-groups")] if any(row.by_group for row in results.rows) else []
    return ["### Why", "\n".join([text_of("why"), *groups]), *_noted(chosen_steps(results, "kcal"))]


def chosen_steps(results: Results, method: str) -> Table:
    """Return the number of calibration samples and the training steps that calibration sets chose."""
    rows = []
    for row in results.rows:
        details = results.of_method(row, method)["details"]
        steps = Counter(each["checkpoint_step_"] for each in details if "checkpoint_step_" in each)
        if steps:
            sizes = results.sizes(row)
            counts = ", ".join(f"{step} ({count} ×)" for step, count in sorted(steps.items()))
            rows.append((Entry(row.label), Entry(NO_VALUE if sizes is None else f"{sizes[0]:,}"), Entry(counts)))
    note = "Training steps of the checkpoint that the calibration set of each split chose; 0 is the start."
    heading = ("task", "calibration samples", "steps chosen")
    return Table("steps", f"How far {method} was trained", heading, tuple(rows), note)


def _what_helped(overview: Table, folder: str) -> list[str]:
    study = remedies.STUDY
    return [
        "## What helped, what did not",
        f"Changes of KCal's recipe, one at a time, that lower its mean test NLL by at least {remedies.CLEAR:.0%}:",
        remedies.what_helped(overview),
        f"The tables, and why they describe rather than prove, are in [{study.title}]({folder}/{study.name}.md).",
    ]


def reliability_page(results: Results, pictures: Mapping[str | Row, str]) -> str:
    """Return the reliability pictures; empty if there are none."""
    shown = [f"## {row.label}\n\n![{row.label}]({pictures[row]})" for row in results.rows if row in pictures]
    return _joined(["# Reliability, method by class", *shown]) if shown else ""


def paper_ranks(results: Results) -> Table:
    """Return the ranks that the paper prints, for the methods of the run that it has."""
    methods = [method for method in results.methods if method in PAPER_METHODS]
    rows = []
    for metric, ranks in PAPER_RANKS.items():
        printed = dict(zip(PAPER_METHODS, ranks, strict=True))
        best = min(printed.values())
        entries = [Entry(f"{printed[method]:.2f}", bold=printed[method] == best) for method in methods]
        rows.append((Entry(TABLE_METRICS[metric].title), *entries))
    note = "The paper's ranks are over its own tasks and networks: only the order of the methods can be compared."
    return Table("paper_ranks", "Average rank in the KCal paper ↓", ("metric", *methods), tuple(rows), note)


def where_not_first(results: Results, method: str) -> str:
    """List the rows and metrics in which another method that keeps the accuracy has the best mean; "" if none.

    With too few splits it says so.
    """
    if note := split_note(results):
        return note
    entries = [_not_first(results, row, metric, method) for row in results.rows for metric in MAIN_METRICS]
    lines = [line for line in entries if line]
    notes = [note for mark, note in NOTES.items() if any(mark in line for line in lines)]
    return "\n\n".join(["\n".join(lines), *notes]) if lines else ""


def _not_first(results: Results, row: Row, metric: str, method: str) -> str:
    """Return a line of the list; empty if the method is first or was not run."""
    shown = TABLE_METRICS[metric]
    comparison = results.comparison(row, metric)
    if comparison is None or method not in comparison.summaries:
        failed = results.of_method(row, method)["error"].notna().any()
        return f"- {row.label}, {shown.title}: failed" if failed else ""
    marks, summaries = comparison.pooled, comparison.summaries
    if not marks.best or (summaries[method].mean == summaries[marks.best[0]].mean and method in marks.best):
        return ""
    own, best = (shown.format(summaries[name].mean) for name in (method, marks.best[0]))
    mark = "" if method in marks.accuracy_preserving else LESS_ACCURATE
    tied = f", {TIED}" if method in marks.best else ""
    return f"- {row.label}, {shown.title}: {own}{mark}, {marks.best[0]} {best}{tied}"
