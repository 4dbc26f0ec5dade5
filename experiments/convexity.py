"""The shape of the leave-one-out loss as a function of the bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.lines import Line, Panel
from experiments.output import floats
from experiments.study import Fitted, Measurements, Study, StudyOutput, TaskSetting, Values, Variant
from kcal.benchmark import Task
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tasks import Split
from kcal.kernels import LeaveOutLoss, sort_support
from kcal.projection import project

GRID = np.linspace(0.25, 3.0, 41)
"""Bandwidths as multiples of the chosen one."""


def variants(setting: TaskSetting) -> Mapping[str, Variant]:
    return {"kcal": setting.variant("kcal", measure=partial(losses_on_grid, setting.task))}


def losses_on_grid(task: Task, fitted: Fitted, split: Split) -> Values:
    """Return KCal's leave-one-out loss on a grid of bandwidths."""
    kcal, rows = fitted.calibrator, split.calibration
    points = project(kcal.projection_, torch.from_numpy(task.pool.embeddings[rows]))
    loss = LeaveOutLoss(sort_support(points, torch.from_numpy(task.pool.labels[rows]), len(task.classes)))
    bandwidths = [float(bandwidth) for bandwidth in GRID * float(kcal.bandwidth_)]
    return {"bandwidths": bandwidths, "losses": [float(loss(bandwidth)) for bandwidth in bandwidths]}


def n_minima(losses: NDArray[np.float64]) -> int:
    padded = np.r_[np.inf, losses, np.inf]
    return int(((padded[1:-1] < padded[:-2]) & (padded[1:-1] <= padded[2:])).sum())


def convex_range(losses: NDArray[np.float64]) -> tuple[int, int]:
    """Return the first and last place of the widest range around the minimum in which the losses are convex."""
    convex = np.diff(losses, 2) >= -1e-9 * np.ptp(losses)
    low = high = int(np.clip(np.argmin(losses), 1, len(losses) - 2)) - 1
    while low > 0 and convex[low - 1]:
        low -= 1
    while high < len(convex) - 1 and convex[high + 1]:
        high += 1
    return low, high + 2


def show(measured: Measurements) -> StudyOutput:
    """Return a table of all tasks, and the curve of each with its convex range."""
    rows, panels = [], []
    for label, by_variant in measured.items():
        bandwidths, losses = (by_variant["kcal"][name][0] for name in ("bandwidths", "losses"))
        low, high = convex_range(losses)
        texts = [label, f"{bandwidths[int(np.argmin(losses))]:.3f}", str(n_minima(losses))]
        texts += [f"{bandwidths[a]:.3f} to {bandwidths[b]:.3f}" for a, b in ((low, high), (0, -1))]
        rows.append(tuple(map(Entry, texts)))
        lines = (
            Line("loss", floats(bandwidths), floats(losses), reference=True),
            Line("convex range", floats(bandwidths[low : high + 1]), floats(losses[low : high + 1])),
        )
        panels.append(Panel(label, "bandwidth b", "leave-one-out log-loss", lines))
    heading = ("task", "best b", "local minima", "convex range", "grid")
    table = Table("convexity", "The leave-one-out loss as a function of the bandwidth", heading, tuple(rows))
    return StudyOutput((table,), tuple(panels))


STUDY = Study("convexity", "The shape of the bandwidth's loss", variants, show, max_splits=1)
