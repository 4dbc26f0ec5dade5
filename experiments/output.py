"""Entries, tables and lines that several studies show, and the files that they write."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from experiments.lines import Line, Panel
from experiments.study import Measured, Measurements
from kcal.benchmark.results import MAIN_METRICS, TABLE_METRICS
from kcal.benchmark.table import Entry, Table, spreadsheet


def metric_label(name: str) -> str:
    """Return the title of a metric with its unit."""
    metric = TABLE_METRICS[name]
    return f"{metric.title}, {metric.unit}" if metric.unit else metric.title


LOG_LOSS = "negative_log_likelihood"
METRIC_LABELS = tuple(metric_label(name) for name in MAIN_METRICS)
"""Headings of the columns that the main metrics take."""
HALF_A_DIGIT = 5e-5
"""Differences below are shown as zero."""
MANY_TIMES = 10.0
"""Ratio of the largest to the smallest value at which an axis becomes logarithmic."""


def number_entry(values: NDArray[np.float64], *, scale: float = 1.0, digits: int = 4, signed: bool = False) -> Entry:
    """Return mean ± standard deviation over splits."""
    mean = f"{scale * values.mean():{'+' if signed else ''}.{digits}f}"
    spread = f"±{scale * values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return Entry(f"{mean}{spread}".replace("-", "−"))


def metric_entry(values: NDArray[np.float64], metric: str, *, signed: bool = False) -> Entry:
    """Return mean ± standard deviation of a metric in the unit of the tables."""
    shown = TABLE_METRICS[metric]
    return number_entry(values, scale=shown.scale, digits=2 if shown.unit else 4, signed=signed)


def metric_entries(measured: Measured) -> tuple[Entry, ...]:
    return tuple(metric_entry(measured[name], name) for name in MAIN_METRICS)


def metrics_table(title: str, variants: Mapping[str, Measured], corner: str = "") -> Table:
    """Return variants as rows and the main metrics as columns; the best mean of each is bold."""
    signs = np.array([-1.0 if TABLE_METRICS[name].direction == "higher" else 1.0 for name in MAIN_METRICS])
    means = signs * [[measured[name].mean() for name in MAIN_METRICS] for measured in variants.values()]
    is_best = means <= means.min(axis=0)  # (n_variants, n_metrics)
    rows = tuple(
        (
            Entry(variant),
            *(entry._replace(bold=bool(b)) for entry, b in zip(metric_entries(measured), best, strict=True)),
        )
        for (variant, measured), best in zip(variants.items(), is_best, strict=True)
    )
    return Table("metrics", title, (corner, *METRIC_LABELS), rows)


def log_loss_overview(title: str, reference: str, measured: Measurements) -> Table:
    """Return the reference's mean log-loss and the mean difference of every other variant from it, by setting."""
    means = {
        label: {variant: float(values[LOG_LOSS].mean()) for variant, values in variants.items()}
        for label, variants in measured.items()
    }
    rows = [(Entry(f"{reference}, NLL"), *(Entry(f"{losses[reference]:.4f}") for losses in means.values()))]
    for variant in max(means.values(), key=len, default={}):
        if variant != reference:
            changes = [
                signed(losses[variant] - losses[reference]) if variant in losses else "–" for losses in means.values()
            ]
            rows.append((Entry(variant), *(Entry(change, bold=change.startswith("−")) for change in changes)))
    note = f"Mean difference of the NLL from that of “{reference}” on the same splits; below zero (bold) is better."
    return Table("overview", title, ("", *means), tuple(rows), note)


def signed(change: float) -> str:
    """Return a difference with its sign; zero if it would be shown as zero."""
    return "0.0000" if abs(change) < HALF_A_DIGIT else f"{change:+.4f}".replace("-", "−")


def spread_line(label: str, x: Sequence[float], values: Sequence[NDArray[np.float64]], scale: float = 1.0) -> Line:
    """Return means over splits as a line with their standard deviation as a band; one array per x."""
    means = scale * np.array([by_split.mean() for by_split in values])
    spread = scale * np.array([by_split.std(ddof=1) if len(by_split) > 1 else 0.0 for by_split in values])
    return Line(label, floats(x), floats(means), floats(means - spread), floats(means + spread))


def quartile_line(label: str, x: Sequence[float], values: Sequence[NDArray[np.float64]], scale: float = 1.0) -> Line:
    """Return medians over splits as a line with the middle half of the splits as a band; one array per x."""
    low, middle, high = (floats(scale * np.quantile(by_split, q) for by_split in values) for q in (0.25, 0.5, 0.75))
    return Line(label, floats(x), middle, low, high)


def metric_panel(
    title: str,
    x_label: str,
    x: Sequence[float],
    values: Sequence[Measured],
    metric: str,
    uncalibrated: Any = None,
    *,
    line: Callable[..., Line] = spread_line,
) -> Panel:
    """Return a metric along x, as a ``spread_line`` or a ``quartile_line``, and the uncalibrated network as a level."""
    shown = TABLE_METRICS[metric]
    lines = [line("" if uncalibrated is None else "KCal", x, [measured[metric] for measured in values], shown.scale)]
    if uncalibrated is not None:
        lines.append(level_line("uncalibrated", x, shown.scale * uncalibrated[metric].mean()))
    heights = [height for drawn in lines for height in drawn.y]
    y_log = 0 < MANY_TIMES * min(heights) < max(heights)
    return Panel(title, x_label, metric_label(metric), tuple(lines), x_log=True, y_log=y_log, x_ticks=floats(x))


def level_line(label: str, x: Sequence[float], level: float) -> Line:
    """Return a horizontal reference line."""
    return Line(label, (float(min(x)), float(max(x))), (float(level), float(level)), reference=True)


def floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def tables_csv(tables: Sequence[Table]) -> bytes:
    """Return tables as one CSV file; the first column is the title of each."""
    frames = []
    for table in tables:
        earlier = [table.heading[:place].count(name) for place, name in enumerate(table.heading)]
        names = [f"{name} ({n + 1})" if n else name for name, n in zip(table.heading, earlier, strict=True)]
        frames.append(table.frame.set_axis(names, axis=1).assign(table=table.title))
    every = pandas.concat(frames, ignore_index=True).fillna("")
    return spreadsheet(every[["table", *(name for name in every if name != "table")]]).encode()


def small_png(figure: Figure) -> bytes:
    """Return a figure as a PNG with a palette: a third of the bytes, with hardly a visible difference."""
    buffer, small = io.BytesIO(), io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    with Image.open(buffer) as image:
        image.convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE).save(small, format="PNG", optimize=True)
    return small.getvalue()
