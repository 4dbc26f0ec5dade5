"""Tasks to measure on: the embedded example and those of a folder, each split once into calibration and test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kcal.benchmark import Task, example_task, read_tasks
from kcal.embeddings import ClassifierOutputs


def all_tasks(folder: Path | None) -> Iterator[Task]:
    """Yield the embedded example, then the tasks of a folder if there is one."""
    yield example_task()
    if folder is not None:
        yield from read_tasks(folder)


def split(task: Task, seed: int) -> tuple[ClassifierOutputs, ClassifierOutputs]:
    """Split the pool into calibration and test."""
    order = np.random.default_rng(seed).permutation(len(task.pool.labels))
    n_calibration = round(task.calibration_share * len(order))
    first, second = (
        ClassifierOutputs(task.pool.embeddings[rows], task.pool.logits[rows], task.pool.labels[rows])
        for rows in (order[:n_calibration], order[n_calibration:])
    )
    return first, second
