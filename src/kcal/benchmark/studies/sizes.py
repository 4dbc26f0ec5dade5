"""What more calibration data bring, and how the bandwidth follows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kcal import metrics
from kcal.benchmark.entrants import Entrant, train_for
from kcal.benchmark.reshuffles import reshuffles_by_row
from kcal.benchmark.results import MEASURES
from kcal.benchmark.studies.study import (
    SHOWN,
    Line,
    Panel,
    Study,
    StudyWatch,
    mean_entry,
    metric_label,
    spread_line,
    unwatched,
)
from kcal.benchmark.tables import Entry, Table
from kcal.benchmark.tasks import Task
from kcal.calibrators import KCal

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Of the calibration set."""
ABOUT = (
    "KCal fitted on more and more of each calibration set, the projection trained once. The dashed line is the "
    "network as it is. The theory has the bandwidth fall as m^(−1/(d + 4)), m being the samples of the rarest "
    "class; the constant is the median of b over that power."
)


@dataclass(frozen=True, eq=False)
class Sizes:
    """KCal fitted on more and more of a task's calibration set; values are (n_sizes, n_reshuffles)."""

    task: str
    sizes: NDArray[np.intp]
    values: dict[str, NDArray[np.float64]]
    uncalibrated: dict[str, NDArray[np.float64]]  # (n_reshuffles,)
    bandwidths: NDArray[np.float64]
    rarest: NDArray[np.float64]  # samples of the rarest class
    dimension: int

    @property
    def predicted(self) -> NDArray[np.float64]:
        """m^(−1/(d + 4)), to which the theory has the bandwidth grow in proportion; m counts the rarest class."""
        return np.asarray(self.rarest ** (-1 / (self.dimension + 4)))

    @property
    def constant(self) -> float:
        """The factor of proportion: the median of b over what it is to be in proportion to."""
        return float(np.median(self.bandwidths / self.predicted))

    def metrics_table(self) -> Table:
        """Return metrics by size, with the uncalibrated network below."""
        rows = [
            (Entry(f"{size:,}"), *(mean_entry(self.values[name][place], name) for name in SHOWN))
            for place, size in enumerate(self.sizes)
        ]
        rows.append((Entry("uncalibrated"), *(mean_entry(self.uncalibrated[name], name) for name in SHOWN)))
        heading = ("samples", *(metric_label(name) for name in SHOWN))
        return Table("sizes", f"{self.task}: KCal by calibration samples", heading, tuple(rows))

    def bandwidth_table(self) -> Table:
        """Return chosen bandwidths beside those that the power law predicts from the constant."""
        rows = tuple(
            (
                Entry(f"{size:,}"),
                Entry(f"{np.median(self.rarest[place]):.0f}"),
                Entry(f"{np.median(self.bandwidths[place]):.3f}"),
                Entry(f"{self.constant * np.median(self.predicted[place]):.3f}"),
            )
            for place, size in enumerate(self.sizes)
        )
        heading = ("samples", "rarest class", "b chosen", f"{self.constant:.3f}·m^(−1/{self.dimension + 4})")
        return Table("bandwidths", f"{self.task}: bandwidth by calibration samples", heading, rows)

    def panels(self) -> tuple[Panel, ...]:
        """Return a panel a metric, the uncalibrated network as a line across, and one of the bandwidth."""
        ends = (float(self.sizes[0]), float(self.sizes[-1]))
        shown = []
        for name in SHOWN:
            level = float(MEASURES[name].scale * self.uncalibrated[name].mean())
            lines = (
                spread_line("KCal", self.sizes, self.values[name], name),
                Line("uncalibrated", ends, (level, level), reference=True),
            )
            shown.append(Panel(self.task, "calibration samples", metric_label(name), lines, x_log=True))
        order = np.argsort(self.rarest.ravel(), kind="stable")
        counts = self.rarest.ravel()[order]
        law = self.constant * self.predicted.ravel()[order]
        lines = (
            Line("chosen", _floats(counts), _floats(self.bandwidths.ravel()[order]), points=True),
            Line(f"{self.constant:.3g}·m^(−1/{self.dimension + 4})", _floats(counts), _floats(law), reference=True),
        )
        label = "m, samples of the rarest class"
        return (*shown, Panel(self.task, label, "bandwidth b", lines, x_log=True, y_log=True))


def study_sizes(tasks: Iterable[Task], *, reshuffles: int = 10, seed: int = 0, watch: StudyWatch = unwatched) -> Study:
    """Fit KCal on parts of the calibration set of every reshuffle."""
    found = [
        measure_sizes(
            task,
            n_reshuffles=reshuffles,
            seed=seed,
            watch=lambda done, name=task.name: watch(name, done, reshuffles * len(SHARES)),  # type: ignore[misc]
        )
        for task in tasks
    ]
    tables = tuple(table for each in found for table in (each.metrics_table(), each.bandwidth_table()))
    panels = tuple(panel for each in found for panel in each.panels())
    return Study("sizes", "More calibration data", ABOUT, tables, panels)


def measure_sizes(task: Task, *, n_reshuffles: int, seed: int, watch: Callable[[int], None] = lambda _: None) -> Sizes:
    """Fit KCal on parts of the calibration set of every reshuffle of a task; the projection is trained once."""
    entrant = Entrant("kcal", seed, train_for("kcal", task, seed=seed, by_group=False))
    deals = reshuffles_by_row(len(task.pool.labels), task.calibration_share, n_reshuffles, seed)
    sizes = np.array([max(round(share * len(deals[0].calibration)), 2) for share in SHARES])
    values = {name: np.full((len(sizes), len(deals)), np.nan) for name in SHOWN}
    uncalibrated = {name: np.full(len(deals), np.nan) for name in SHOWN}
    bandwidths, rarest = np.full((2, len(sizes), len(deals)), np.nan)
    dimension = 0
    for column, deal in enumerate(deals):
        labels = task.pool.labels[deal.test]
        plain = Entrant("uncal", seed)
        fitted = plain.fit(task, deal.calibration, by_group=False)
        as_it_is = metrics.evaluate(plain.predict(fitted, task, deal.test), labels).as_dict()
        order = np.random.default_rng([seed, deal.index, 1]).permutation(deal.calibration)
        for row, size in enumerate(sizes):
            rows = np.sort(order[:size])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # small parts miss classes
                calibrator = entrant.fit(task, rows, by_group=False)
            assert isinstance(calibrator, KCal)
            found = metrics.evaluate(entrant.predict(calibrator, task, deal.test), labels).as_dict()
            for name in SHOWN:
                values[name][row, column], uncalibrated[name][column] = found[name], as_it_is[name]
            counts = np.bincount(task.pool.labels[rows])
            bandwidths[row, column], rarest[row, column] = calibrator.bandwidth_, counts[counts > 0].min()
            dimension = calibrator.dimension_
            watch(column * len(sizes) + row + 1)
    return Sizes(task.name, sizes, values, uncalibrated, bandwidths, rarest, dimension)


def _floats(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
