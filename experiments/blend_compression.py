"""The blend with a smaller support."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from experiments.output import log_loss_overview, metrics_table
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
from kcal.benchmark.tasks import Split
from kcal.calibrators import predict_on

BLEND = "the blend"
SHARES = (0.1, 0.25)


def variants(setting: TaskSetting) -> Mapping[str, Variant]:
    """Return the blend with all samples, and with shares of them."""
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
        **{f"compressed to {share:.0%}": compressed(share) for share in SHARES},
    }


def show(measured: Measurements) -> StudyOutput:
    """Return the changes of the log-loss, and all metrics per task."""
    overview = log_loss_overview("Log-loss", BLEND, measured)
    tables = [metrics_table(label, by_variant) for label, by_variant in measured.items()]
    return StudyOutput((overview, *tables))


STUDY = Study("blend_compression", "A compressed support in the blend", variants, show, by_row_and_group, max_splits=3)
