"""Every method beside temperature scaling: seconds to fit and to predict, and test log-loss."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from statistics import mean, median

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.tasks import all_tasks, split
from kcal.benchmark import Task
from kcal.calibrators import METHODS, fit_on, make_calibrator, predict_on
from kcal.calibrators.registry import SLOW
from kcal.embeddings import ClassifierOutputs
from kcal.metrics import negative_log_likelihood

SEEDS = (0, 1, 2)
"""Of the splits. Some defaults were chosen after seeing these tasks, though not by these figures."""
NAMES = [name for name, method in METHODS.items() if method.cost < SLOW]
Figures = tuple[float, float, float]


def measure(name: str, train: ClassifierOutputs, calibration: ClassifierOutputs, test: ClassifierOutputs) -> Figures:
    """Return seconds to fit, seconds to predict, and the log-loss of the test set."""
    calibrator = make_calibrator(name)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit_on(calibrator, calibration, train)
        fitted = time.perf_counter()
        probabilities = predict_on(calibrator, test)
    return fitted - start, time.perf_counter() - fitted, negative_log_likelihood(probabilities, test.labels)


def measure_task(task: Task, console: Console) -> dict[str, Figures]:
    """Return the median times and the mean log-loss of every method over the splits."""
    figures = {}
    for name in track(NAMES, description=task.name, console=console, transient=True):
        runs = [measure(name, task.train, *split(task, seed)) for seed in SEEDS]
        fits, predictions, losses = zip(*runs, strict=True)
        figures[name] = (median(fits), median(predictions), mean(losses))
    return figures


def main(console: Console, tasks: Path | None = None) -> None:
    """Print one table per task, and the mean ratio of each log-loss to that of temperature scaling."""
    ratios: dict[str, list[float]] = {name: [] for name in NAMES}
    for task in all_tasks(tasks):
        figures = measure_task(task, console)
        fit, predict, loss = figures["ts"]
        table = Table("method", "fit, s", "over ts", "predict, s", "over ts", "test NLL", "over ts", title=task.name)
        for name, (fits, predicts, losses) in figures.items():
            ratios[name].append(losses / loss)
            table.add_row(
                name, f"{fits:.3f}", f"{fits / fit:.0f}", f"{predicts:.3f}", f"{predicts / predict:.1f}",
                f"{losses:.4f}", f"{losses / loss:.3f}",
            )  # fmt: skip
        console.print(table)
    summary = Table("method", "NLL over ts, mean of all tasks", title="Target: at most 1.01")
    for name, values in ratios.items():
        summary.add_row(name, f"{mean(values):.3f}")
    console.print(summary)
