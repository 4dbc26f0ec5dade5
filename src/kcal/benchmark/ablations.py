"""Studies of KCal itself: what more calibration data bring, how the bandwidth follows, and how its loss is shaped."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kcal import metrics
from kcal.benchmark.entrants import Entrant, train_for
from kcal.benchmark.reshuffles import reshuffles_by_row
from kcal.benchmark.tables import Entry, Table
from kcal.benchmark.tasks import Task
from kcal.calibrators import KCal
from kcal.kernels import LeaveOutLoss, sort_support
from kcal.progress import Advance
from kcal.projection import project

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Of the calibration set, in the study of sizes."""
SHOWN = {
    "accuracy": "accuracy, %",
    "classwise_calibration_error": "CECE, %",
    "expected_calibration_error": "ECE, %",
    "top_label_brier_loss": "Brier, %",
    "negative_log_likelihood": "NLL",
}
GRID = 41
"""Bandwidths at which the shape of the loss is looked at."""


def _silent(note: str = "") -> None:
    """Show nothing."""


@dataclass(frozen=True, eq=False)
class SizeStudy:
    """KCal fitted on more and more of the calibration set; values are (n_sizes, n_reshuffles)."""

    task: str
    sizes: NDArray[np.intp]
    values: dict[str, NDArray[np.float64]]
    uncalibrated: dict[str, float]
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
            (Entry(f"{size:,}"), *(Entry(_text(self.values[name][place], name)) for name in SHOWN))
            for place, size in enumerate(self.sizes)
        ]
        rows.append(
            (Entry("uncalibrated"), *(Entry(_text(np.array([self.uncalibrated[name]]), name)) for name in SHOWN))
        )
        return Table("sizes", f"{self.task}: KCal by calibration samples", ("samples", *SHOWN.values()), tuple(rows))

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


def study_sizes(task: Task, *, n_reshuffles: int, seed: int, advance: Advance = _silent) -> SizeStudy:
    """Fit KCal on parts of the calibration set of every reshuffle; the projection is trained once."""
    entrant = Entrant("kcal", seed, train_for("kcal", task, seed=seed, by_group=False))
    deals = reshuffles_by_row(len(task.pool.labels), task.calibration_share, n_reshuffles, seed)
    sizes = np.array([max(round(share * len(deals[0].calibration)), 2) for share in SHARES])
    values = {name: np.full((len(sizes), len(deals)), np.nan) for name in SHOWN}
    bandwidths, rarest = np.full((2, len(sizes), len(deals)), np.nan)
    uncalibrated, dimension = [], 0
    for column, deal in enumerate(deals):
        labels = task.pool.labels[deal.test]
        plain = Entrant("uncal", seed)
        fitted = plain.fit(task, deal.calibration, by_group=False)
        uncalibrated.append(metrics.evaluate(plain.predict(fitted, task, deal.test), labels).as_dict())
        order = np.random.default_rng([seed, deal.index, 1]).permutation(deal.calibration)
        for row, size in enumerate(sizes):
            rows = np.sort(order[:size])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # small parts miss classes
                calibrator = entrant.fit(task, rows, by_group=False)
            assert isinstance(calibrator, KCal)
            found = metrics.evaluate(entrant.predict(calibrator, task, deal.test), labels).as_dict()
            for name in SHOWN:
                values[name][row, column] = found[name]
            counts = np.bincount(task.pool.labels[rows])
            bandwidths[row, column], rarest[row, column] = calibrator.bandwidth_, counts[counts > 0].min()
            dimension = calibrator.dimension_
            advance(f"{size:,} samples")
    means = {name: float(np.mean([each[name] for each in uncalibrated])) for name in SHOWN}
    return SizeStudy(task.name, sizes, values, means, bandwidths, rarest, dimension)


@dataclass(frozen=True, eq=False)
class LossShape:
    """The leave-one-out log-loss of a calibration set at evenly spaced bandwidths."""

    task: str
    bandwidths: NDArray[np.float64]
    losses: NDArray[np.float64]

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


def study_shape(task: Task, *, seed: int) -> LossShape:
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
            Entry(f"{shape.bandwidths[int(np.argmin(shape.losses))]:.3f}"),
            Entry(str(shape.valleys)),
            Entry(f"{shape.convex_between[0]:.3f} to {shape.convex_between[1]:.3f}"),
            Entry(f"{shape.bandwidths[0]:.3f} to {shape.bandwidths[-1]:.3f}"),
        )
        for shape in shapes
    )
    heading = ("task", "best b", "local minima", "convex between", "looked at")
    return Table("convexity", "The leave-one-out loss as a function of the bandwidth", heading, rows)


def _text(values: NDArray[np.float64], name: str) -> str:
    scale, digits = (1.0, 4) if name == "negative_log_likelihood" else (100.0, 2)
    mean = f"{scale * values.mean():.{digits}f}"
    return f"{mean}±{scale * values.std(ddof=1):.{digits}f}" if len(values) > 1 else mean
