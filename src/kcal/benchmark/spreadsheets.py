"""The benchmark's tables as CSV: plain numbers in the unit of the tables, empty cells where there are none."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kcal.benchmark.summaries import MAIN_METRICS, TABLE_METRICS, Results
from kcal.benchmark.table import comma_separated
from kcal.benchmark.tables import OVERALL, corrected_table, failure_table

Numbers = Sequence[float | int | None]


def all_sheets(results: Results) -> dict[str, str]:
    """Return every table as comma-separated values, by the name of the table."""
    sheets = {metric: metric_sheet(results, metric) for metric in TABLE_METRICS}
    sheets |= {"ranks": rank_sheet(results), "seconds": time_sheet(results)}
    if any(results.sizes(row) is not None for row in results.rows):
        sheets["corrected"] = corrected_table(results).as_csv()
    if results.failures:
        sheets["failures"] = failure_table(results).as_csv()
    return sheets


def metric_sheet(results: Results, metric: str) -> str:
    """Return METHOD_mean, METHOD_std and METHOD_failed (number of splits) as columns, tasks as rows."""
    scale = TABLE_METRICS[metric].scale
    rows = []
    for row in results.rows:
        numbers: list[float | int | None] = []
        for method in results.methods:
            summary, n_failed = results.partial_summary(row, metric, method)
            moments = (None, None) if summary is None else (scale * summary.mean, scale * summary.std)
            numbers += [*moments, n_failed if results.of_method(row, method) else None]
        rows.append((row.label, numbers))
    return _sheet("task", results.methods, ("mean", "std", "failed"), rows)


def rank_sheet(results: Results) -> str:
    """Return METHOD_mean and METHOD_std of the ranks as columns; metrics and an overall average as rows."""
    rows = []
    for metric in MAIN_METRICS:
        ranked = results.ranks(metric)
        ranks = {} if ranked is None else ranked.ranks
        pairs = [(ranks[name].mean, ranks[name].std) if name in ranks else (None, None) for name in results.methods]
        rows.append((TABLE_METRICS[metric].title, [number for pair in pairs for number in pair]))
    overall = results.overall()
    rows.append((OVERALL, [number for name in results.methods for number in (overall.get(name), None)]))
    return _sheet("metric", results.methods, ("mean", "std"), rows)


def time_sheet(results: Results) -> str:
    """Return METHOD_fit, METHOD_predict and METHOD_train (the projection) as columns, tasks as rows."""
    rows = []
    for row in results.rows:
        numbers: list[float | None] = []
        for method in results.methods:
            numbers += [*(results.seconds(row, method) or (None, None)), results.training_seconds(row, method)]
        rows.append((row.label, numbers))
    return _sheet("task", results.methods, ("fit", "predict", "train"), rows)


def _sheet(corner: str, methods: Sequence[str], parts: Sequence[str], rows: Sequence[tuple[str, Numbers]]) -> str:
    heading = (corner, *(f"{method}_{part}" for method in methods for part in parts))
    return comma_separated(heading, [[label, *map(_cell, numbers)] for label, numbers in rows])


def _cell(number: float | int | None) -> float | int | str:
    return "" if number is None or not math.isfinite(number) else number
