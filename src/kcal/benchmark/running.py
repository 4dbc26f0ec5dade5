"""Run methods on all splits of all tasks, in parallel; each result is stored as soon as it is measured."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from kcal.benchmark.locking import locked_folder
from kcal.benchmark.measuring import describe, measure
from kcal.benchmark.methods import (
    BENCHMARK_METHODS,
    BenchmarkMethod,
    check_methods,
    is_available,
    parameters_hash,
    projection_key,
    train_for,
)
from kcal.benchmark.results import Origin, Result, ResultKey
from kcal.benchmark.store import (
    RESULTS_FILE,
    Stored,
    appending,
    code_fingerprint,
    read_results,
    task_fingerprint,
    usable_results,
    versions,
)
from kcal.benchmark.tasks import Task
from kcal.benchmark.workers import in_parallel
from kcal.errors import InvalidInputError, KcalWarning, printable, warn
from kcal.persistence import check_path
from kcal.validation import check_integer, check_seed, shown

MAX_SPLITS = 100_000
MAX_JOBS = 10_000

Progress = Callable[[str, int, int], None]
"""Called at every step with what is being done, the number of results so far and their total."""


@dataclass(frozen=True)
class Plan:
    """What to run: methods, number of splits per task, seed, and number of worker processes."""

    methods: tuple[str, ...]
    n_splits: int = 10
    seed: int = 0
    jobs: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", check_methods(self.methods))
        check_integer(self.n_splits, "n_splits", minimum=1, maximum=MAX_SPLITS)
        check_seed(self.seed)
        check_integer(self.jobs, "jobs", minimum=1, maximum=MAX_JOBS)


@dataclass(frozen=True)
class Prepared:
    """A method with its trained projection, or the error of the training; seconds are None if there was none."""

    method: BenchmarkMethod
    seconds: float | None = None
    error: str | None = None


def run(tasks: Iterable[Task], plan: Plan, folder: str | Path, *, progress: Progress = lambda *_: None) -> list[Result]:
    """Measure what the folder does not hold yet, and return the results of all tasks.

    Stored results are used where data, the method's parameters, kcal's code and package versions are the same; others
    are measured again, and a warning counts them. A method that fails in training or on a split has the error in its
    results, and is tried again in the next run. A task with too few groups is split by row only.

    Raises
    ------
    InvalidInputError
        If another run uses the folder.
    """
    place = check_path(folder, "folder")
    place.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    with locked_folder(place):
        stored = read_results(place / RESULTS_FILE, plan.seed)
        with appending(place / RESULTS_FILE, plan.seed, stored) as append:
            for task in tasks:
                if not isinstance(task, Task):
                    raise InvalidInputError("tasks", "must be kcal.benchmark.Task objects", got=shown(task))
                for by_group in (False, True) if task.can_split_groups else (False,):
                    results += TaskRun(task, plan, by_group, progress).results(stored, append)
    return results


@dataclass(frozen=True)
class TaskRun:
    """The methods of a plan on the splits of one task, by row or by group."""

    task: Task
    plan: Plan
    by_group: bool
    progress: Progress

    @property
    def title(self) -> str:
        """What progress and warnings call it."""
        return f"{printable(self.task.name)}{', by group' if self.by_group else ''}"

    def results(self, stored: Stored, append: Callable[[Result], None]) -> list[Result]:
        """Return the results of all methods and splits; measure those that are not stored."""
        splits = self.task.splits(self.plan.n_splits, self.plan.seed, by_group=self.by_group)
        methods = [name for name in self.plan.methods if is_available(name, self.task)]
        keys = [ResultKey(self.task.name, self.by_group, split.index, name) for split in splits for name in methods]
        origins = self._origins()
        done, unusable = usable_results(stored, keys, origins)
        if unusable:
            warn(f"{self.title}: stored results are measured again: {unusable}.", KcalWarning)
        self.progress(self.title, len(done), len(keys))
        missing = [key for key in keys if key not in done]
        prepared = self._prepare(list(dict.fromkeys(key.method for key in missing)), len(done), len(keys))
        failed = [Result(key, error=prepared[key.method].error) for key in missing if prepared[key.method].error]
        ready = [key for key in missing if not prepared[key.method].error]
        ready.sort(key=lambda key: -BENCHMARK_METHODS[key.method].cost)  # no core is idle at the end
        task = replace(self.task, train=self.task.pool, out_of_scope=None)  # workers need no training data
        calls = [(task, splits[key.split], prepared[key.method].method, self.by_group) for key in ready]
        for measured in chain(failed, in_parallel(measure, calls, jobs=self.plan.jobs)):
            key, split = measured.key, splits[measured.key.split]
            done[key] = replace(
                measured,
                sizes=(len(split.calibration), len(split.test)),
                n_groups=self.task.n_groups,
                train_seconds=prepared[key.method].seconds,
                origin=origins[key.method],
            )
            append(done[key])
            self.progress(f"{self.title}: {key.method}", len(done), len(keys))
        return [done[key] for key in keys]

    def _origins(self) -> Mapping[str, Origin]:
        fingerprint, packages, code = task_fingerprint(self.task), versions(), code_fingerprint()
        return {
            name: Origin(fingerprint, parameters_hash(name, seed=self.plan.seed), packages, code)
            for name in self.plan.methods
        }

    def _prepare(self, names: Sequence[str], done: int, total: int) -> dict[str, Prepared]:
        """Train every different projection once, in parallel, and return the methods with theirs."""
        seed = self.plan.seed
        users: dict[str | None, list[str]] = {}
        for name in names:
            users.setdefault(projection_key(name, seed=seed), []).append(name)
        prepared = {name: Prepared(BenchmarkMethod(name, seed)) for name in users.pop(None, [])}
        if users:
            self.progress(f"{self.title}: preparing {', '.join(chain(*users.values()))}", done, total)
        calls = [(sharing, self.task, seed, self.by_group) for sharing in users.values()]
        for trained in in_parallel(_train, calls, jobs=self.plan.jobs):
            prepared |= trained
        return prepared


def _train(names: Sequence[str], task: Task, seed: int, by_group: bool) -> dict[str, Prepared]:
    """Train the projection that some methods share."""
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about shared arrays that cannot be written
            projection = train_for(names[0], task, seed=seed, by_group=by_group)
    except Exception as error:  # whatever fails in one method, the others go on
        message = f"training the projection: {describe(error)}"
        return {name: Prepared(BenchmarkMethod(name, seed), error=message) for name in names}
    seconds = time.perf_counter() - start
    return {name: Prepared(BenchmarkMethod(name, seed, projection), seconds) for name in names}
