"""A smaller support: several sizes, against all samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from experiments.lines import Panel
from experiments.output import LOG_LOSS, floats, level_line, metric_entry, metric_label, number_entry, spread_line
from experiments.study import Fitted, Measured, Measurements, Study, StudyOutput, TaskSetting, Values, Variant
from kcal import KCal
from kcal.benchmark.methods import pool_outputs
from kcal.benchmark.results import TABLE_METRICS
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tasks import Split
from kcal.calibrators import predict_on

SHARES = (0.02, 0.05, 0.1, 0.25, 0.5)
"""Support points per sample."""
ALL, MERGED, WITHIN = "all samples", 'support="merged"', "max_loss_increase=0.005"
CECE = "classwise_calibration_error"
TIMED_ROWS, ROUNDS = 1_000, 5


def variants(setting: TaskSetting) -> Mapping[str, Variant]:
    """Return KCal on directions with all samples, and with fewer points by size."""
    fitted: dict[int, KCal] = {}  # with all samples, by split

    def full(split: Split) -> KCal:
        if split.index not in fitted:
            fitted[split.index] = setting.fit(setting.calibrator("kcal", projection="unit"), split).calibrator
        return fitted[split.index]

    def measure(make: Callable[[Split], Any]) -> Variant:
        def values(split: Split) -> Values:
            calibrator = make(split)
            probs = predict_on(calibrator, pool_outputs("", setting.task, split.test))
            result = Fitted(calibrator, probs, setting.task.pool.labels[split.test])
            speedup = times_faster(calibrator, full(split), setting.task.pool.embeddings[split.test][:TIMED_ROWS])
            return {**result.metrics(), "size": float(calibrator.support_size_), "speedup": speedup}

        return values

    def merged(split: Split) -> Any:
        return setting.fit(setting.calibrator("kcal", projection="unit", support="merged"), split).calibrator

    def compressed(share: float) -> Variant:
        return measure(lambda split: full(split).compress(share))

    return {
        ALL: measure(full),
        **{name_of(share): compressed(share) for share in SHARES},
        MERGED: measure(merged),
        WITHIN: measure(lambda split: full(split).compress(max_loss_increase=0.005)),
    }


def name_of(share: float) -> str:
    return f"kmeans, {share:.0%}"


def times_faster(calibrator: Any, reference: Any, rows: Any) -> float:
    """Return how many times faster a calibrator predicts rows than another, in turns; the median of several."""
    ratios = []
    for _ in range(ROUNDS):
        seconds = []
        for each in (reference, calibrator):
            start = time.process_time()
            each.predict_proba(rows)
            seconds.append(time.process_time() - start)
        ratios.append(seconds[0] / seconds[1])
    return float(np.median(ratios))


def show(measured: Measurements) -> StudyOutput:
    """Return a table and two panels per task."""
    tables, panels = [], []
    for label, by_variant in measured.items():
        tables.append(table_of(label, by_variant))
        panels += [panel_of(label, by_variant, metric) for metric in (LOG_LOSS, CECE)]
    return StudyOutput(tuple(tables), tuple(panels), 2)


def table_of(label: str, by_variant: Mapping[str, Measured]) -> Table:
    reference, rows = by_variant[ALL][LOG_LOSS], []
    for variant, values in by_variant.items():
        change = 100.0 * (values[LOG_LOSS] / reference - 1.0)
        rows.append(
            (
                Entry(variant),
                Entry(f"{values['size'].mean():,.0f}"),
                metric_entry(values[LOG_LOSS], LOG_LOSS),
                number_entry(change, digits=1, signed=True)._replace(bold=bool(change.mean() < 0)),
                metric_entry(values[CECE], CECE),
                Entry(f"{np.median(values['speedup']):.1f}"),
            )
        )
    heading = ("", "points", metric_label(LOG_LOSS), "change, %", metric_label(CECE), "times faster")
    return Table("compression", label, heading, tuple(rows))


def panel_of(label: str, by_variant: Mapping[str, Measured], metric: str) -> Panel:
    scale = TABLE_METRICS[metric].scale
    by_share = [by_variant[name_of(share)][metric] for share in SHARES]
    all_samples = level_line(ALL, SHARES, scale * by_variant[ALL][metric].mean())
    lines = [spread_line("kmeans", SHARES, by_share, scale), all_samples]
    axis = "support points per sample"
    return Panel(label, axis, metric_label(metric), tuple(lines), x_log=True, x_ticks=floats(SHARES))


STUDY = Study("compression", "A smaller support", variants, show, max_splits=2)
