"""The blend beside KCal: time of a prediction in the same metric, and of the fit."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.measuring import take_turns, typical
from benchmarks.tasks import all_tasks, split
from kcal import KCal, KCalBlend
from kcal.benchmark import Task
from kcal.calibrators import fit_on, predict_on


def measure(task: Task) -> tuple[str, ...]:
    calibration, test = split(task, 1)
    start = time.perf_counter()
    blend = fit_on(KCalBlend(), calibration)
    seconds = time.perf_counter() - start
    metric = blend.model_.config["projection"]["architecture"]
    estimate = fit_on(KCal(projection=metric), calibration)
    contenders = {"blend": lambda: predict_on(blend, test), "estimate": lambda: predict_on(estimate, test)}
    times = take_turns(contenders, rounds=5)
    ratio = typical(times["blend"] / times["estimate"])
    return task.name, metric, f"{typical(times['blend']):.3f}", f"{ratio:.2f}", f"{seconds:.1f}"


def main(console: Console, tasks: Path | None = None) -> None:
    """Print both times on the embedded example and on the tasks of a folder."""
    table = Table("task", "metric", "prediction, s", "over KCal's in the same metric", "fit, s")
    table.title = "The blend (wanted: a prediction at most 1.2 times KCal's)"
    for task in all_tasks(tasks):
        table.add_row(*measure(task))
    console.print(table)
