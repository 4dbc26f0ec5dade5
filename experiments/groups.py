"""What is left of a calibration on groups that the calibration set does not have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from experiments.output import METRIC_LABELS, metric_entry, metrics_table
from experiments.study import Measured, Measurements, Study, StudyOutput, TaskSetting
from kcal.benchmark import Task
from kcal.benchmark.results import MAIN_METRICS, TABLE_METRICS
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tasks import Split, row_splits

METHODS = ("uncal", "ts", "vector", "platt", "isotonic", "dircal", "sms", "kcal", "kcal-blend")
SAME_SIZES = " (rows)"


@dataclass(frozen=True, eq=False)
class SameSizes(TaskSetting):
    """A task split by row, with as many calibration and test rows as each of its grouped splits."""

    @property
    def label(self) -> str:
        return f"{self.task.name}{SAME_SIZES}"

    def splits(self, n_splits: int) -> list[Split]:
        grouped = self.task.splits(n_splits, self.seed, by_group=True)
        return [same_sizes(split, self.seed) for split in grouped]


def same_sizes(split: Split, seed: int) -> Split:
    """Return a split by row of the same sizes, so that only the groups differ."""
    n_samples = len(split.calibration) + len(split.test)
    return row_splits(n_samples, len(split.calibration) / n_samples, split.index + 1, seed)[split.index]


def settings(tasks: Iterable[Task], seed: int) -> Iterator[TaskSetting]:
    """Yield the tasks with enough groups, split by row and by group."""
    for task in tasks:
        if task.can_split_groups:
            yield SameSizes(task, seed)
            yield TaskSetting(task, seed, by_group=True)


def lost(rows: Measured, groups: Measured, metric: str) -> Entry:
    """Return by how much a metric is worse on new groups than on rows; positive is worse, whatever the metric."""
    change = groups[metric] - rows[metric]
    return metric_entry(-change if TABLE_METRICS[metric].direction == "higher" else change, metric, signed=True)


def show(measured: Measurements) -> StudyOutput:
    """Return metrics by row, by group, and the difference, per task."""
    tables = []
    for label in (label for label in measured if label.endswith(SAME_SIZES)):
        task = label.removesuffix(SAME_SIZES)
        rows, groups = measured[label], measured[f"{task} (by group)"]
        tables += [
            metrics_table(f"{task}: tested on random rows", rows, "method"),
            metrics_table(f"{task}: tested on new groups", groups, "method"),
            Table(
                "lost",
                f"{task}: lost from rows to new groups",
                ("method", *METRIC_LABELS),
                tuple(
                    (Entry(method), *(lost(rows[method], groups[method], name) for name in MAIN_METRICS))
                    for method in rows
                ),
                "With as many samples to calibrate and to test; + is worse, whatever the metric.",
            ),
        ]
    return StudyOutput(tuple(tables))


STUDY = Study("groups", "New groups", lambda setting: {name: setting.variant(name) for name in METHODS}, show, settings)
