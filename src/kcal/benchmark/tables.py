"""The benchmark's tables: one a metric, the best by the corrected test, ranks, seconds, failures."""

from __future__ import annotations

from kcal.benchmark.reshuffles import LEAST_GROUPS
from kcal.benchmark.results import MEASURES, RANKED, Results, Row
from kcal.benchmark.table import Entry, Table
from kcal.metrics import MethodComparison, ReshuffleSummary

__all__ = [
    "ABSENT",
    "CORRECTED_NOTE",
    "FAILED",
    "FAILED_IN_SOME",
    "INACCURATE",
    "NOTE",
    "Entry",
    "Table",
    "all_tables",
    "corrected_table",
    "dealing_note",
    "failure_table",
    "metric_table",
    "rank_table",
    "time_table",
    "training_table",
]

ABSENT = "–"
FAILED = "failed"
FAILED_IN_SOME = "✗"
INACCURATE = "†"
NOTE = (
    "Mean ± standard deviation over reshuffles. Bold: the best mean among methods that keep the accuracy, and what is "
    f"not significantly worse (pooled t-test, p = 0.01); {INACCURATE} significantly less accurate than uncalibrated; "
    f"underlined: the best mean of all, where it does not keep the accuracy; {FAILED}: in every reshuffle; "
    f"{FAILED_IN_SOME} failed in so many reshuffles: the mean is over the others, and neither compared nor ranked; "
    f"{ABSENT} did not take part, or has no such number. "
    "Reshuffles share samples, and the pooled test takes them for independent: it is surer than it should be."
)
CORRECTED_NOTE = (
    "The best mean among the methods that keep the accuracy, first, and what is not significantly worse by the "
    "corrected test of Nadeau and Bengio (paired, p = 0.01). Reshuffles of one pool overlap: this test allows for it, "
    "the pooled one behind the bold numbers does not, so that more methods tend to tie here."
)
RANK_NOTE = (
    "Ranks over every reshuffle of every task, among the methods that are there; 1 is the best. A method that failed "
    "in a reshuffle is not ranked on that task."
)
TIME_NOTE = (
    "Median over reshuffles, on one processor. A projection is trained once a task and way of dealing, which is not "
    "counted here."
)
TRAINING_NOTE = "Once a task and way of dealing, on one processor; all reshuffles share the projection."


def all_tables(results: Results) -> list[Table]:
    """Return a table a metric, the best by the corrected test, the ranks, the seconds and, if any, the failures."""
    tables = [metric_table(results, metric) for metric in MEASURES]
    if any(results.sizes(row) is not None for row in results.rows):
        tables.append(corrected_table(results))
    tables += [rank_table(results), time_table(results), training_table(results), failure_table(results)]
    return [table for table in tables if table.rows]


def metric_table(results: Results, metric: str) -> Table:
    """Return one metric: tasks as rows, methods as columns."""
    title, better, scale = MEASURES[metric]
    rows = []
    for row in results.rows:
        comparison = results.comparison(row, metric)
        entries = [_metric_entry(results, row, metric, method, comparison) for method in results.methods]
        rows.append((Entry(row.label), *entries))
    arrow = "↑" if better == "higher" else "↓"
    unit = " × 10⁻²" if scale == 100 else ""
    return Table(metric, f"{title} {arrow}{unit}", ("task", *results.methods), tuple(rows), NOTE)


def _metric_entry(results: Results, row: Row, metric: str, method: str, comparison: MethodComparison | None) -> Entry:
    scale = MEASURES[metric].scale
    if comparison is not None and method in comparison.summaries:
        marks = comparison.pooled
        mark = "" if method in marks.accuracy_preserving else INACCURATE
        text = f"{_scaled(comparison.summaries[method], scale)}{mark}"
        return Entry(text, bold=method in marks.best, underlined=method == marks.underlined)
    summary, n_failed = results.partly(row, metric, method)
    if summary is None:
        return Entry(FAILED if n_failed else ABSENT)
    return Entry(f"{_scaled(summary, scale)}{f' {FAILED_IN_SOME}{n_failed}' if n_failed else ''}")


def corrected_table(results: Results) -> Table:
    """Return the methods that tie with the best under the corrected test: tasks as rows, metrics as columns."""
    shown = (*RANKED, "negative_log_likelihood")
    rows = []
    for row in results.rows:
        comparisons = [results.comparison(row, metric) for metric in shown]
        marks = [None if each is None else each.corrected for each in comparisons]
        entries = [Entry(ABSENT if each is None or not each.best else ", ".join(each.best)) for each in marks]
        rows.append((Entry(row.label), *entries))
    heading = ("task", *(MEASURES[metric].title for metric in shown))
    return Table("corrected", "Best by the corrected test", heading, tuple(rows), CORRECTED_NOTE)


def rank_table(results: Results) -> Table:
    """Return average ranks: metrics as rows, methods as columns, and an overall average."""
    failed = {method for method in results.methods if _failed_everywhere(results, method)}
    rows = []
    for metric in (*RANKED, "negative_log_likelihood"):
        found = results.ranks(metric)
        ranks, best = ({}, ()) if found is None else (found.ranks, found.best)
        entries = [
            Entry(str(ranks[method]).replace(" ± ", "±").removesuffix("±nan"), bold=method in best)
            if method in ranks
            else Entry(FAILED if method in failed else ABSENT)
            for method in results.methods
        ]
        rows.append((Entry(MEASURES[metric].title), *entries))
    overall = results.overall()
    lowest = min(overall.values(), default=None)
    entries = [
        Entry(f"{overall[method]:.2f}", bold=overall[method] == lowest)
        if method in overall
        else Entry(FAILED if method in failed else ABSENT)
        for method in results.methods
    ]
    rows.append((Entry("overall, without NLL"), *entries))
    return Table("ranks", "Average rank ↓", ("metric", *results.methods), tuple(rows), RANK_NOTE)


def _failed_everywhere(results: Results, method: str) -> bool:
    """Say whether a method took part and has no whole row: it failed in each."""
    taken = [found for row in results.rows if (found := results.of_method(row, method))]
    return bool(taken) and all(any(outcome.error is not None for outcome in found) for found in taken)


def time_table(results: Results) -> Table:
    """Return median seconds to fit and to predict."""
    rows = []
    for row in results.rows:
        entries = []
        for method in results.methods:
            found = results.seconds(row, method)
            absent = FAILED if results.of_method(row, method) else ABSENT
            entries.append(Entry(absent if found is None else f"{found[0]:.2f} + {found[1]:.2f}"))
        rows.append((Entry(row.label), *entries))
    return Table("seconds", "Seconds to fit + to predict", ("task", *results.methods), tuple(rows), TIME_NOTE)


def training_table(results: Results) -> Table:
    """Return the seconds of training the projections: tasks as rows, the methods that learn one as columns."""
    found = {method: [results.training_seconds(row, method) for row in results.rows] for method in results.methods}
    learning = [method for method, seconds in found.items() if any(each is not None for each in seconds)]
    rows = [
        (Entry(row.label), *(Entry(_seconds(found[method][place])) for method in learning))
        for place, row in enumerate(results.rows)
        if learning
    ]
    title = "Seconds to train the projection"
    return Table("training", title, ("task", *learning), tuple(rows), TRAINING_NOTE)


def failure_table(results: Results) -> Table:
    """Return what went wrong where."""
    rows = tuple(
        (
            Entry(Row(outcome.cell.task, outcome.cell.by_group).label),
            Entry(outcome.cell.method),
            Entry(str(outcome.cell.reshuffle)),
            Entry(" ".join(str(outcome.error).split())),
        )
        for outcome in results.failures
    )
    return Table("failures", "Failed", ("task", "method", "reshuffle", "error"), rows)


def dealing_note(results: Results) -> str:
    """Return which tasks have too few groups to be dealt by them; empty if none."""
    told = [
        f"{task} ({groups} group{'' if groups == 1 else 's'})" for task, groups in results.dealt_by_row_only.items()
    ]
    if not told:
        return ""
    return f"Dealt by row only, for fewer than {LEAST_GROUPS + 1} groups in the pool: {', '.join(told)}."


def _seconds(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.1f}"


def _scaled(summary: ReshuffleSummary, scale: float) -> str:
    digits = 2 if scale == 100 else 4
    mean, std = scale * summary.mean, scale * summary.std
    return f"{mean:.{digits}f}±{std:.{digits}f}" if summary.n_reshuffles > 1 else f"{mean:.{digits}f}"
