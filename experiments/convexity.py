"""How the leave-one-out loss is shaped as a function of the bandwidth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.benchmark.entrants import Entrant, train_for
from kcal.benchmark.reshuffles import reshuffles_by_row
from kcal.benchmark.studies.study import Line, Panel, Study, StudyWatch, unwatched
from kcal.benchmark.tables import Entry, Table
from kcal.benchmark.tasks import Task
from kcal.calibrators import KCal
from kcal.kernels import LeaveOutLoss, sort_support
from kcal.projection import project

GRID = 41
"""Bandwidths at which the loss is looked at."""
ABOUT = (
    "The paper searches the bandwidth as if its cross-validation loss were convex. Here is the loss of the first "
    "reshuffle's calibration set from a quarter of the best bandwidth to three times it, on a grid of equal steps."
)


@dataclass(frozen=True, eq=False)
class LossShape:
    """The leave-one-out log-loss of a calibration set at evenly spaced bandwidths."""

    task: str
    bandwidths: NDArray[np.float64]
    losses: NDArray[np.float64]

    @property
    def best(self) -> float:
        """The bandwidth of the grid with the lowest loss."""
        return float(self.bandwidths[int(np.argmin(self.losses))])

    @property
    def valleys(self) -> int:
        """How many local minima there are."""
        inner = np.r_[np.inf, self.losses, np.inf]
        return int(((inner[1:-1] < inner[:-2]) & (inner[1:-1] <= inner[2:])).sum())

    @property
    def convex_between(self) -> tuple[float, float]:
        """The widest range of bandwidths around the minimum in which the loss is convex."""
        bends = np.diff(self.losses, 2) >= -1e-9 * np.ptp(self.losses)
        best = int(np.clip(np.argmin(self.losses), 1, len(self.losses) - 2)) - 1
        low = high = best
        while low > 0 and bends[low - 1]:
            low -= 1
        while high < len(bends) - 1 and bends[high + 1]:
            high += 1
        return float(self.bandwidths[low]), float(self.bandwidths[high + 2])

    def panel(self) -> Panel:
        """Return the curve, with the range in which it is convex as a line of its own."""
        low, high = self.convex_between
        inside = (self.bandwidths >= low) & (self.bandwidths <= high)
        lines = (
            Line("loss", tuple(self.bandwidths.tolist()), tuple(self.losses.tolist()), reference=True),
            Line("where it is convex", tuple(self.bandwidths[inside].tolist()), tuple(self.losses[inside].tolist())),
        )
        return Panel(self.task, "bandwidth b", "leave-one-out log-loss", lines)


def study_convexity(
    tasks: Iterable[Task], *, reshuffles: int = 1, seed: int = 0, watch: StudyWatch = unwatched
) -> Study:
    """Look at the loss of the first reshuffle of every task; the number of ``reshuffles`` does not matter."""
    shapes = []
    for task in tasks:
        watch(task.name, 0, GRID)
        shapes.append(loss_shape(task, seed=seed))
        watch(task.name, GRID, GRID)
    panels = tuple(shape.panel() for shape in shapes)
    return Study("convexity", "The shape of the bandwidth's loss", ABOUT, (shape_table(shapes),), panels)


def loss_shape(task: Task, *, seed: int) -> LossShape:
    """Return the loss from a quarter of the best bandwidth to three times it, on the first reshuffle."""
    trained = train_for("kcal", task, seed=seed, by_group=False)
    assert trained is not None
    deal = reshuffles_by_row(len(task.pool.labels), task.calibration_share, 1, seed)[0]
    calibrator = Entrant("kcal", seed, trained).fit(task, deal.calibration, by_group=False)
    assert isinstance(calibrator, KCal)
    points = project(calibrator.projection_, torch.from_numpy(task.pool.embeddings[deal.calibration]))
    codes = torch.from_numpy(task.pool.labels[deal.calibration])
    loss = LeaveOutLoss(sort_support(points, codes, len(task.classes)))
    bandwidths = np.linspace(0.25, 3.0, GRID) * float(calibrator.bandwidth_)
    return LossShape(task.name, bandwidths, np.array([loss(float(bandwidth)) for bandwidth in bandwidths]))


def shape_table(shapes: list[LossShape]) -> Table:
    """Return how the losses of some tasks are shaped."""
    rows = tuple(
        (
            Entry(shape.task),
            Entry(f"{shape.best:.3f}"),
            Entry(str(shape.valleys)),
            Entry(f"{shape.convex_between[0]:.3f} to {shape.convex_between[1]:.3f}"),
            Entry(f"{shape.bandwidths[0]:.3f} to {shape.bandwidths[-1]:.3f}"),
        )
        for shape in shapes
    )
    heading = ("task", "best b", "local minima", "convex between", "looked at")
    return Table("convexity", "The leave-one-out loss as a function of the bandwidth", heading, rows)
