"""Samples that arrive one after the other: the bandwidth of a stream beside that of a fresh search at every size."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.lines import Line, Panel
from experiments.output import floats, level_line
from experiments.study import Measured, Measurements, Study, StudyOutput, TaskSetting, Values, Variant
from kcal import KCal
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tasks import Split
from kcal.metrics import negative_log_likelihood
from kcal.projection import project

N_SIZES = 30
SMALLEST = 100
MAX_TEST = 2_000
SMOOTHING = 1e-3
"""Share of the probability that is spread over all classes: in small sets many have no sample."""
STREAM, FRESH = "stream", "fresh search"
METRICS = {"directions": "unit", "learned": "identity"}
"""Metrics of the study, and the projection of the points that are passed to KCal."""


def sizes_of(n_calibration: int) -> list[int]:
    """Return the sizes at which both are compared, in equal steps of their logarithm."""
    steps = np.geomspace(min(SMALLEST, n_calibration), n_calibration, N_SIZES)
    return [int(size) for size in np.unique(steps.round())]


class Arrivals:
    """The calibration samples of a split in the order of their arrival, and test samples."""

    def __init__(self, setting: TaskSetting, split: Split, metric: str) -> None:
        pool, generator = setting.task.pool, np.random.default_rng([setting.seed, split.index, 2])
        order = generator.permutation(split.calibration)
        test = generator.permutation(split.test)[:MAX_TEST]
        points = pool.embeddings
        if metric == "learned":
            import torch

            rows = torch.from_numpy(np.asarray(points, dtype=np.float32))
            points = project(setting.projection().checkpoints[-1], rows).numpy()
        self.rows, self.labels = points[order], pool.labels[order]
        self.test, self.truth = points[test], pool.labels[test]
        self.classes, self.projection = range(len(setting.task.classes)), METRICS[metric]
        self.sizes = sizes_of(len(order))

    def calibrator(self) -> KCal:
        return KCal(projection=self.projection, smoothing=SMOOTHING, progress=False)

    def measure(self, calibrator_at: Callable[[int, int], Any]) -> Values:
        """Return log-loss and bandwidth at every size, and the processor time; arguments are the size and the last."""
        losses, bandwidths, seconds, last = [], [], [], 0
        for size in self.sizes:
            start = time.process_time()
            calibrator = calibrator_at(last, size)
            seconds.append(time.process_time() - start)
            probs: NDArray[Any] = calibrator.predict_proba(self.test)
            losses.append(float(negative_log_likelihood(probs, self.truth)))
            bandwidths.append(float(calibrator.bandwidth_history_[-1].bandwidth))
            last = size
        searches = sum(record.source == "search" for record in calibrator.bandwidth_history_)
        values: dict[str, float | list[float]] = {"loss": losses, "bandwidth": bandwidths, "seconds": seconds}
        return values | {"sizes": [float(size) for size in self.sizes], "searches": float(searches)}

    def stream(self) -> Values:
        """Measure one calibrator that all samples are added to; the first snapshot of a size is part of its time."""
        calibrator = self.calibrator()

        def at(last: int, size: int) -> Any:
            calibrator.partial_fit(self.rows[last:size], self.labels[last:size], classes=self.classes)
            return calibrator.frozen(complete=False)

        return self.measure(at)

    def fresh(self) -> Values:
        """Measure a calibrator that is fitted anew at every size."""
        return self.measure(
            lambda _, size: self.calibrator().fit(self.rows[:size], self.labels[:size], classes=self.classes)
        )


def variants(setting: TaskSetting) -> Mapping[str, Variant]:
    """Return the stream and the fresh search, in each metric."""

    def of(metric: str, name: str) -> Variant:
        def measure(split: Split) -> Values:
            arrivals = Arrivals(setting, split, metric)
            return arrivals.stream() if name == STREAM else arrivals.fresh()

        return measure

    return {f"{metric}, {name}": of(metric, name) for metric in METRICS for name in (STREAM, FRESH)}


def show(measured: Measurements) -> StudyOutput:
    rows, panels = [], []
    for label, by_variant in measured.items():
        for metric in METRICS:
            stream, fresh = (by_variant[f"{metric}, {name}"] for name in (STREAM, FRESH))
            excess = stream["loss"] / fresh["loss"] - 1.0  # (n_splits, n_sizes)
            share = float(stream["seconds"].sum() / fresh["seconds"].sum())
            later = float(stream["seconds"][:, 1:].sum() / fresh["seconds"][:, 1:].sum())
            changes = [f"{value:+.2%}".replace("-", "−") for value in (excess.max(), excess.min(), excess.mean())]
            times = (f"{fresh['seconds'].sum(axis=1).mean():.2f} s", f"{share:.1%}", f"{later:.1%}")
            texts = (f"{label}, {metric}", f"{stream['searches'].mean():.1f}", *changes, *times)
            rows.append(tuple(Entry(text) for text in texts))
            panels.append(loss_panel(f"{label}, {metric}", stream, fresh))
    heading = (
        "task, metric", "searches", "worst", "best", "mean", "time of fresh fits", "time of the stream",
        "after the first size",
    )  # fmt: skip
    note = (
        f"Difference of the log-loss on test samples from that of a fresh search, over {N_SIZES} sizes and all splits; "
        "processor time of all sizes, of updates and snapshots with their searches beside that of fits."
    )
    return StudyOutput(
        (Table("online", "A stream beside fresh searches", heading, tuple(rows), note),), tuple(panels), 2
    )


def loss_panel(title: str, stream: Measured, fresh: Measured) -> Panel:
    """Return the difference of the log-loss along the sizes, in percent, with a line per split."""
    sizes = floats(stream["sizes"][0])
    excess = 100.0 * (stream["loss"] / fresh["loss"] - 1.0)
    lines = [Line(f"split {place + 1}", sizes, floats(values)) for place, values in enumerate(excess)]
    return Panel(title, "samples", "log-loss, difference in %", (*lines, level_line("fresh search", sizes, 0.0)), True)


STUDY = Study("online", "Samples that arrive one after the other", variants, show, max_splits=3)
