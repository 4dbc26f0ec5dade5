"""The benchmark's tables, and the files of a run.

There is a table per metric, of the best by the corrected test, of ranks, seconds and failures. A run's folder has
results.json, all tables as Markdown, LaTeX and csv, and a reliability grid per row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas

from kcal.benchmark.results import MAIN_METRICS, TABLE_METRICS, Results, Row
from kcal.benchmark.running import Plan
from kcal.benchmark.table import Entry, Table, spreadsheet
from kcal.errors import MissingExtraError
from kcal.files import atomic_path, write_whole
from kcal.metrics import AverageRank, AverageRanks, ReliabilityBins, SplitSummary
from kcal.metrics.comparison import MIN_SPLITS
from kcal.metrics.registry import Metric

NOT_TRANSPOSED = ("corrected", "failures")
"""In the other tables tasks become columns, because there are more methods than tasks."""
NO_VALUE = "–"
FAILED = "failed"
FAILED_SOME = "✗"
LESS_ACCURATE = "†"
OVERALL = "overall, without log-loss"
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
TIME_NOTE = (
    "Median over splits, on one core. First, where the method learns a projection, the seconds to train it, once per "
    "row; then those to fit and those to predict."
)


def all_tables(results: Results) -> list[Table]:
    """Return one table per metric, the best by the corrected test, ranks, seconds and failures; no empty ones."""
    tables = [metric_table(results, metric) for metric in TABLE_METRICS]
    tables += [make(results) for make in (corrected_table, rank_table, time_table, failure_table)]
    return [table for table in tables if table.rows]


def _by_row(results: Results, entry: Callable[[Row, str], Entry]) -> tuple[tuple[Entry, ...], ...]:
    """Return an entry for each task, the rows, and method, the columns."""
    return tuple((Entry(row.label), *(entry(row, method) for method in results.methods)) for row in results.rows)


def metric_table(results: Results, metric: str) -> Table:
    """Return one metric: tasks as rows, methods as columns."""
    shown = TABLE_METRICS[metric]
    comparisons = {row: results.comparison(row, metric) for row in results.rows}

    def entry(row: Row, method: str) -> Entry:
        comparison = comparisons[row]
        if comparison is not None and method in comparison.summaries:
            marks = comparison.pooled
            mark = "" if method in marks.accuracy_preserving else LESS_ACCURATE
            text = f"{mean_and_std(comparison.summaries[method], shown)}{mark}"
            return Entry(text, bold=method in marks.best, underlined=method == marks.underlined)
        summary, n_failed = results.partial_summary(row, metric, method)
        if summary is None:
            return Entry(FAILED if n_failed else NO_VALUE)
        return Entry(f"{mean_and_std(summary, shown)}{f' {FAILED_SOME}{n_failed}' if n_failed else ''}")

    heading = ("task", *results.methods)
    return Table(metric, shown.labelled(shown.title), heading, _by_row(results, entry), METRIC_NOTE)


def corrected_table(results: Results) -> Table:
    """Return the methods that tie with the best under the corrected test: tasks as rows, metrics as columns.

    There are no rows with too few splits.
    """
    rows = []
    for row in () if split_note(results) else results.rows:
        comparisons = [results.comparison(row, metric) for metric in MAIN_METRICS]
        marks = [None if comparison is None else comparison.corrected for comparison in comparisons]
        best = [() if mark is None else mark.best for mark in marks]
        rows.append((Entry(row.label), *(Entry(", ".join(names) or NO_VALUE) for names in best)))
    heading = ("task", *(TABLE_METRICS[metric].title for metric in MAIN_METRICS))
    return Table("corrected", "Best by the corrected test", heading, tuple(rows), CORRECTED_NOTE)


def rank_table(results: Results) -> Table:
    """Return average ranks, metrics as rows and methods as columns, and an overall average; few splits mark no best."""
    ranks = {TABLE_METRICS[metric].title: results.ranks(metric) for metric in MAIN_METRICS}
    overall = {method: AverageRank(mean, math.nan) for method, mean in results.overall().items()}
    ranks[OVERALL] = AverageRanks(overall) if overall else None
    is_marked = not split_note(results)

    def entry(ranked: AverageRanks | None, method: str) -> Entry:
        if ranked is None or method not in ranked.ranks:
            return Entry(NO_VALUE)
        rank = ranked.ranks[method]
        text = f"{rank.mean:.2f}" if math.isnan(rank.std) else f"{rank.mean:.2f}±{rank.std:.2f}"
        return Entry(text, bold=is_marked and method in ranked.best)

    rows = ((Entry(title), *(entry(ranked, method) for method in results.methods)) for title, ranked in ranks.items())
    return Table("ranks", "Average rank ↓", ("metric", *results.methods), tuple(rows), RANK_NOTE)


def time_table(results: Results) -> Table:
    """Return median seconds to train a projection, to fit and to predict."""

    def entry(row: Row, method: str) -> Entry:
        seconds = results.seconds(row, method)
        if not np.isfinite(seconds["fit"]):
            return Entry(FAILED if len(results.of_method(row, method)) else NO_VALUE)
        train = f"{seconds['train']:.1f} + " if np.isfinite(seconds["train"]) else ""
        return Entry(f"{train}{seconds['fit']:.2f} + {seconds['predict']:.2f}")

    heading = ("task", *results.methods)
    return Table("seconds", "Seconds to (train +) fit + predict", heading, _by_row(results, entry), TIME_NOTE)


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
        write_whole(place / "tables.md", markdown(results).encode()),
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
        "results": [result.as_json() for result in results.results],
    }


def markdown(results: Results) -> str:
    """Return all tables with their notes as Markdown."""
    parts = (part.as_markdown() if isinstance(part, Table) else part for part in _in_order(results))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def as_text(results: Results, width: int) -> str:
    """Return all tables with their notes for a terminal, methods as rows."""
    parts = [part.as_text(width) if isinstance(part, Table) else part for part in _in_order(results, transposed=True)]
    return "\n".join([*parts, "* stands for bold, _ for underlined."])


def _in_order(results: Results, *, transposed: bool = False) -> Iterator[Table | str]:
    """Yield tables and notes; the note that all metrics share comes once, after them."""
    tables = all_tables(results)
    of_metrics = [table for table in tables if table.note == METRIC_NOTE]
    for table in of_metrics + [table for table in tables if table not in of_metrics]:
        yield table.transposed() if transposed and table.name not in NOT_TRANSPOSED else table
        if table.note != METRIC_NOTE and table.note:
            yield table.note
        elif table is of_metrics[-1]:
            yield from filter(None, (METRIC_NOTE, split_note(results)))


def draw_reliability(results: Results, row: Row, folder: Path) -> Path | None:
    """Draw the reliability of methods and classes on the first split; None without matplotlib or data."""
    firsts = {method: results.of_method(row, method)["reliability"].head(1).dropna() for method in results.methods}
    stored = {method: first.iloc[0] for method, first in firsts.items() if len(first)}
    try:
        from kcal.plots import reliability_grid
    except MissingExtraError:
        return None
    if not stored:
        return None
    names = [event["name"] for event in next(iter(stored.values())).values()]
    bins = {method: [_bins(event, of) for of, event in events.items()] for method, events in stored.items()}
    axes = reliability_grid(bins, names, title=f"{row.label}, first split")
    path = folder / "reliability" / f"{row.task}{'-by-group' if row.by_group else ''}.png"
    path.parent.mkdir(exist_ok=True)
    with atomic_path(path) as temporary:
        axes[0, 0].get_figure(root=True).savefig(temporary, format="png", dpi=90)
    return path


def _bins(stored: Mapping[str, Any], event: str) -> ReliabilityBins:
    means, frequencies = (np.array(stored[name], dtype=float) for name in ("mean_prediction", "observed_frequency"))
    counts = np.array(stored["counts"], dtype=np.intp)
    edges = np.arange(len(counts) + 1) / len(counts)
    of: Any = event if event == "confidence" else int(event)
    weights = counts.astype(np.float64)
    return ReliabilityBins(counts, means, frequencies, edges, of, False, weights, weights)
