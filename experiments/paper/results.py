"""Results of the benchmark beside the rows that the paper prints."""

from __future__ import annotations

from experiments.paper.published import DIFFERENCES, METRICS, PAPER_METHODS, ROWS, published
from kcal.benchmark.results import TABLE_METRICS, Results, Row
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tables import mean_and_std
from kcal.errors import InvalidInputError

MISSING = "–"
AS_PUBLISHED = {"dircal": ("dircal-paper",), "kcal-paper": ("kcal-paper-pn2017", "kcal-paper-isruc")}
"""Methods that stand in a column of the paper where they were run."""


def comparison_tables(results: Results, data_set: str) -> list[Table]:
    """Return a table for each metric that the paper prints: its row, then those of tasks named after the data set.

    Columns are the paper's methods in its order, then the others that were run.
    """
    rows = [row for row in results.rows if row.task.startswith(data_set)]
    if data_set not in ROWS or not rows:
        expected = f"must be one of {', '.join(ROWS)}, with tasks whose names begin with it"
        raise InvalidInputError("data_set", expected, got=repr(data_set))
    run = [method for method in results.methods if any(len(results.of_method(row, method)) for row in rows)]
    columns = {name: _run_of(method, run) for name, method in PAPER_METHODS.items()}
    others = [method for method in run if method not in columns.values()]
    return [_table(results, data_set, name, columns, others, rows) for name in METRICS]


def _run_of(method: str, run: list[str]) -> str:
    """Return the method for a column of the paper: as published for the data set where that was run."""
    return next((other for other in AS_PUBLISHED.get(method, ()) if other in run), method)


def _table(
    results: Results, data_set: str, name: str, columns: dict[str, str], others: list[str], rows: list[Row]
) -> Table:
    metric = TABLE_METRICS[METRICS[name]]
    printed = published(name).loc[ROWS[data_set]]
    paper = (Entry(f"paper, {ROWS[data_set]}"), *(Entry(printed[column]) for column in columns))
    paper += (Entry(MISSING),) * len(others)
    methods = (*columns.values(), *others)
    ours = [(Entry(row.label), *(_entry(results, row, METRICS[name], method) for method in methods)) for row in rows]
    unit = f", {metric.unit}" if metric.unit else ""
    return Table(f"{data_set}_{METRICS[name]}", f"{name}{unit}", ("task", *methods), (paper, *ours))


def _entry(results: Results, row: Row, metric: str, method: str) -> Entry:
    """Return mean ± standard deviation over the splits, or a dash."""
    summary, _ = results.partial_summary(row, metric, method)
    return Entry(MISSING if summary is None else mean_and_std(summary, TABLE_METRICS[metric]))


def as_page(tables: list[Table], data_set: str) -> str:
    """Return the tables, methods as rows, and what differs, in Markdown."""
    texts = [table.transposed().as_markdown() for table in tables]
    differences = [f"- {text}" for text in DIFFERENCES.get(data_set, ())]
    return "\n".join([f"# {data_set}: our rows beside the paper's", "", *texts, *differences, ""])
