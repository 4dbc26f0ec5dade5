"""Run methods on all splits of all tasks, in parallel; each result is stored as soon as it is measured."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import joblib

from kcal.benchmark.methods import (
    BENCHMARK_METHODS,
    BenchmarkMethod,
    check_methods,
    describe,
    measure,
    new_calibrator,
    projection_key,
)
from kcal.benchmark.results import Result, ResultKey
from kcal.benchmark.store import ResultStore, origins_of, train, versions
from kcal.benchmark.tasks import Task
from kcal.datasets import COMPANIONS
from kcal.errors import InvalidInputError, KcalWarning, printable, warn
from kcal.files import check_path, locked_folder
from kcal.progress import Report
from kcal.threads import one_thread
from kcal.validation import check_integer, check_seed, shown

MAX_SPLITS = 100_000
MAX_JOBS = 10_000
CHECK_SECONDS = 0.5
"""Time between two checks of a worker whether its parent is alive."""


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


Parallel = Callable[..., Iterator[Any]]
"""Yields the results of ``function(*call)`` for all calls, as :func:`in_parallel` does."""


def in_parallel(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], *, jobs: int) -> Iterator[Any]:
    """Yield the results of calls as they finish; with one job, of this process."""
    if not calls:
        return
    parallel = joblib.Parallel(
        n_jobs=min(jobs, len(calls)),
        batch_size=1,  # a run that is killed loses only the calls in progress
        return_as="generator_unordered",
        initializer=_end_with_parent,
        initargs=(os.getpid(),),
    )
    yield from parallel(joblib.delayed(call_on_one_thread)(function, *call) for call in calls)


def call_on_one_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call that uses one thread."""
    with one_thread():
        return function(*arguments)


def _end_with_parent(parent: int) -> None:
    """Let this worker end soon after its parent: a parent that is killed cannot stop its workers.

    The parent is polled. A signal at its death (prctl) would come too early, because Linux sends it when the thread
    ends that started the worker.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(CHECK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run(
    tasks: Iterable[Task],
    plan: Plan,
    folder: str | Path,
    *,
    progress: Report = lambda *_: None,
    parallel: Parallel = in_parallel,
) -> list[Result]:
    """Measure what the folder does not hold yet, and return the results of all tasks.

    ``parallel`` runs the calls: processes of this machine, or :func:`kcal.distributed.in_parallel` on a Ray cluster.

    Stored results are used where data, seed, the method's parameters and the versions of packages are the same; others
    are measured again, and a warning counts them. A method that fails in training or on a split has the error in its
    results, and is tried again in the next run. A projection that takes an hour to train is kept in the folder, and
    serves later runs. A task with too few groups is split by row only.

    Raises
    ------
    InvalidInputError
        If another run uses the folder.
    """
    place = check_path(folder, "folder").absolute()
    place.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    with locked_folder(place):
        store = ResultStore(place)
        for task in tasks:
            if not isinstance(task, Task):
                raise InvalidInputError("tasks", "must be kcal.benchmark.Task objects", got=shown(task))
            if task.n_groups is not None and not task.can_split_groups:
                groups = f"groups in the pool are too few ({task.n_groups}) to split by group"
                warn(f"{printable(task.name)}: {groups}; it is split by row only.", KcalWarning)
            for by_group in (False, True) if task.can_split_groups else (False,):
                results += _run_splits(task, by_group, plan, store, progress, parallel)
    return results


def _run_splits(
    task: Task, by_group: bool, plan: Plan, store: ResultStore, progress: Report, parallel: Parallel
) -> list[Result]:
    """Return the results of all methods on the splits of one task, by row or by group; measure those not stored."""
    title = f"{printable(task.name)}{', by group' if by_group else ''}"
    splits = task.splits(plan.n_splits, plan.seed, by_group=by_group)
    names = [name for name in plan.methods if name not in COMPANIONS or name in task.companions]
    keys = [ResultKey(task.name, by_group, split.index, name) for split in splits for name in names]
    origins, installed = origins_of(task, names, plan.seed), versions()
    done = {key: result for key in keys if (result := store.find(key, origins[key.method])) is not None}
    missing = [key for key in keys if key not in done]
    others = [key for key in missing if key in store.known_keys and (key, origins[key.method]) not in store.results]
    if others:
        causes = "other data, seeds, parameters or versions of packages"
        warn(f"{title}: {len(others):,} stored results are of {causes}; they are measured again.", KcalWarning)

    def report(step: str) -> None:
        progress(f"{title}{step}", len(done), len(keys))

    report("")
    learned = {name: what for name in names if (what := projection_key(name, seed=plan.seed)) is not None}
    trainers: dict[str, str] = {}  # by what is learned, one of the methods that share it
    for key in missing:
        if key.method in learned:
            trainers.setdefault(learned[key.method], key.method)
    if trainers:
        report(f": preparing {', '.join(trainers.values())}")
    calls: list[tuple[Any, ...]] = [(name, task, plan.seed, by_group, store.path.parent) for name in trainers.values()]
    trained = {learned[method.name]: method for method in parallel(_train, calls, jobs=plan.jobs)}
    plain = BenchmarkMethod("", plan.seed)
    methods = {name: replace(trained.get(learned.get(name, ""), plain), name=name) for name in names}
    missing.sort(key=lambda key: -BENCHMARK_METHODS[key.method].cost)  # no core is idle at the end
    without_training = replace(task, train=task.pool, out_of_scope=None)  # most workers need no training data
    calls = []
    for key in missing:
        method = methods[key.method]
        needs_training = method.projection is None and new_calibrator(key.method, seed=plan.seed).tags.uses_training_set
        calls.append((task if needs_training else without_training, splits[key.split], method, by_group))
    for measured in parallel(measure, calls, jobs=plan.jobs):
        result = replace(measured, origin=origins[measured.key.method], versions=installed)
        done[result.key] = result
        store.add(result)
        report(f": {result.key.method}")
    return [done[key] for key in keys]


def _train(name: str, task: Task, seed: int, by_group: bool, folder: Path) -> BenchmarkMethod:
    """Return a method with its trained projection, or with the error of the training."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about shared arrays that cannot be written
            projection, seconds = train(name, task, seed=seed, by_group=by_group, folder=folder)
    except Exception as error:  # whatever fails in one method, the others go on
        return BenchmarkMethod(name, seed, error=f"training the projection: {describe(error)}")
    return BenchmarkMethod(name, seed, projection, seconds)
