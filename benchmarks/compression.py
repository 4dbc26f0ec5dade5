"""A million support points merged to 20,000: seconds, times faster, and the log-loss of both."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import take_turns, typical
from benchmarks.tasks import split
from kcal import KCal
from kcal.benchmark import Task, example_task, read_tasks
from kcal.embeddings import ClassifierOutputs
from kcal.metrics import negative_log_likelihood

N_POINTS, SIZE, N_QUERIES, N_TIMED = 1_000_000, 20_000, 2_000, 1_000
FITTED = 20_000
"""Points on which the bandwidth of all is searched; the power law leads to that of all."""
NOISE = 0.5
"""Standard deviation of the noise, in units of that of the directions of a class."""
Rows = NDArray[np.float32]


def resample(outputs: ClassifierOutputs, n: int, seed: int) -> tuple[Rows, NDArray[np.int64], NDArray[np.int64]]:
    """Return directions of randomly drawn embeddings with noise, their labels, and the embeddings drawn."""
    generator = np.random.default_rng(seed)
    rows = np.asarray(outputs.embeddings, dtype=np.float32)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    labels = np.asarray(outputs.labels)
    centred = rows - np.stack([rows[labels == k].mean(axis=0) for k in range(labels.max() + 1)])[labels]
    chosen = generator.integers(0, len(rows), n)
    noise = generator.standard_normal((n, rows.shape[1]), dtype=np.float32)
    return rows[chosen] + NOISE * centred.std(axis=0) * noise, labels[chosen], chosen


def measure(task: Task, console: Console) -> None:
    """Print the table of one task."""
    calibration, test = split(task, 0)
    points, labels, groups = resample(calibration, N_POINTS, 0)  # copies of an embedding must not predict each other
    queries, answers, _ = resample(test, N_QUERIES, 1)
    part = KCal(projection="unit").fit(points[:FITTED], labels[:FITTED], groups=groups[:FITTED])
    rule = {"bandwidth": "rule", "bandwidth_reference": (part.bandwidth_, part.bandwidth_history_[-1].size)}
    full = KCal(projection="unit", **rule).fit(points, labels, groups=groups)
    start = time.perf_counter()
    small = full.compress(SIZE)
    seconds = time.perf_counter() - start
    times = take_turns(
        {
            "full": lambda: full.predict_proba(queries[:N_TIMED]),
            "small": lambda: small.predict_proba(queries[:N_TIMED]),
        },
        rounds=3,
    )
    before, after = (negative_log_likelihood(each.predict_proba(queries), answers) for each in (full, small))
    table = Table("points", "merged to", "seconds", "times faster", "log-loss before", "after", title=task.name)
    table.add_row(
        f"{N_POINTS:,}", f"{small.support_size_:,}", f"{seconds:.0f}", f"{typical(times['full'] / times['small']):.0f}",
        f"{before:.4f}", f"{after:.4f} ({100 * (after / before - 1):+.1f}%)",
    )  # fmt: skip
    console.print(table)


def main(console: Console, tasks: Path | None = None) -> None:
    """Measure the first task of a folder, or the embedded example; wanted: under 300 s, 30 times, within 1 %."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measure(example_task() if tasks is None else next(iter(read_tasks(tasks))), console)
