"""Results of the benchmark beside the rows that the paper prints."""

from __future__ import annotations

from experiments.paper.published import DIFFERENCES, PAPER_COLUMNS, PUBLISHED
from kcal.benchmark.results import TABLE_METRICS, Results, Row
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tables import mean_and_std
from kcal.errors import InvalidInputError

MISSING = "–"


def comparison_tables(results: Results, data_set: str) -> list[Table]:
    """Return a table for each metric that the paper prints: its row, then those of tasks named after the data set.

    Columns are the paper's methods in its order, then the others that were run. The class-wise error is the one at the
    threshold of the paper's tables, min(0.01, 1/K).
    """
    rows = [row for row in results.rows if row.task.startswith(data_set)]
    if data_set not in PUBLISHED or not rows:
        expected = f"must be one of {', '.join(PUBLISHED)}, with tasks whose names begin with it"
        raise InvalidInputError("data_set", expected, got=repr(data_set))
    run = [method for method in results.methods if any(len(results.of_method(row, method)) for row in rows)]
    methods = (*PAPER_COLUMNS, *(method for method in run if method not in PAPER_COLUMNS))
    return [_table(results, data_set, metric, methods, rows) for metric in PUBLISHED[data_set]]


def _table(results: Results, data_set: str, metric: str, methods: tuple[str, ...], rows: list[Row]) -> Table:
    shown = TABLE_METRICS[metric]
    printed = PUBLISHED[data_set][metric]
    paper = (Entry("paper, MINA"), *(Entry(printed.get(method, MISSING)) for method in methods))
    ours = [(Entry(row.label), *(_entry(results, row, metric, method) for method in methods)) for row in rows]
    unit = f", {shown.unit}" if shown.unit else ""
    return Table(f"{data_set}_{metric}", f"{shown.title}{unit}", ("task", *methods), (paper, *ours))


def _entry(results: Results, row: Row, metric: str, method: str) -> Entry:
    """Return mean ± standard deviation over the splits, or a dash."""
    summary, _ = results.partial_summary(row, metric, method)
    return Entry(MISSING if summary is None else mean_and_std(summary, TABLE_METRICS[metric]))


def as_page(tables: list[Table], data_set: str) -> str:
    """Return the tables, methods as rows, and what differs, in Markdown."""
    differences = "\n".join(f"- {text}" for text in DIFFERENCES[data_set])
    texts = [table.transposed().as_markdown() for table in tables]
    return "\n".join(
        [f"# {data_set}: our rows beside the paper's", "", *texts, "### What differs", "", differences, ""]
    )
