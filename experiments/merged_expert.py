"""The blend with a merged support as one more expert in each metric, and with a compressed support."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from experiments.output import LOG_LOSS, log_loss_overview, metrics_table, number_entry
from experiments.study import (
    Measurements,
    Study,
    StudyOutput,
    TaskSetting,
    Values,
    Variant,
    by_row_and_group,
    main_metrics,
)
from kcal.benchmark.methods import pool_outputs
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tasks import Split
from kcal.calibrators import predict_on

BLEND, MERGED = "the blend", "with merged experts"
SHARES = (0.1, 0.25)


def variants(setting: TaskSetting) -> Mapping[str, Variant]:
    """Return the blend, the blend with merged experts, and the blend with parts of its support."""
    fitted: dict[int, Any] = {}  # the blend, by split

    def blend(split: Split) -> Any:
        if split.index not in fitted:
            fitted[split.index] = setting.fit(setting.calibrator("kcal-blend"), split).calibrator
        return fitted[split.index]

    def measure(make: Callable[[Split], Any]) -> Variant:
        def values(split: Split) -> Values:
            probs = predict_on(make(split), pool_outputs("", setting.task, split.test))
            return main_metrics(probs, setting.task.pool.labels[split.test])

        return values

    def compressed(share: float) -> Variant:
        def make(split: Split) -> Any:
            all_groups = setting.task.pool.groups
            groups = all_groups[split.calibration] if setting.by_group and all_groups is not None else None
            return blend(split).compress(share, groups=groups)

        return measure(make)

    return {
        BLEND: measure(blend),
        MERGED: setting.variant("kcal-blend", lambda: {"merged": True}),
        **{f"compressed to {share:.0%}": compressed(share) for share in SHARES},
    }


def show(measured: Measurements) -> StudyOutput:
    """Return the changes of the log-loss, on how many splits it is lower, and all metrics per task."""
    overview = log_loss_overview("Log-loss", BLEND, measured)
    tables = [metrics_table(label, by_variant) for label, by_variant in measured.items()]
    return StudyOutput((overview, wins(measured), *tables))


def wins(measured: Measurements) -> Table:
    """Return the relative change of the log-loss by the merged experts, and the splits on which it is lower."""
    rows = []
    for label, by_variant in measured.items():
        before, after = by_variant[BLEND][LOG_LOSS], by_variant[MERGED][LOG_LOSS]
        change = number_entry(100.0 * (after / before - 1.0), digits=2, signed=True)
        rows.append((Entry(label), change, Entry(f"{np.count_nonzero(after < before)} of {len(after)}")))
    return Table("wins", "Merged experts", ("", "change of the log-loss, %", "splits with a lower one"), tuple(rows))


STUDY = Study("merged_expert", "Merged experts in the blend", variants, show, by_row_and_group, max_splits=3)
