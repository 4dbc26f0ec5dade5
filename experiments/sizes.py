"""What more calibration data bring, and how the bandwidth follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kcal.benchmark.entrants import Entrant, train_for
from kcal.benchmark.results import MEASURES
from kcal.benchmark.studies.measuring import Values, deals_of, fit_quietly, gathered, shown_metrics
from kcal.benchmark.studies.study import (
    SHOWN,
    Line,
    Panel,
    Study,
    StudyWatch,
    counted,
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
DECADE = 10.0
COLUMNS = len(SHOWN) + 1
"""Of the figure: a row is a task."""
ABOUT = (
    "KCal fitted on more and more of each calibration set, the projection trained once. The dashed line is the "
    "network as it is. The theory has the bandwidth fall as m^(−1/(d + 4)), m being the samples of the rarest "
    "class; the constant is the median of b over that power. Where metrics are measured, each part of a calibration "
    "set picks its own checkpoint of the projection. Checkpoints differ in scale, so that their bandwidths cannot be "
    "compared: bandwidths are those of one checkpoint, the one that the first calibration set picks as a whole. A "
    "class of which a part holds no sample gets probability 0 there, which the NLL punishes hard."
)


@dataclass(frozen=True, eq=False)
class Sizes:
    """KCal fitted on more and more of a task's calibration set; values are (n_sizes, n_reshuffles).

    Metrics are of a projection chosen anew for every part; bandwidths are of one projection.
    """

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

    @property
    def slope(self) -> float:
        """The power of m that the chosen bandwidths follow: the least-squares slope of log b on log m."""
        if np.ptp(self.rarest) == 0:
            return float("nan")
        return float(np.polyfit(np.log(self.rarest.ravel()), np.log(self.bandwidths.ravel()), 1)[0])

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
        theory = -1 / (self.dimension + 4)
        note = f"Fitted: b in proportion to m^({self.slope:.3f}); theory: m^({theory:.3f})."
        title = f"{self.task}: bandwidth of one projection by calibration samples"
        return Table("bandwidths", title, heading, rows, note.replace("-", "−"))

    def panels(self) -> tuple[Panel, ...]:
        """Return a panel for each metric, the uncalibrated network as a line across, and one of the bandwidth."""
        ends = (float(self.sizes[0]), float(self.sizes[-1]))
        shown = []
        for name in SHOWN:
            level = float(MEASURES[name].scale * self.uncalibrated[name].mean())
            lines = (
                spread_line("KCal", self.sizes, self.values[name], name),
                Line("uncalibrated", ends, (level, level), reference=True),
            )
            wide = spans_decades(lines)
            shown.append(Panel(self.task, "calibration samples", metric_label(name), lines, x_log=True, y_log=wide))
        order = np.argsort(self.rarest.ravel(), kind="stable")
        counts = self.rarest.ravel()[order]
        law = self.constant * self.predicted.ravel()[order]
        of_bandwidth = (
            Line("chosen", _floats(counts), _floats(self.bandwidths.ravel()[order]), points=True),
            Line(f"{self.constant:.3g}·m^(−1/{self.dimension + 4})", _floats(counts), _floats(law), reference=True),
            *self._fitted(counts),
        )
        label = "m, samples of the rarest class"
        return (*shown, Panel(self.task, label, "bandwidth b", of_bandwidth, x_log=True, y_log=True))

    def _fitted(self, counts: NDArray[np.float64]) -> tuple[Line, ...]:
        """Return the power of m that fits the chosen bandwidths, if there is one."""
        if np.isnan(self.slope):
            return ()
        level = float(np.mean(np.log(self.bandwidths)) - self.slope * np.mean(np.log(self.rarest)))
        ends = counts[[0, -1]]
        label = f"fitted: m^({self.slope:.3f})".replace("-", "−")
        return (Line(label, _floats(ends), _floats(np.exp(level + self.slope * np.log(ends))), plain=True),)


def spans_decades(lines: tuple[Line, ...]) -> bool:
    """Say whether what is drawn differs so much that a plain axis would hide the lower end."""
    heights = [height for line in lines for height in line.y]
    return 0 < DECADE * min(heights) < max(heights)


def study_sizes(tasks: Iterable[Task], *, reshuffles: int = 10, seed: int = 0, watch: StudyWatch = unwatched) -> Study:
    """Fit KCal on parts of the calibration set of every reshuffle."""
    found, total = [], reshuffles * len(SHARES)
    for task in tasks:
        watch(task.name, 0, total)
        found.append(
            measure_sizes(
                task,
                n_reshuffles=reshuffles,
                seed=seed,
                watch=lambda done, name=task.name: watch(name, done, total),  # type: ignore[misc]
            )
        )
    tables = tuple(table for each in found for table in (each.metrics_table(), each.bandwidth_table()))
    panels = tuple(panel for each in found for panel in each.panels())
    return Study("sizes", "More calibration data", counted(ABOUT, reshuffles), tables, panels, COLUMNS)


def measure_sizes(task: Task, *, n_reshuffles: int, seed: int, watch: Callable[[int], None] = lambda _: None) -> Sizes:
    """Fit KCal on parts of the calibration set of every reshuffle of a task; the projection is trained once."""
    entrant = Entrant("kcal", seed, train_for("kcal", task, seed=seed, by_group=False))
    plain = Entrant("uncal", seed)
    deals = deals_of(task, n_reshuffles, seed)
    sizes = np.array([max(round(share * len(deals[0].calibration)), 2) for share in SHARES])
    first = _fit(entrant, task, deals[0].calibration)
    fixed = Entrant("kcal", seed, first.projection_)
    values = {name: np.full((len(sizes), len(deals)), np.nan) for name in SHOWN}
    bandwidths, rarest = np.full((2, len(sizes), len(deals)), np.nan)
    as_it_is = []
    for column, deal in enumerate(deals):
        as_it_is.append(shown_metrics(plain, fit_quietly(plain, task, deal.calibration), task, deal.test))
        order = np.random.default_rng([seed, deal.index, 1]).permutation(deal.calibration)
        for row, size in enumerate(sizes):
            rows = np.sort(order[:size])
            for name, value in shown_metrics(entrant, _fit(entrant, task, rows), task, deal.test).items():
                values[name][row, column] = value
            counts = np.bincount(task.pool.labels[rows])
            bandwidths[row, column] = _fit(fixed, task, rows).bandwidth_
            rarest[row, column] = counts[counts > 0].min()
            watch(column * len(sizes) + row + 1)
    uncalibrated: Values = gathered(as_it_is)
    return Sizes(task.name, sizes, values, uncalibrated, bandwidths, rarest, first.dimension_)


def _fit(entrant: Entrant, task: Task, rows: NDArray[np.intp]) -> KCal:
    calibrator = fit_quietly(entrant, task, rows)
    assert isinstance(calibrator, KCal)
    return calibrator


def _floats(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
