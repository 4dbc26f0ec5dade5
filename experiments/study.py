"""What a study declares: settings, variants, and how the measurements are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import nn

from experiments.lines import Panel
from kcal import metrics
from kcal.benchmark import Task
from kcal.benchmark.methods import new_calibrator, pool_outputs, predict_columns, projection_key, train_for
from kcal.benchmark.results import MAIN_METRICS, Row
from kcal.benchmark.store import task_fingerprint
from kcal.benchmark.table import Table
from kcal.benchmark.tasks import Split
from kcal.calibrators import Calibrator, fit_on
from kcal.projection import TrainedProjection

Values = Mapping[str, float | list[float]]
"""Measurements on one split, by name."""
Variant = Callable[[Split], Values]
"""Measures one variant on a split."""
Measured = Mapping[str, NDArray[np.float64]]
"""Measurements of one variant by name, (n_splits,), or (n_splits, n) for lists."""
Measurements = Mapping[str, Mapping[str, Measured]]
"""By the label of the setting, then by variant."""


class Setting(Protocol):
    """What variants are compared on: a label for tables, splits that all variants share, a checksum of the data."""

    @property
    def label(self) -> str: ...

    def splits(self, n_splits: int) -> list[Split]: ...

    def fingerprint(self) -> str: ...


@dataclass(frozen=True)
class StudyOutput:
    """Tables and panels of a study; ``columns`` panels per row of the figure."""

    tables: tuple[Table, ...] = ()
    panels: tuple[Panel, ...] = ()
    columns: int | None = None


@dataclass(frozen=True, eq=False)
class TaskSetting:
    """A task, split by row or by group."""

    task: Task
    seed: int = 0
    by_group: bool = False
    _projections: dict[str, TrainedProjection] = field(default_factory=dict, repr=False)

    @property
    def label(self) -> str:
        return Row(self.task.name, self.by_group).label

    def splits(self, n_splits: int) -> list[Split]:
        return self.task.splits(n_splits, self.seed, by_group=self.by_group)

    def fingerprint(self) -> str:
        return f"{task_fingerprint(self.task)}{self.by_group}"

    def projection(self, method: str = "kcal", **changes: Any) -> TrainedProjection:
        """Return the projection of a method, trained once with the parameters in ``changes`` in place of its own."""
        key = repr((projection_key(method, seed=self.seed), sorted(changes.items())))
        if key not in self._projections:
            trained = train_for(method, self.task, seed=self.seed, by_group=self.by_group, **changes)
            assert trained is not None
            self._projections[key] = trained
        return self._projections[key]

    def calibrator(self, method: str, **parameters: Any) -> Any:
        """Return an unfitted calibrator with some parameters; its projection is trained if it learns one."""
        calibrator = new_calibrator(method, seed=self.seed)
        if "projection" not in parameters and projection_key(method, seed=self.seed) is not None:
            parameters["projection"] = self.projection(method)
        if "progress" in calibrator.get_params():
            parameters["progress"] = False
        return calibrator.set_params(**parameters)

    def fit(self, calibrator: Any, split: Split, *, rows: Any = None, logits: bool = True) -> Fitted:
        """Fit on the calibration rows, or on some of them, and predict the test rows."""
        chosen = split.calibration if rows is None else rows
        calibration = pool_outputs("", self.task, chosen, by_group=self.by_group, labelled=True)
        test = pool_outputs("", self.task, split.test)
        if not logits:
            calibration, test = replace(calibration, logits=None), replace(test, logits=None)
        fit_on(calibrator, calibration)
        probs = predict_columns(calibrator, test, len(self.task.classes))
        return Fitted(calibrator, probs, self.task.pool.labels[split.test])

    def variant(
        self,
        method: str,
        parameters: Callable[[], Mapping[str, Any]] = dict,
        *,
        measure: Callable[[Fitted, Split], Values] = lambda fitted, _: fitted.metrics(),
        logits: bool = True,
    ) -> Variant:
        """Return a method as a variant; ``parameters`` is called when they are needed."""
        return lambda split: measure(self.fit(self.calibrator(method, **parameters()), split, logits=logits), split)

    def leave_one_out_loss(self, projection: TrainedProjection | nn.Module, split: Split) -> float:
        """Return KCal's leave-one-out log-loss on the calibration rows, at the best bandwidth and checkpoint."""
        calibrator = self.calibrator("kcal", projection=projection)
        fit_on(calibrator, pool_outputs("", self.task, split.calibration, labelled=True))
        return float(calibrator.bandwidth_curve_.loss)


@dataclass(frozen=True)
class Fitted:
    """A calibrator fitted on the calibration rows of a split, and its probabilities for the test rows."""

    calibrator: Calibrator | Any
    probs: NDArray[Any]
    labels: NDArray[np.int64]

    def metrics(self) -> dict[str, float]:
        return main_metrics(self.probs, self.labels)


def main_metrics(probs: NDArray[Any], labels: NDArray[np.int64]) -> dict[str, float]:
    every = metrics.evaluate(probs, labels, protocol="paper").as_dict()
    return {name: every[name] for name in MAIN_METRICS}


def by_row(tasks: Iterable[Task], seed: int) -> Iterator[TaskSetting]:
    """Yield every task, split by row."""
    yield from (TaskSetting(task, seed) for task in tasks)


def by_row_and_group(tasks: Iterable[Task], seed: int) -> Iterator[TaskSetting]:
    """Yield every task, split by row and, if it has enough groups, by group."""
    for task in tasks:
        for by_group in (False, True) if task.can_split_groups else (False,):
            yield TaskSetting(task, seed, by_group)


@dataclass(frozen=True)
class Study:
    """A comparison of variants on the same splits; ``texts/NAME.md`` explains it.

    Attributes
    ----------
    variants : callable
        Returns the variants for a setting, by name.
    show : callable
        Makes tables and panels from the measurements of all settings.
    settings : callable
        Returns the settings for tasks and a seed.
    max_splits : int, optional
        Number of splits that the study uses at most.
    """

    name: str
    title: str
    variants: Callable[[Any], Mapping[str, Variant]]
    show: Callable[[Measurements], StudyOutput]
    settings: Callable[[Iterable[Task], int], Iterable[Setting]] = by_row
    max_splits: int | None = None

    @property
    def about(self) -> str:
        return text_of(self.name)


def text_of(name: str) -> str:
    """Return the text NAME.md."""
    return (Path(__file__).parent / "texts" / f"{name}.md").read_text(encoding="utf-8").strip()
