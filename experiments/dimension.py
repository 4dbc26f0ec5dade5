"""The dimension of the projected space: metrics and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from experiments.lines import Line, Panel
from experiments.output import METRIC_LABELS, level_line, metric_entries, metric_panel, quartile_line
from experiments.study import Measurements, Study, StudyOutput, TaskSetting, Values, Variant, by_row
from kcal.benchmark import Task, example_task
from kcal.benchmark.methods import pool_outputs
from kcal.benchmark.results import MAIN_METRICS
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tasks import Split
from kcal.calibrators import predict_on
from kcal.datasets import load_example
from kcal.datasets.network import IMAGE_SHAPE
from kcal.projection import FastRecipe, PaperRecipe, TrainedProjection, train_projection

DIMENSIONS = (8, 16, 32, 64, 128)
REPEATS = 3
"""Timings of a prediction per split, of which the median counts."""
IMAGES_PER_BATCH = 256
NETWORK = "the network itself"
DRAWN = ("classwise_calibration_error", "negative_log_likelihood")
"""Metrics of the panels: the median and the middle half of the splits."""


def settings(tasks: Iterable[Task], seed: int) -> Iterator[TaskSetting]:
    """Yield the tasks and, if it is not among them, the embedded example, whose network can be timed."""
    names = set()
    for setting in by_row(tasks, seed):
        names.add(setting.task.name)
        yield setting
    if load_example().name not in names:
        yield TaskSetting(example_task(), seed)


def variants(setting: TaskSetting) -> Mapping[str, Variant]:
    """Return KCal by dimension, none above that of the embeddings, and the network of the embedded example."""
    width = setting.task.pool.embeddings.shape[1]
    dimensions = [d for d in DIMENSIONS if d <= width] or [width]
    by_name: dict[str, Variant] = {str(dimension): of_dimension(setting, dimension) for dimension in dimensions}
    if setting.task.name == load_example().name:
        by_name[NETWORK] = lambda split: {"microseconds": network_microseconds(len(split.test))}
    return by_name


def of_dimension(setting: TaskSetting, dimension: int) -> Variant:
    """Return KCal with some dimension; the projection is trained and timed once."""
    trained: list[tuple[TrainedProjection, float]] = []

    def measure(split: Split) -> Values:
        if not trained:
            warm_up()
            trained.append(timed(lambda: setting.projection(dimension=dimension)))
        projection, train_seconds = trained[0]
        fitted, fit_seconds = timed(lambda: setting.fit(setting.calibrator("kcal", projection=projection), split))
        test = pool_outputs("", setting.task, split.test)
        seconds = median_seconds(lambda: predict_on(fitted.calibrator, test))
        microseconds = 1e6 * seconds / len(split.test)
        return {**fitted.metrics(), "train": train_seconds, "fit": fit_seconds - seconds, "microseconds": microseconds}

    return measure


def warm_up() -> None:
    """Train on next to nothing with each recipe, so that nothing is loaded while something is timed."""
    points = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    for recipe in (FastRecipe(steps=1), PaperRecipe(epochs=1, batches_per_epoch=1)):
        train_projection(points, np.arange(16) % 2, recipe=recipe, progress=False)


def network_microseconds(n_images: int) -> float:
    """Return the time per sample of the embedded example's network, on random images of its size."""
    network = load_example().network()
    images = torch.rand((n_images, *IMAGE_SHAPE), generator=torch.Generator().manual_seed(0))

    def run() -> None:
        with torch.inference_mode():
            for batch in torch.split(images, IMAGES_PER_BATCH):
                network(batch)

    return 1e6 * median_seconds(run) / n_images


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call and its processor seconds."""
    start = time.process_time()
    return call(), time.process_time() - start


def median_seconds(call: Callable[[], object]) -> float:
    """Return the median processor seconds of some calls, after one that does not count."""
    return float(np.median([timed(call)[1] for _ in range(1 + REPEATS)][1:]))


def show(measured: Measurements) -> StudyOutput:
    """Return a table and panels of two metrics and of the time per task."""
    tables, panels = [], []
    for label, by_variant in measured.items():
        kcal = {name: values for name, values in by_variant.items() if name != NETWORK}
        rows = []
        for name, values in kcal.items():
            digits = {"train": 1, "fit": 2, "microseconds": 1}
            times = (Entry(f"{np.median(values[part]):.{places}f}") for part, places in digits.items())
            rows.append((Entry(name), *metric_entries(values), *times))
        dimensions = tuple(float(name) for name in kcal)
        microseconds = [float(np.median(values["microseconds"])) for values in kcal.values()]
        lines = [Line("KCal" if NETWORK in by_variant else "", dimensions, tuple(microseconds))]
        if NETWORK in by_variant:
            level = float(np.median(by_variant[NETWORK]["microseconds"]))
            rows.append((Entry(NETWORK), *[Entry("")] * (len(MAIN_METRICS) + 2), Entry(f"{level:.1f}")))
            lines.append(level_line(NETWORK, dimensions, level))
        heading = ("d", *METRIC_LABELS, "train, s", "fit, s", "predict, µs per sample")
        tables.append(Table("dimension", f"{label}: KCal by dimension", heading, tuple(rows)))
        by_dimension = list(kcal.values())
        panels += [
            metric_panel(label, "dimension d", dimensions, by_dimension, name, line=quartile_line) for name in DRAWN
        ]
        time_label = "microseconds per sample"
        panels.append(Panel(label, "dimension d", time_label, tuple(lines), True, True, dimensions))
    return StudyOutput(tuple(tables), tuple(panels))


STUDY = Study("dimension", "The dimension d", variants, show, settings)
