"""All cells, in parallel, each kept as soon as it is done: a run that is stopped goes on where it was."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path

import joblib
import numpy as np
import torch
from threadpoolctl import threadpool_limits

from kcal.benchmark.cells import Cell, Origin, Outcome, described, measure_cell
from kcal.benchmark.entrants import Entrant, check_entrants, parameters_of, takes_part, train_for, training_of
from kcal.benchmark.keeping import (
    CELLS,
    Kept,
    appending,
    code_fingerprint,
    find_again,
    read_cells,
    task_fingerprint,
    versions,
)
from kcal.benchmark.reshuffles import Reshuffle, reshuffles_by_group, reshuffles_by_row
from kcal.benchmark.tasks import Task, can_be_dealt_by_group
from kcal.errors import InvalidInputError, KcalWarning

SLOW = ("iop", "kcal-blend", "dircal", "kcal", "kcal-linear", "kcal-logits", "gp", "sms")
"""Methods that take longest, longest first: begun first, they leave no processor idle at the end."""
LOOK_FOR_THE_PARENT = 1.0
"""Seconds between two looks of a worker whether the run is still there."""


@dataclass(frozen=True)
class Plan:
    """What is run: methods, reshuffles, seed, and on how many processors."""

    methods: tuple[str, ...]
    reshuffles: int = 10
    seed: int = 0
    jobs: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", tuple(check_entrants(list(self.methods))))
        for name, least in (("reshuffles", 1), ("seed", 0), ("jobs", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidInputError(f"{name} must be a whole number, at least {least}; got {value!r}.")


Watch = Callable[[str, int, int], None]
"""Told, at every step, what goes on, how many cells are done and how many there are."""


@dataclass(frozen=True)
class Prepared:
    """An entrant that is ready to be measured, or why it is not, and what its projection took; None without one."""

    entrant: Entrant
    seconds: float | None = None
    error: str | None = None


def run(tasks: Iterable[Task], plan: Plan, folder: str | Path, *, watch: Watch = lambda *_: None) -> list[Outcome]:
    """Measure every cell that the folder does not hold yet, and return all of the tasks' outcomes.

    Stored outcomes are used where data, the method's parameters, kcal's code and the versions of what computes are the
    same; others are measured anew, and a warning counts them. A method that fails, in training or in a cell, says so
    in its outcomes, and is tried again in the next run. A task with fewer groups than can be dealt is dealt by row
    only.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    kept = read_cells(place / CELLS, plan.seed)
    wanted: list[Outcome] = []
    with appending(place / CELLS, plan.seed, kept) as keep:
        for task in tasks:
            origins = _origins(task, plan)
            for by_group in (False, True) if can_be_dealt_by_group(task) else (False,):
                wanted += _run_task(task, plan, by_group, origins, kept, keep, watch)
    return wanted


def _run_task(
    task: Task,
    plan: Plan,
    by_group: bool,
    origins: Mapping[str, Origin],
    kept: Kept,
    keep: Callable[[Outcome], None],
    watch: Watch,
) -> list[Outcome]:
    deals = deal(task, plan, by_group=by_group)
    sizes = [(len(each.calibration), len(each.test)) for each in deals]
    methods = [name for name in plan.methods if takes_part(name, task)]
    cells = [Cell(task.name, by_group, each.index, name) for each in deals for name in methods]
    done, unusable = find_again(kept, cells, origins)
    missing = [cell for cell in cells if cell not in done]
    title = f"{task.name}{', by group' if by_group else ''}"
    if unusable:
        warnings.warn(f"{title}: stored cells are measured anew: {unusable}.", KcalWarning, stacklevel=3)
    watch(title, len(done), len(cells))
    prepared = _prepare_all(
        list(dict.fromkeys(cell.method for cell in missing)),
        task,
        plan,
        by_group=by_group,
        tell=lambda what: watch(f"{title}: {what}", len(done), len(cells)),
    )
    failed = [Outcome(cell, error=prepared[cell.method].error) for cell in missing if prepared[cell.method].error]
    ready = sorted((cell for cell in missing if not prepared[cell.method].error), key=_slow_first)
    work = [(deals[cell.reshuffle], prepared[cell.method].entrant) for cell in ready]
    n_groups = len(np.unique(task.pool.groups)) if task.has_groups else None
    for measured in chain(failed, _in_parallel(task, work, by_group=by_group, jobs=plan.jobs)):
        cell, method = measured.cell, measured.cell.method
        done[cell] = replace(
            measured,
            sizes=sizes[cell.reshuffle],
            n_groups=n_groups,
            train_seconds=prepared[method].seconds,
            origin=origins[method],
        )
        keep(done[cell])
        watch(f"{title}: {method}", len(done), len(cells))
    return [done[cell] for cell in cells]


def _slow_first(cell: Cell) -> int:
    return SLOW.index(cell.method) if cell.method in SLOW else len(SLOW)


def _origins(task: Task, plan: Plan) -> dict[str, Origin]:
    fingerprint, packages, code = task_fingerprint(task), versions(), code_fingerprint()
    return {name: Origin(fingerprint, parameters_of(name, seed=plan.seed), packages, code) for name in plan.methods}


def _prepare_all(
    names: Sequence[str], task: Task, plan: Plan, *, by_group: bool, tell: Callable[[str], None]
) -> dict[str, Prepared]:
    """Train the projections of entrants that learn one, side by side, and each once for all that learn it alike."""
    trainings = {name: training_of(name, seed=plan.seed) for name in names}
    alike: dict[str, list[str]] = {}
    for name, training in trainings.items():
        if training is not None:
            alike.setdefault(training, []).append(name)
    calls = [
        joblib.delayed(_prepare_in_worker)(users[0], task, plan.seed, by_group, os.getpid()) for users in alike.values()
    ]
    if calls:
        tell(f"preparing {', '.join(name for users in alike.values() for name in users)}")
    learned = dict(zip(alike, joblib.Parallel(n_jobs=min(plan.jobs, max(len(calls), 1)))(calls), strict=True))
    return {
        name: Prepared(Entrant(name, plan.seed))
        if training is None
        else replace(learned[training], entrant=replace(learned[training].entrant, name=name))
        for name, training in trainings.items()
    }


def _prepare_in_worker(name: str, task: Task, seed: int, by_group: bool, parent: int) -> Prepared:
    _end_with(parent)
    start = time.perf_counter()
    try:
        with on_one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of arrays that processes share and nobody may write to
            projection = train_for(name, task, seed=seed, by_group=by_group)
    except Exception as error:  # whatever a method does, the others go on
        return Prepared(Entrant(name, seed), error=f"training the projection: {described(error)}")
    return Prepared(Entrant(name, seed, projection), time.perf_counter() - start)


def deal(task: Task, plan: Plan, *, by_group: bool) -> list[Reshuffle]:
    """Return the reshuffles of a task's pool."""
    if by_group:
        return reshuffles_by_group(task.pool.groups, task.calibration_share, plan.reshuffles, plan.seed)
    return reshuffles_by_row(len(task.pool.labels), task.calibration_share, plan.reshuffles, plan.seed)


def _in_parallel(
    task: Task, work: Sequence[tuple[Reshuffle, Entrant]], *, by_group: bool, jobs: int
) -> Iterator[Outcome]:
    """Yield outcomes as they come, one by one: a run that is killed loses the cells in work and no other."""
    if not work:
        return
    without_training = Task(task.name, task.pool, task.pool, task.calibration_share, task.classes, task.companions)
    calls = (
        joblib.delayed(_measure_in_worker)(without_training, reshuffle, entrant, by_group, os.getpid())
        for reshuffle, entrant in work
    )
    yield from joblib.Parallel(n_jobs=jobs, batch_size=1, return_as="generator_unordered")(calls)


def _measure_in_worker(task: Task, reshuffle: Reshuffle, entrant: Entrant, by_group: bool, parent: int) -> Outcome:
    """Measure on one thread, so that processes do not crowd each other out."""
    _end_with(parent)
    with on_one_thread():
        return measure_cell(task, reshuffle, entrant, by_group=by_group)


@cache
def _end_with(parent: int) -> None:
    """End this process when the run that it works for is gone: one that is killed cannot tell its workers."""
    if os.getppid() != parent:
        return

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_FOR_THE_PARENT)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


@contextmanager
def on_one_thread() -> Iterator[None]:
    """More threads than free processors make small steps several times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
