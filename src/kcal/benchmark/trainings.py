"""Train the projections of a benchmark; those that take an hour are kept beside the results, and found by a later run.

``projections/TASK-row-KEY.kcal`` or ``-group-``: KEY is a checksum of all that the training depends on: the data, the
recipe, the seed, the code that trains, and the versions of torch and numpy. The code that measures plays no part, so
that results can be measured again without another training.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import NamedTuple

from kcal.benchmark.methods import BENCHMARK_METHODS, projection_key, train_for
from kcal.benchmark.store import code_fingerprint, task_fingerprint, versions
from kcal.benchmark.tasks import Task
from kcal.calibrators.registry import SLOW
from kcal.errors import KcalError
from kcal.files import write_whole
from kcal.persistence import load, save
from kcal.projection import TrainedProjection

FOLDER = "projections"
TRAINING_CODE = ("validation.py", "projection")
TRAINING_PACKAGES = ("torch", "numpy")


class Training(NamedTuple):
    """A trained projection, and the seconds that its training took."""

    projection: TrainedProjection
    seconds: float


def train(name: str, task: Task, *, seed: int, by_group: bool, folder: Path) -> Training:
    """Return the projection of a method; of a slow one the training that the folder holds, or a new one, kept there."""
    path = kept_path(name, task, seed=seed, by_group=by_group, folder=folder)
    is_slow = BENCHMARK_METHODS[name].cost >= SLOW
    kept = read_training(path) if is_slow else None
    if kept is not None:
        return kept
    start = time.perf_counter()
    projection = train_for(name, task, seed=seed, by_group=by_group)
    assert projection is not None
    training = Training(projection, time.perf_counter() - start)
    if is_slow:
        write_training(path, training)
    return training


def kept_path(name: str, task: Task, *, seed: int, by_group: bool, folder: Path) -> Path:
    """Return the file of a training."""
    packages = {package: version for package, version in versions().items() if package in TRAINING_PACKAGES}
    data = task_fingerprint(Task(task.name, task.train, task.train, 0.5, task.classes))  # of the training data alone
    parts = (
        data, projection_key(name, seed=seed), seed, by_group, packages,
        code_fingerprint(parts=TRAINING_CODE),
    )  # fmt: skip
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
    return folder / FOLDER / f"{task.name}-{'group' if by_group else 'row'}-{key}.kcal"


def read_training(path: Path) -> Training | None:
    """Return a kept training; None if there is none, or if its files are damaged."""
    try:
        projection, facts = load(path), json.loads(path.with_suffix(".json").read_text())
        return Training(projection, float(facts["seconds"])) if isinstance(projection, TrainedProjection) else None
    except (KcalError, OSError, ValueError, KeyError, TypeError):
        return None


def write_training(path: Path, training: Training) -> None:
    """Keep a training: the projection in one file, how long it took in another beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save(training.projection, path)
    write_whole(path.with_suffix(".json"), json.dumps({"seconds": training.seconds}).encode())
