"""The benchmark's tables: one per metric, the best by the corrected test, ranks, seconds and failures; also as CSV."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain

from kcal.benchmark.results import MAIN_METRICS, TABLE_METRICS, Results, Row
from kcal.benchmark.table import Entry, Table, comma_separated
from kcal.benchmark.tasks import MIN_CALIBRATION_GROUPS
from kcal.metrics import MethodComparison, SplitSummary
from kcal.metrics.comparison import MIN_SPLITS
from kcal.metrics.registry import Metric

Numbers = tuple[float | None, ...]
"""The numbers of one method in a row of a sheet; None where there is none."""
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
    rows = [splits for row in results.rows if (splits := results.of_method(row, method))]
    return bool(rows) and all(any(result.error is not None for result in splits) for splits in rows)


def time_table(results: Results) -> Table:
    """Return median seconds to fit and to predict."""

    def entry(row: Row, method: str) -> Entry:
        seconds = results.seconds(row, method)
        missing = FAILED if results.of_method(row, method) else NO_VALUE
        return Entry(missing if seconds is None else f"{seconds[0]:.2f} + {seconds[1]:.2f}")

    rows = tuple((Entry(row.label), *(entry(row, method) for method in results.methods)) for row in results.rows)
    return Table("seconds", "Seconds to fit + to predict", ("task", *results.methods), rows, TIME_NOTE)


def training_table(results: Results) -> Table:
    """Return the seconds to train the projections: tasks as rows, the methods that learn one as columns."""
    seconds = {method: [results.training_seconds(row, method) for row in results.rows] for method in results.methods}
    learning = {method: times for method, times in seconds.items() if any(time is not None for time in times)}
    columns = [[Entry(NO_VALUE if time is None else f"{time:.1f}") for time in times] for times in learning.values()]
    labels = [Entry(row.label) for row in results.rows]
    rows = tuple(zip(labels, *columns, strict=True)) if learning else ()
    return Table("training", "Seconds to train the projection", ("task", *learning), rows, TRAINING_NOTE)


def failure_table(results: Results) -> Table:
    """Return which method failed on which split, and why."""
    rows = tuple(
        (
            Entry(result.key.row.label),
            Entry(result.key.method),
            Entry(str(result.key.split)),
            Entry(" ".join(str(result.error).split())),
        )
        for result in results.failures
    )
    return Table("failures", "Failed", ("task", "method", "split", "error"), rows)


def split_note(results: Results) -> str:
    """Return that there are too few splits to call methods best; empty if there are enough."""
    n_splits = min(max(map(len, by_method.values())) for by_method in results.by_method.values())
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


def all_sheets(results: Results) -> dict[str, str]:
    """Return every table as comma-separated values, by the name of the table."""
    sheets = {metric: metric_sheet(results, metric) for metric in TABLE_METRICS}
    sheets |= {"ranks": rank_sheet(results), "seconds": time_sheet(results)}
    texts = (corrected_table(results), failure_table(results))
    return sheets | {table.name: table.as_csv() for table in texts if table.rows}


def metric_sheet(results: Results, metric: str) -> str:
    """Return METHOD_mean, METHOD_std and METHOD_failed (number of splits) as columns, tasks as rows."""
    scale = TABLE_METRICS[metric].scale

    def numbers(row: Row, method: str) -> Numbers:
        summary, n_failed = results.partial_summary(row, metric, method)
        moments = (None, None) if summary is None else (scale * summary.mean, scale * summary.std)
        return *moments, n_failed if results.of_method(row, method) else None

    rows = {row.label: [numbers(row, method) for method in results.methods] for row in results.rows}
    return _sheet("task", results.methods, ("mean", "std", "failed"), rows)


def rank_sheet(results: Results) -> str:
    """Return METHOD_mean and METHOD_std of the ranks as columns; metrics and an overall average as rows."""
    rows: dict[str, list[Numbers]] = {}
    for metric in MAIN_METRICS:
        ranked = results.ranks(metric)
        ranks = {} if ranked is None else ranked.ranks
        rows[TABLE_METRICS[metric].title] = [
            (ranks[name].mean, ranks[name].std) if name in ranks else (None, None) for name in results.methods
        ]
    overall = results.overall()
    rows[OVERALL] = [(overall.get(name), None) for name in results.methods]
    return _sheet("metric", results.methods, ("mean", "std"), rows)


def time_sheet(results: Results) -> str:
    """Return METHOD_fit, METHOD_predict and METHOD_train (the projection) as columns, tasks as rows."""

    def numbers(row: Row, method: str) -> Numbers:
        return *(results.seconds(row, method) or (None, None)), results.training_seconds(row, method)

    rows = {row.label: [numbers(row, method) for method in results.methods] for row in results.rows}
    return _sheet("task", results.methods, ("fit", "predict", "train"), rows)


def _sheet(corner: str, methods: Sequence[str], parts: Sequence[str], rows: Mapping[str, Sequence[Numbers]]) -> str:
    """Return numbers of each method in the unit of the tables, empty cells where there are none."""
    heading = (corner, *(f"{method}_{part}" for method in methods for part in parts))
    cells = [
        [label, *("" if number is None or not math.isfinite(number) else number for number in chain(*numbers))]
        for label, numbers in rows.items()
    ]
    return comma_separated(heading, cells)
