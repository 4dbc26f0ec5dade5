"""Tasks to measure on: the embedded example and those of a folder, each split once into calibration and test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kcal.benchmark import Task, example_task, read_tasks
from kcal.benchmark.methods import pool_outputs
from kcal.embeddings import ClassifierOutputs


def all_tasks(folder: Path | None) -> Iterator[Task]:
    """Yield the embedded example, then the tasks of a folder if there is one."""
    yield example_task()
    if folder is not None:
        yield from read_tasks(folder)


def split(task: Task, seed: int) -> tuple[ClassifierOutputs, ClassifierOutputs]:
    """Split the pool into calibration and test."""
    (rows,) = task.splits(1, seed)
    return pool_outputs("", task, rows.calibration, labelled=True), pool_outputs("", task, rows.test, labelled=True)
