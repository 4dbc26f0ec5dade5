"""What the commands print: metrics side by side, and the summary of a fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich import box
from rich.filesize import decimal
from rich.table import Table

from kcal.benchmark.results import MAIN_METRICS
from kcal.calibrators import METHODS, Calibrator
from kcal.cli.data import Dataset
from kcal.cli.files import shorten
from kcal.cli.output import console, shown
from kcal.errors import printable
from kcal.metrics import METRICS, Evaluation
from kcal.metrics.registry import Metric


def method_title(name: str) -> str:
    """Return the full name of a method; other names, such as "before", stay as they are."""
    return METHODS[name].title if name in METHODS else name


def metrics_table(evaluations: Mapping[str, Evaluation], *, stacked: bool) -> Table:
    """Return metrics as rows and methods as columns, the best of each row in bold.

    Debiased errors and intervals are columns of their own, or lines below the values if ``stacked``.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("metric", no_wrap=True)
    for name, evaluation in evaluations.items():
        title = method_title(name)
        table.add_column(shown(title), justify="right", min_width=max(len(word) for word in title.split()))
        if evaluation.confidence is not None and not stacked:
            table.add_column("debiased", justify="right", no_wrap=True)
            table.add_column(f"{100 * evaluation.confidence:.6g} % interval", justify="right", no_wrap=True)
    for name in next(iter(evaluations.values())).metrics:
        cells, metric = [], METRICS[name]
        for value, evaluation in zip(_values(evaluations, metric), evaluations.values(), strict=True):
            estimate = _estimate(evaluation, metric)
            lines = (f"debiased {text}" if place == 0 else text for place, text in enumerate(estimate) if text)
            cells += ["\n".join([value, *(f"[dim]{line}[/]" for line in lines)])] if stacked else [value, *estimate]
        table.add_row(metric.labelled(metric.description), *cells)
    return table


def _estimate(evaluation: Evaluation, metric: Metric) -> tuple[str, ...]:
    """Return the debiased error, empty if the metric is not biased, and the interval; nothing without intervals."""
    if evaluation.confidence is None:
        return ()
    debiased, interval = evaluation.debiased.get(metric.name), evaluation.intervals.get(metric.name)
    ends = "" if interval is None else f"\\[{metric.format(interval.low)}, {metric.format(interval.high)}]"
    return "" if debiased is None else metric.format(debiased), ends


def methods_table(evaluations: Mapping[str, Evaluation]) -> Table:
    """Return methods as rows and the main metrics as columns, the best of each column in bold."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method")
    for name in MAIN_METRICS:
        table.add_column(METRICS[name].labelled(METRICS[name].title), justify="right", no_wrap=True)
    columns = [_values(evaluations, METRICS[name]) for name in MAIN_METRICS]
    for name, cells in zip(evaluations, zip(*columns, strict=True), strict=True):
        table.add_row(shown(method_title(name)), *cells)
    return table


def show_evaluations(evaluations: Mapping[str, Evaluation]) -> None:
    """Print all metrics, and how they were computed."""
    screen, first = console(), next(iter(evaluations.values()))
    screen.print(f"{first.n_samples:,} samples, {first.n_classes:,} classes")
    wide = screen.options.update(width=10_000)
    tables = [metrics_table(evaluations, stacked=stacked) for stacked in (False, True)] if len(evaluations) <= 4 else []
    table = next((table for table in tables if screen.measure(table, options=wide).maximum <= screen.width), None)
    many = table is None  # then every method is a row, without intervals
    screen.print(table or methods_table(evaluations))
    best = ", bold is best" if len(evaluations) > 1 else ""
    screen.print(
        f"↑ higher is better, ↓ lower is better{best}. {first.bins} bins with equal counts unless noted; class-wise "
        f"errors over probabilities of at least {first.threshold:.4g}."
    )
    if many:
        screen.print("--json FILE and --report FOLDER have all metrics, with their confidence intervals.")
    elif first.confidence is not None:
        screen.print(
            f"In brackets: {100 * first.confidence:.6g} % confidence intervals by resampling. Chance makes calibration "
            "errors larger; debiased is without that part, and what their interval is about."
        )


def show_fitted(
    method: str, calibrator: Calibrator, data: Dataset, path: Path, *, seconds: float, reason: str = ""
) -> None:
    """Print the summary of a fit by a registered method, why it was taken, and where the model is."""
    screen, weights = console(), data.weights
    screen.print(f"[bold]{shown(method_title(method))}[/] fitted in {seconds:.1f} s")
    if reason:
        screen.print(reason)
    labels = [printable(label) for label in calibrator.classes_.tolist()]
    rows = {"classes": f"{len(labels):,}: {', '.join(labels[:5])}{', …' if len(labels) > 5 else ''}"}
    rows["samples"] = f"{len(data):,}" if weights is None else f"{int((weights > 0).sum()):,}, weighted"
    rows |= {key: f"column {column}" for key, column in data.value_columns}
    if data.feature_columns:  # so that a column that is not a feature does not go unnoticed
        takes_logits = calibrator.inputs == "logits"
        rows["logits" if takes_logits else "embeddings"] = f"columns {shorten(data.feature_columns)}"
    if calibrator.inputs == "both" and calibrator.needs_logits_:
        columns = f"columns {shorten(data.logit_columns)}" if data.logit_columns else f"{len(labels):,} columns"
        rows["logits"] = columns
    elif calibrator.inputs == "both":
        advice = "; name those of a table with --logit-columns" if data.feature_columns else ""
        rows["logits"] = f"none: fitted on embeddings alone{advice}"
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for title, text in {**rows, **calibrator.summary(), "file": f"{path}, {decimal(path.stat().st_size)}"}.items():
        table.add_row(title, "\n".join(shown(line) for line in text.split("\n")))
    screen.print(table)


def _values(evaluations: Mapping[str, Evaluation], metric: Metric) -> list[str]:
    """Return a metric of every method, with the best in bold; nothing is bold if there is only one method."""
    values = metric.format_beside([evaluation.metrics[metric.name] for evaluation in evaluations.values()])
    return [f"[bold]{text}[/]" if is_best else text for text, is_best in values]
