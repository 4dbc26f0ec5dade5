"""What the dimension of the projected space changes, and what it costs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from kcal.benchmark.entrants import Entrant, train_for
from kcal.benchmark.running import on_one_thread
from kcal.benchmark.studies.measuring import Values, deals_of, fit_quietly, gathered, shown_metrics, warm_up
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
from kcal.benchmark.tasks import Task, example_task
from kcal.datasets import load_example
from kcal.datasets.network import IMAGE_SHAPE, SmallCNN
from kcal.projection import FastRecipe

DIMENSIONS = (8, 16, 32, 64, 128)
REPEATS = 7
"""Timings of a prediction, of which the median counts."""
IMAGES_AT_ONCE = 256
"""A batch in which the small network is fast; all images at once take it longer."""
DRAWN = ("classwise_calibration_error", "negative_log_likelihood")
ABOUT = (
    "KCal with more and more dimensions, up to those of the embedding. The default is as many as the embedding has, "
    f"but at most {FastRecipe().largest_dimension}. Seconds to train the projection and to fit are of one processor, "
    "and so are microseconds a prediction, from the embedding on; other work on the same machine makes them scatter."
)
ABOUT_THE_NETWORK = (
    "The embedded example's own network, a small one with some 108,000 parameters, is timed beside it, on as many "
    f"random images, in batches of {IMAGES_AT_ONCE}."
)


@dataclass(frozen=True, eq=False)
class Dimensions:
    """KCal by dimension on one task; ``network`` is the network's own microseconds a sample, where it is at hand."""

    task: str
    dimensions: tuple[int, ...]
    values: tuple[Values, ...]
    train_seconds: tuple[float, ...]
    fit_seconds: tuple[float, ...]
    microseconds: tuple[float, ...]
    network: float | None = None

    def table(self) -> Table:
        """Return dimensions as rows; metrics and times as columns."""
        rows = [
            (
                Entry(str(dimension)),
                *(mean_entry(self.values[place][name], name) for name in SHOWN),
                Entry(f"{self.train_seconds[place]:.1f}"),
                Entry(f"{self.fit_seconds[place]:.2f}"),
                Entry(f"{self.microseconds[place]:.1f}"),
            )
            for place, dimension in enumerate(self.dimensions)
        ]
        if self.network is not None:
            empty = [Entry("")] * (len(SHOWN) + 2)
            rows.append((Entry("the network itself"), *empty, Entry(f"{self.network:.1f}")))
        times = ("train, s", "fit, s", "predict, µs a sample")
        heading = ("d", *(metric_label(name) for name in SHOWN), *times)
        return Table("dimension", f"{self.task}: KCal by dimension", heading, tuple(rows))

    def panels(self) -> tuple[Panel, ...]:
        """Return a panel for each drawn metric, and one for the time."""
        axis = "dimension d"
        shown = [
            Panel(self.task, axis, metric_label(name), (self._line(name),), x_log=True, x_ticks=self.dimensions)
            for name in DRAWN
        ]
        at = tuple(float(dimension) for dimension in self.dimensions)
        lines = [Line("" if self.network is None else "KCal", at, self.microseconds)]
        if self.network is not None:
            lines.append(Line("the network itself", (at[0], at[-1]), (self.network, self.network), reference=True))
        time_panel = Panel(
            self.task, axis, "microseconds a sample", tuple(lines), x_log=True, y_log=True, x_ticks=self.dimensions
        )
        return (*shown, time_panel)

    def _line(self, metric: str) -> Line:
        return spread_line("", self.dimensions, np.array([values[metric] for values in self.values]), metric)


def study_dimension(
    tasks: Iterable[Task], *, reshuffles: int = 10, seed: int = 0, watch: StudyWatch = unwatched
) -> Study:
    """Train, fit and time KCal at every dimension that a task's embeddings have, and of the embedded example's."""
    found = []
    for task in _with_the_example(tasks):
        total = reshuffles * len(dimensions_of(task))
        watch(task.name, 0, total)
        found.append(
            measure_dimensions(
                task,
                n_reshuffles=reshuffles,
                seed=seed,
                watch=lambda done, name=task.name, of=total: watch(name, done, of),  # type: ignore[misc]
            )
        )
    panels = tuple(panel for each in found for panel in each.panels())
    tables = tuple(each.table() for each in found)
    return Study("dimension", "The dimension d", counted(f"{ABOUT} {ABOUT_THE_NETWORK}", reshuffles), tables, panels)


def _with_the_example(tasks: Iterable[Task]) -> Iterator[Task]:
    """Yield tasks, and last, if it is not among them, the embedded example: the one whose network is at hand."""
    names = set()
    for task in tasks:
        names.add(task.name)
        yield task
    if load_example().name not in names:
        yield example_task()


def dimensions_of(task: Task) -> tuple[int, ...]:
    """Return the dimensions to look at: none above the embedding's own, which is taken where all are."""
    width = task.pool.embeddings.shape[1]
    return tuple(d for d in DIMENSIONS if d <= width) or (width,)


def measure_dimensions(
    task: Task, *, n_reshuffles: int, seed: int, watch: Callable[[int], None] = lambda _: None
) -> Dimensions:
    """Measure KCal at every dimension, on one thread."""
    deals, dimensions = deals_of(task, n_reshuffles, seed), dimensions_of(task)
    values, train_seconds, fit_seconds, microseconds = [], [], [], []
    with on_one_thread():
        warm_up()
        for place, dimension in enumerate(dimensions):
            start = time.process_time()
            trained = train_for("kcal", task, seed=seed, by_group=False, dimension=dimension)
            train_seconds.append(time.process_time() - start)
            entrant, found, fits = Entrant("kcal", seed, trained), [], []
            for deal in deals:
                start = time.process_time()
                calibrator = fit_quietly(entrant, task, deal.calibration)
                fits.append(time.process_time() - start)
                found.append(shown_metrics(entrant, calibrator, task, deal.test))
                watch(place * len(deals) + len(found))
            values.append(gathered(found))
            fit_seconds.append(float(np.median(fits)))
            rows = deals[-1].test
            seconds = median_seconds(lambda of=calibrator, by=entrant, rows=rows: by.predict(of, task, rows))  # type: ignore[misc]
            microseconds.append(1e6 * seconds / len(rows))
        network = network_microseconds(len(rows)) if task.name == load_example().name else None
    times = (tuple(train_seconds), tuple(fit_seconds), tuple(microseconds))
    return Dimensions(task.name, dimensions, tuple(values), *times, network)


def network_microseconds(n_images: int) -> float:
    """Return the time a sample of the embedded example's network, on random images of its size."""
    network = SmallCNN()
    network.load_state_dict(load_example().network_weights())
    network.eval()
    images = torch.rand((n_images, *IMAGE_SHAPE), generator=torch.Generator().manual_seed(0))

    def run() -> None:
        with torch.inference_mode():
            for batch in torch.split(images, IMAGES_AT_ONCE):
                network(batch)

    return 1e6 * median_seconds(run) / n_images


def median_seconds(call: Callable[[], object]) -> float:
    """Return the median time of some calls, after one that does not count."""
    seconds = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a pool may hold a row twice
        for _ in range(1 + REPEATS):
            start = time.process_time()
            call()
            seconds.append(time.process_time() - start)
    return float(np.median(seconds[1:]))
