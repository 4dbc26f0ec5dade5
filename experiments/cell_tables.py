"""Tables and panels of measured cells; means are over the splits of a place: a protocol, a task and a size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas

from experiments.lines import Line, Panel
from experiments.output import LOG_LOSS, floats
from kcal.benchmark.methods import BENCHMARK_METHODS
from kcal.benchmark.table import Entry, Table
from kcal.metrics import PAPER_METRICS

PLACE = ["protocol", "task", "n"]
FEW = "30"
MAX_LINES = 8
MAX_SHOWN = 1.2
"""Largest ratio in the figure."""
MIN_TICK_RATIO = 1.8
"""Ratio of two labelled sizes."""
ERRORS = ("expected_calibration_error", "classwise_calibration_error")
MEAN_NOTE = "Means over splits; – where a method failed, or was not measured, on a split."

RIVAL_NOTE = (
    "Relative to the best of the other methods: geometric mean over tasks and numbers n of calibration rows, largest "
    "value, and number of places more than 1 % above the best."
)


def by_split(found: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """Return a metric with a row per place and split, and a column per method."""
    values = found.pivot(index=[*PLACE, "split"], columns="method", values=metric)
    order = sorted(values.index, key=lambda key: (*key[:2], float(key[2].replace("full", "inf")), key[3]))
    return values.loc[order, [name for name in BENCHMARK_METHODS if name in values]]


def means(values: pandas.DataFrame) -> pandas.DataFrame:
    """Return the mean of each place; nan if a method failed, or was not measured, on one of its splits."""
    places = values.groupby(level=PLACE, sort=False)
    return places.mean().where(places.count().eq(places.size(), axis=0))


def rival_ratios(losses: pandas.DataFrame) -> pandas.DataFrame:
    """Return each method's loss relative to the best of the other methods."""
    return pandas.DataFrame({name: losses[name] / losses.drop(columns=name).min(axis=1) for name in losses})


def summary(found: pandas.DataFrame, chosen: Sequence[str] = ()) -> pandas.DataFrame:
    """Return how methods compare with their best rival, by whether tasks are among the chosen ones and by protocol.

    Columns: geometric mean of the ratios over places, the largest and its place, the number of places more than 1 %
    above the best, of places, and of those without a mean.
    """
    ratios = rival_ratios(means(by_split(found, LOG_LOSS)))
    is_chosen = ratios.index.get_level_values("task").isin(chosen)
    kinds = np.where(is_chosen, "chosen", "others" if is_chosen.any() else "all")
    rows = {}
    for (tasks, protocol), part in ratios.groupby([kinds, ratios.index.get_level_values("protocol")]):
        for method, values in part.items():
            known = values.dropna()
            rows[tasks, protocol, method] = {
                "ratio": float(np.exp(np.log(known).mean())),
                "worst": float(known.max()),
                "worst at": "" if known.empty else " ".join(known.idxmax()[1:]),
                "> 1 % above": int((known > 1.01).sum()),
                "places": len(values),
                "missing": len(values) - len(known),
            }
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis(["tasks", "protocol", "method"])


def cell_tables(found: pandas.DataFrame, chosen: Sequence[str] = ()) -> list[Table]:
    """Return all tables; those whose reference, ts or n = 30, was not measured are left out."""
    losses, accuracies = (means(by_split(found, name)) for name in (LOG_LOSS, "accuracy"))
    protocols = dict.fromkeys(losses.index.get_level_values("protocol"))
    totals = summary(found, chosen)
    texts = totals.assign(**{name: totals[name].map(_ratio) for name in ("ratio", "worst")}).astype(str)
    tables = [_table("summary", "Log-loss relative to the best rival", texts, RIVAL_NOTE)]
    for protocol in protocols:
        part = losses.loc[protocol]
        bold = part.eq(part.min(axis=1), axis=0)
        texts = part.map(PAPER_METRICS[LOG_LOSS].format)
        tables.append(_table(f"log-loss-{protocol}", f"Log-loss, {protocol}", texts, MEAN_NOTE, bold))
    worst = 100 * accuracies.sub(accuracies["uncal"], axis=0).groupby(level=PLACE[:2], sort=False).min()
    tables.append(
        _table(
            "accuracy", "Accuracy minus that of uncal at the worst n, points", worst.drop(columns="uncal").map(_signed)
        )
    )
    if "ts" in losses:
        tables += [difference_table(found, metric, protocol) for metric in ERRORS for protocol in protocols]
    if FEW in losses.index.get_level_values("n"):
        few = losses.xs(FEW, level="n")
        texts = few.div(few["uncal"], axis=0).drop(columns="uncal").map(_ratio)
        tables.append(_table("few", f"Log-loss relative to uncal, n = {FEW}", texts, MEAN_NOTE))
    failed = found[found["error"] != ""].groupby([*PLACE, "method"], sort=False)["error"].agg(["size", "first"])
    failed.columns = ["splits", "message"]
    return [*tables, _table("failures", "Failures", failed.astype(str))] if len(failed) else tables


def difference_table(found: pandas.DataFrame, metric: str, protocol: str) -> Table:
    """Return the mean difference of a calibration error to that of ts, and its standard error over splits."""
    values = 100 * by_split(found, metric)
    differences = values.sub(values["ts"], axis=0).drop(columns="ts")
    mean, error = means(differences), differences.groupby(level=PLACE, sort=False).sem()
    texts = mean.map(_signed) + error.where(mean.notna()).map(lambda value: f"±{value:.2f}" if value == value else "")
    title = PAPER_METRICS[metric].title
    note = "Mean ± standard error over splits, which have rows in common; below zero is better."
    return _table(
        f"{title}-{protocol}".lower().replace(" ", "-"),
        f"{title} minus that of ts, {protocol}, points",
        texts.loc[protocol],
        note,
    )


def _table(
    name: str, title: str, texts: pandas.DataFrame, note: str = "", bold: pandas.DataFrame | None = None
) -> Table:
    marks = np.zeros(texts.shape, bool) if bold is None else bold.to_numpy()
    rows = [
        (*(Entry(str(part)) for part in place), *(Entry(text, bool(mark)) for text, mark in zip(*row, strict=True)))
        for place, row in zip(texts.index, zip(texts.to_numpy(), marks, strict=True), strict=True)
    ]
    return Table(name, title, (*texts.index.names, *texts.columns), tuple(rows), note)


def _ratio(value: Any) -> str:
    return f"{value:.3f}" if np.isfinite(value) else "–"


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−") if np.isfinite(value) else "–"


def cell_panels(found: pandas.DataFrame) -> list[Panel]:
    """Return a panel per protocol and task: the log-loss of each method relative to its best rival against n."""
    ratios = rival_ratios(means(by_split(found, LOG_LOSS)))
    rows = found.groupby(PLACE)["calibration_rows"].mean().round()
    panels = []
    for (protocol, task), part in ratios.groupby(level=PLACE[:2], sort=False):
        x = floats(rows.loc[part.index])
        ticks = tuple(n for n, after in zip(x, [*x[1:], np.inf], strict=True) if after >= MIN_TICK_RATIO * n)
        lines = tuple(Line(name, x, floats(part[name]), reference=name == "uncal") for name in part.columns[:MAX_LINES])
        labels = (f"{task}, {protocol}", "calibration rows", "log-loss / best rival")
        panels.append(Panel(*labels, lines, x_log=True, x_ticks=ticks))
    return panels
