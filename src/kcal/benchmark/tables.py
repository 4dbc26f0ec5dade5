"""The benchmark's tables, and the files of a run.

There is a table per metric, of the best by the corrected test, of ranks, seconds and failures. A run's folder has
results.json, all tables as Markdown, LaTeX and csv, and a reliability grid per row.
"""

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
import pandas
from rich.console import Console

from kcal.benchmark.results import MAIN_METRICS, TABLE_METRICS, Results, Row
from kcal.benchmark.running import Plan
from kcal.benchmark.table import Entry, Table, spreadsheet
from kcal.benchmark.tasks import MIN_CALIBRATION_GROUPS
from kcal.errors import MissingExtraError
from kcal.files import write_whole
from kcal.metrics import MethodComparison, ReliabilityBins, SplitSummary
from kcal.metrics.comparison import MIN_SPLITS
from kcal.metrics.registry import Metric

GRID_CLASSES = 8
"""Classes in a reliability grid, at most."""
NOT_TRANSPOSED = ("corrected", "failures")
"""In the other tables tasks become columns, because there are more methods than tasks."""
BOLD, UNDERLINED = "*", "_"
"""Marks for files and pipes, which show neither."""
NO_VALUE = "–"
FAILED = "failed"
FAILED_SOME = "✗"
LESS_ACCURATE = "†"
OVERALL = "overall, without NLL"
METRIC_NOTE = (
    "Mean ± standard deviation over splits. Bold: the best mean among methods that keep the accuracy, and those not "
    f"significantly worse (pooled t-test, p = 0.01). {LESS_ACCURATE}: significantly less accurate than uncalibrated. "
    f"Underlined: the best mean of all, if its method does not keep the accuracy. {FAILED}: on every split. "
    f"{FAILED_SOME}N: failed on N splits; the mean is over the others and is neither compared nor ranked. {NO_VALUE}: "
    "not run, or no value. Splits share samples, which the pooled test ignores: its p-values are too small."
)
CORRECTED_NOTE = (
    "First the best mean among methods that keep the accuracy, then those not significantly worse by the corrected "
    "test of Nadeau and Bengio (paired, p = 0.01). It accounts for the samples that splits share, which the pooled "
    "test behind the bold numbers does not, so that more methods tend to tie here."
)
RANK_NOTE = (
    "Ranks on every split among the methods that were run there, averaged over the splits of each row; 1 is the best. "
    "Mean ± standard deviation over rows. A method that failed on a split is not ranked in that row."
)
TIME_NOTE = "Median over splits, on one core. The projection is trained once per row, which is not included."
TRAINING_NOTE = "Once per row, on one core; all splits share the projection."


def all_tables(results: Results) -> list[Table]:
    """Return one table per metric, the best by the corrected test, ranks, seconds and failures; no empty ones."""
    tables = [metric_table(results, metric) for metric in TABLE_METRICS]
    others = (corrected_table, rank_table, time_table, training_table, failure_table)
    return [table for table in (*tables, *(make(results) for make in others)) if table.rows]


def metric_table(results: Results, metric: str) -> Table:
    """Return one metric: tasks as rows, methods as columns."""
    shown = TABLE_METRICS[metric]
    rows = []
    for row in results.rows:
        comparison = results.comparison(row, metric)
        entries = [_metric_entry(results, row, metric, method, comparison) for method in results.methods]
        rows.append((Entry(row.label), *entries))
    return Table(metric, shown.labelled(shown.title), ("task", *results.methods), tuple(rows), METRIC_NOTE)


def _metric_entry(results: Results, row: Row, metric: str, method: str, comparison: MethodComparison | None) -> Entry:
    shown = TABLE_METRICS[metric]
    if comparison is not None and method in comparison.summaries:
        marks = comparison.pooled
        mark = "" if method in marks.accuracy_preserving else LESS_ACCURATE
        text = f"{mean_and_std(comparison.summaries[method], shown)}{mark}"
        return Entry(text, bold=method in marks.best, underlined=method == marks.underlined)
    summary, n_failed = results.partial_summary(row, metric, method)
    if summary is None:
        return Entry(FAILED if n_failed else NO_VALUE)
    return Entry(f"{mean_and_std(summary, shown)}{f' {FAILED_SOME}{n_failed}' if n_failed else ''}")


def corrected_table(results: Results) -> Table:
    """Return the methods that tie with the best under the corrected test: tasks as rows, metrics as columns.

    There are no rows without the sizes of calibration and test sets, which the test needs, nor with too few splits.
    """
    rows = []
    for row in results.rows if any(map(results.sizes, results.rows)) and not split_note(results) else ():
        comparisons = [results.comparison(row, metric) for metric in MAIN_METRICS]
        marks = [None if comparison is None else comparison.corrected for comparison in comparisons]
        best = [mark.best if mark is not None else () for mark in marks]
        rows.append((Entry(row.label), *(Entry(", ".join(names) or NO_VALUE) for names in best)))
    heading = ("task", *(TABLE_METRICS[metric].title for metric in MAIN_METRICS))
    return Table("corrected", "Best by the corrected test", heading, tuple(rows), CORRECTED_NOTE)


def rank_table(results: Results) -> Table:
    """Return average ranks, metrics as rows and methods as columns, and an overall average; few splits mark no best."""
    rows = []
    is_marked = not split_note(results)
    for metric in MAIN_METRICS:
        ranked = results.ranks(metric)
        ranks, best = ({}, ()) if ranked is None else (ranked.ranks, ranked.best)
        texts = {name: str(rank).replace(" ± ", "±").removesuffix("±nan") for name, rank in ranks.items()}
        rows.append((Entry(TABLE_METRICS[metric].title), *_rank_entries(results, texts, best if is_marked else ())))
    overall = results.overall()
    lowest = min(overall.values(), default=None)
    texts = {name: f"{rank:.2f}" for name, rank in overall.items()}
    best = tuple(name for name, rank in overall.items() if is_marked and rank == lowest)
    rows.append((Entry(OVERALL), *_rank_entries(results, texts, best)))
    return Table("ranks", "Average rank ↓", ("metric", *results.methods), tuple(rows), RANK_NOTE)


def _rank_entries(results: Results, texts: dict[str, str], best: tuple[str, ...]) -> list[Entry]:
    return [
        Entry(texts[method], bold=method in best)
        if method in texts
        else Entry(FAILED if _failed_in_every_row(results, method) else NO_VALUE)
        for method in results.methods
    ]


def _failed_in_every_row(results: Results, method: str) -> bool:
    """Return whether a method was run, and failed on some split of every row."""
    lines = [lines for row in results.rows if len(lines := results.of_method(row, method))]
    return bool(lines) and all(each["error"].notna().any() for each in lines)


def time_table(results: Results) -> Table:
    """Return median seconds to fit and to predict."""

    def entry(row: Row, method: str) -> Entry:
        seconds = results.seconds(row, method)
        if np.isfinite(seconds["fit"]):
            return Entry(f"{seconds['fit']:.2f} + {seconds['predict']:.2f}")
        return Entry(FAILED if len(results.of_method(row, method)) else NO_VALUE)

    rows = tuple((Entry(row.label), *(entry(row, method) for method in results.methods)) for row in results.rows)
    return Table("seconds", "Seconds to fit + to predict", ("task", *results.methods), rows, TIME_NOTE)


def training_table(results: Results) -> Table:
    """Return the seconds to train the projections: tasks as rows, the methods that learn one as columns."""
    trained = results.frame.dropna(subset="train_seconds")["method"].unique()
    learning = [method for method in results.methods if method in trained]
    rows = []
    for row in results.rows if learning else ():
        seconds = [results.seconds(row, method)["train"] for method in learning]
        rows.append((Entry(row.label), *(Entry(f"{time:.1f}" if np.isfinite(time) else NO_VALUE) for time in seconds)))
    return Table("training", "Seconds to train the projection", ("task", *learning), tuple(rows), TRAINING_NOTE)


def failure_table(results: Results) -> Table:
    """Return which method failed on which split, and why."""
    failed = results.frame.dropna(subset="error")[["label", "method", "split", "error"]].astype(str)
    rows = tuple(tuple(Entry(" ".join(text.split())) for text in line) for line in failed.to_numpy().tolist())
    return Table("failures", "Failed", ("task", "method", "split", "error"), rows)


def split_note(results: Results) -> str:
    """Return that there are too few splits to call methods best; empty if there are enough."""
    n_splits = results.frame.groupby(["label", "method"]).size().groupby("label").max().min()
    if n_splits >= MIN_SPLITS:
        return ""
    return (
        f"No method is marked as best: {MIN_SPLITS} splits are needed to tell methods apart at p = 0.01, and "
        f"there {'is 1' if n_splits == 1 else f'are {n_splits}'}."
    )


def group_note(results: Results) -> str:
    """Return which tasks have too few groups for grouped splits; empty if none has."""
    tasks = [f"{task} ({n} group{'' if n == 1 else 's'})" for task, n in results.too_few_groups.items()]
    if not tasks:
        return ""
    return f"Split by row only, with fewer than {MIN_CALIBRATION_GROUPS + 1} groups in the pool: {', '.join(tasks)}."


def mean_and_std(summary: SplitSummary, metric: Metric) -> str:
    """Return a metric's mean and standard deviation in the unit of the tables."""
    mean = metric.format(summary.mean)
    return f"{mean}±{metric.format(summary.std)}" if summary.n_splits > 1 else mean


def summary(results: Results) -> pandas.DataFrame:
    """Return one line per task and method: mean and standard deviation of every metric, median seconds, failures."""
    frame, keys = results.frame, ["label", "method"]
    of_metrics = frame.groupby(keys, sort=False)[list(TABLE_METRICS)].agg(["mean", "std"])
    of_metrics.columns = [f"{metric}_{part}" for metric, part in of_metrics.columns]
    seconds = [f"{kind}_seconds" for kind in ("fit", "predict", "train")]
    medians = frame[keys].join(frame[seconds].astype(float)).groupby(keys, sort=False).median()
    failed = frame["error"].notna().groupby([frame["label"], frame["method"]], sort=False).sum().rename("failed")
    return of_metrics.join(medians).join(failed).reset_index().rename(columns={"label": "task"})


def write_results(results: Results, plan: Plan, folder: str | Path) -> list[Path]:
    """Write results.json, tables.md, tables.tex, csv files and a reliability figure per row; return the files."""
    place = Path(folder)
    (place / "csv").mkdir(parents=True, exist_ok=True)
    tables = all_tables(results)
    files = [
        write_whole(place / "results.json", json.dumps(as_json(results, plan), indent=1, allow_nan=False).encode()),
        write_whole(place / "tables.md", markdown(tables, split_note(results), group_note(results)).encode()),
        write_whole(place / "tables.tex", "\n".join(table.as_latex() for table in tables).encode()),
    ]
    sheets = {"summary": spreadsheet(summary(results))} | {table.name: table.as_csv() for table in tables}
    files += [write_whole(place / "csv" / f"{name}.csv", text.encode()) for name, text in sheets.items()]
    figures = joblib.Parallel(n_jobs=min(plan.jobs, len(results.rows)))(
        joblib.delayed(draw_reliability)(results, row, place) for row in results.rows
    )
    return files + [path for path in figures if path is not None]


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

    A figure that already shows the same is kept: drawing takes far longer than writing everything else.
    """
    firsts = {method: results.of_method(row, method)["reliability"].head(1).dropna() for method in results.methods}
    stored = {method: first.iloc[0] for method, first in firsts.items() if len(first)}
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
