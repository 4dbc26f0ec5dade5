"""What a run keeps in its folder: results, one per line, and the projections that take an hour to train.

``results.jsonl`` has one result per line, with its origin: a hash of the data, the method's parameters, the seed and
the versions of kcal and the packages below it. A run uses the results of its own origin again; others stay in the file
and serve a run that returns to theirs. Changes of kcal's code under one version are not seen: use another folder.

``projections/TASK-row-KEY.kcal`` or ``-group-``: KEY is a hash of the data, the recipe, the seed and the versions.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import joblib

from kcal.benchmark.methods import BENCHMARK_METHODS, new_calibrator, projection_key, train_for
from kcal.benchmark.results import Result, ResultKey
from kcal.benchmark.tasks import Task
from kcal.calibrators.registry import SLOW
from kcal.errors import FileFormatError, KcalError
from kcal.persistence import load, save
from kcal.projection import TrainedProjection

RESULTS_FILE = "results.jsonl"
PROJECTIONS = "projections"
PACKAGES = ("kcal", "torch", "numpy", "scipy", "scikit-learn", "gpytorch")
"""Packages that results depend on."""


def versions() -> dict[str, str]:
    """Return the versions of Python, the machine and every installed package that results depend on."""
    installed = {"python": platform.python_version(), "machine": platform.machine()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


def task_fingerprint(task: Task) -> str:
    """Return a hash of everything that a task holds except its name."""
    fingerprint: str = joblib.hash(replace(task, name=""))
    return fingerprint


def origins_of(task: Task, methods: Iterable[str], seed: int) -> dict[str, str]:
    """Return a hash of what results of each method on a task depend on now, with every number of its recipe."""
    data, installed = task_fingerprint(task), versions()
    origins = {}
    for name in methods:
        calibrator = new_calibrator(name, seed=seed)
        parameters = {key: value for key, value in calibrator.get_params().items() if key != "progress"}
        parameters |= {} if calibrator.tags.recipe is None else {"recipe": calibrator.tags.recipe}
        method = _hash(type(calibrator).__name__, sorted(parameters.items()))
        origins[name] = _hash(data, method, seed, installed)
    return origins


def _hash(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


class ResultStore:
    """The results of a folder, by key and origin."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RESULTS_FILE
        self.results: dict[tuple[ResultKey, str], Result] = {}
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines() if self.path.exists() else []
        try:
            for line in lines:
                with suppress(json.JSONDecodeError):  # blank, or cut short when a run was stopped
                    result = Result.from_json(json.loads(line))
                    self.results[result.key, result.origin] = result
        except (KeyError, TypeError, AttributeError) as error:
            problem = f"{self.path} has a line that is not a result of this version ({error!r})"
            raise FileFormatError(f"{problem}. Choose another folder, or remove the file.") from error
        self.known_keys = {key for key, _ in self.results}

    def find(self, key: ResultKey, origin: str) -> Result | None:
        """Return a stored result without failure, if there is one."""
        result = self.results.get((key, origin))
        return None if result is None or result.error is not None else result

    def add(self, result: Result) -> None:
        """Store a result; it is on disk when this returns."""
        self.results[result.key, result.origin] = result
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write("\n" + json.dumps(result.as_json(), allow_nan=False))  # ends a line that was cut short
            stream.flush()
            os.fsync(stream.fileno())


def train(name: str, task: Task, *, seed: int, by_group: bool, folder: Path) -> tuple[TrainedProjection, float | None]:
    """Return the projection of a method and the seconds of its training; a slow one is kept in the folder.

    The seconds are None for a projection that an earlier run has trained.
    """
    path = training_path(name, task, seed=seed, by_group=by_group, folder=folder)
    is_slow = BENCHMARK_METHODS[name].cost >= SLOW
    with suppress(KcalError, OSError):  # there is none, or it is damaged
        if is_slow and isinstance(kept := load(path), TrainedProjection):
            return kept, None
    start = time.perf_counter()
    trained = train_for(name, task, seed=seed, by_group=by_group)
    assert trained is not None
    seconds = time.perf_counter() - start
    if is_slow:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(trained, path)
    return trained, seconds


def training_path(name: str, task: Task, *, seed: int, by_group: bool, folder: Path) -> Path:
    """Return the file of a training."""
    key = _hash(task_fingerprint(task), projection_key(name, seed=seed), seed, versions())
    return folder / PROJECTIONS / f"{task.name}-{'group' if by_group else 'row'}-{key}.kcal"
