"""Run methods on all splits of all tasks, in parallel; each result is stored as soon as it is measured."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kcal.benchmark.measuring import describe, measure
from kcal.benchmark.methods import (
    BENCHMARK_METHODS,
    BenchmarkMethod,
    check_methods,
    is_available,
    projection_key,
)
from kcal.benchmark.processes import Parallel, in_parallel
from kcal.benchmark.results import Result, ResultKey
from kcal.benchmark.store import RESULTS_FILE, Stored, appending, origins_of, read_results, usable_results
from kcal.benchmark.tasks import Task
from kcal.benchmark.trainings import train
from kcal.errors import InvalidInputError, KcalWarning, printable, warn
from kcal.files import check_path, locked_folder
from kcal.progress import Report
from kcal.validation import check_integer, check_seed, shown

MAX_SPLITS = 100_000
MAX_JOBS = 10_000


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

    Stored results are used where data, the method's parameters, kcal's code and package versions are the same; others
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
        stored = read_results(place / RESULTS_FILE, plan.seed)
        with appending(place / RESULTS_FILE, plan.seed, stored) as append:
            for task in tasks:
                if not isinstance(task, Task):
                    raise InvalidInputError("tasks", "must be kcal.benchmark.Task objects", got=shown(task))
                for by_group in (False, True) if task.can_split_groups else (False,):
                    results += _run_task(task, plan, by_group, stored, append, progress, place, parallel)
    return results


def _run_task(
    task: Task,
    plan: Plan,
    by_group: bool,
    stored: Stored,
    append: Callable[[Result], None],
    progress: Report,
    folder: Path,
    parallel: Parallel,
) -> list[Result]:
    """Return the results of all methods on the splits of one task, by row or by group; measure those not stored."""
    title = f"{printable(task.name)}{', by group' if by_group else ''}"
    splits = task.splits(plan.n_splits, plan.seed, by_group=by_group)
    names = [name for name in plan.methods if is_available(name, task)]
    keys = [ResultKey(task.name, by_group, split.index, name) for split in splits for name in names]
    origins = origins_of(task, names, plan.seed)
    done, unusable = usable_results(stored, keys, origins)
    if unusable:
        warn(f"{title}: stored results are measured again: {unusable}.", KcalWarning)
    progress(title, len(done), len(keys))
    missing = [key for key in keys if key not in done]

    def report(step: str) -> None:
        progress(f"{title}: {step}", len(done), len(keys))

    methods = _prepare([key.method for key in missing], task, plan, by_group, report, folder, parallel)
    missing.sort(key=lambda key: -BENCHMARK_METHODS[key.method].cost)  # no core is idle at the end
    small_task = replace(task, train=task.pool, out_of_scope=None)  # workers need no training data
    calls = [(small_task, splits[key.split], methods[key.method], by_group) for key in missing]
    for measured in parallel(measure, calls, jobs=plan.jobs):
        result = replace(measured, origin=origins[measured.key.method])
        done[result.key] = result
        append(result)
        report(result.key.method)
    return [done[key] for key in keys]


def _prepare(
    names: Iterable[str],
    task: Task,
    plan: Plan,
    by_group: bool,
    report: Callable[[str], None],
    folder: Path,
    parallel: Parallel,
) -> dict[str, BenchmarkMethod]:
    """Return methods by name, those that learn a projection with a trained one; methods that learn alike share it."""
    methods = {name: BenchmarkMethod(name, plan.seed) for name in names}
    sharing: dict[str, list[BenchmarkMethod]] = {}
    for method in methods.values():
        key = projection_key(method.name, seed=plan.seed)
        if key is not None:
            sharing.setdefault(key, []).append(method)
    if sharing:
        report(f"preparing {', '.join(method.name for group in sharing.values() for method in group)}")
    calls = [(group, task, by_group, folder) for group in sharing.values()]
    for trained in parallel(_train, calls, jobs=plan.jobs):
        methods |= {method.name: method for method in trained}
    return methods


def _train(methods: Sequence[BenchmarkMethod], task: Task, by_group: bool, folder: Path) -> list[BenchmarkMethod]:
    """Return methods that learn the same projection with the projection, or with the error of its training."""
    first = methods[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about shared arrays that cannot be written
            projection, seconds = train(first.name, task, seed=first.seed, by_group=by_group, folder=folder)
    except Exception as error:  # whatever fails in one method, the others go on
        message = f"training the projection: {describe(error)}"
        return [replace(method, error=message) for method in methods]
    return [replace(method, projection=projection, train_seconds=seconds) for method in methods]
