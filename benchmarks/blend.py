"""The blend beside KCal: time of a prediction in the same metrics, of the fit, and losses of a bandwidth search."""

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
from kcal.kernels import LeaveOutLoss


def measure(task: Task) -> tuple[str, ...]:
    calibration, test = split(task, 1)
    start = time.perf_counter()
    blend = fit_on(KCalBlend(progress=None), calibration, task.train)
    seconds = time.perf_counter() - start
    assert isinstance(blend, KCalBlend)
    experts = blend.model_.experts
    estimates = [
        KCal(projection=expert.projection).fit(calibration.embeddings, calibration.labels) for expert in experts
    ]
    contenders = {
        "blend": lambda: predict_on(blend, test),
        "estimates": lambda: [estimate.predict_proba(test.embeddings) for estimate in estimates],
    }
    times = take_turns(contenders, rounds=5)
    loss = LeaveOutLoss(experts[0].support)
    one = typical(take_turns({"loss": lambda: loss(experts[0].bandwidth)}, rounds=5)["loss"])
    return (
        task.name,
        ", ".join(expert.metric for expert in experts),
        f"{typical(times['blend']):.3f}",
        f"{typical(times['blend'] / times['estimates']):.2f}",
        ", ".join(str(len(estimate.bandwidth_curve_.losses)) for estimate in estimates),
        f"{seconds:.1f}",
        f"{one:.3f}",
    )


def main(console: Console, tasks: Path | None = None) -> None:
    """Print both times on the embedded example and on the tasks of a folder."""
    table = Table(
        "task",
        "metrics",
        "prediction, s",
        "over KCal's in the same metrics",
        "losses of each bandwidth search",
        "fit, s",
        "one loss, s",
    )
    table.title = "The blend (wanted: a prediction at most 1.2 times KCal's, at most 20 losses per search)"
    for task in all_tasks(tasks):
        table.add_row(*measure(task))
    console.print(table)
