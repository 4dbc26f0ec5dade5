"""All cells, in parallel, each kept as soon as it is done: a run that is stopped goes on where it was.

The file ``cells.jsonl`` holds the settings in its first line and an outcome in every other. A line that was cut short
by the end of a run is left out, and its cell measured anew.
"""

from __future__ import annotations

import json
import os
import platform
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import joblib
import numpy as np
import torch
from threadpoolctl import threadpool_limits

from kcal.benchmark.cells import Cell, Outcome, measure_cell
from kcal.benchmark.entrants import Entrant, check_entrants, takes_part, train_for
from kcal.benchmark.reshuffles import Reshuffle, reshuffles_by_group, reshuffles_by_row
from kcal.benchmark.tasks import Task
from kcal.errors import FileFormatError, InvalidInputError

CELLS = "cells.jsonl"
PACKAGES = ("kcal", "torch", "numpy", "scipy", "scikit-learn", "gpytorch")


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


def run(tasks: Iterable[Task], plan: Plan, folder: str | Path, *, watch: Watch = lambda *_: None) -> list[Outcome]:
    """Measure every cell that the folder does not hold yet, and return all of the tasks' outcomes."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    kept = _read_cells(place / CELLS, plan)
    wanted: list[Outcome] = []
    with _appending(place / CELLS, plan, kept) as keep:
        for task in tasks:
            fingerprint = task_fingerprint(task)
            stored = {cell: outcome for (cell, known), outcome in kept.items() if known == fingerprint}
            for by_group in (False, True) if task.has_groups else (False,):
                wanted += _run_task(task, plan, by_group, stored, partial(keep, fingerprint), watch)
    return wanted


def _run_task(
    task: Task,
    plan: Plan,
    by_group: bool,
    stored: Mapping[Cell, Outcome],
    keep: Callable[[Outcome], None],
    watch: Watch,
) -> list[Outcome]:
    deals = deal(task, plan, by_group=by_group)
    methods = [name for name in plan.methods if takes_part(name, task)]
    cells = [Cell(task.name, by_group, deal.index, name) for deal in deals for name in methods]
    done = {cell: stored[cell] for cell in cells if cell in stored and stored[cell].error is None}
    missing = [cell for cell in cells if cell not in done]
    title = f"{task.name}{', by group' if by_group else ''}"
    watch(title, len(done), len(cells))
    if missing:
        entrants = {}
        for name in dict.fromkeys(cell.method for cell in missing):
            watch(f"{title}: preparing {name}", len(done), len(cells))
            with on_one_thread():
                entrants[name] = Entrant(name, plan.seed, train_for(name, task, seed=plan.seed, by_group=by_group))
        work = [(deals[cell.reshuffle], entrants[cell.method]) for cell in missing]
        for measured in _in_parallel(task, work, by_group=by_group, jobs=plan.jobs):
            outcome = _sized(measured, deals)
            keep(outcome)
            done[outcome.cell] = outcome
            watch(f"{title}: {outcome.cell.method}", len(done), len(cells))
    return [_sized(done[cell], deals) for cell in cells]


def _sized(outcome: Outcome, deals: Sequence[Reshuffle]) -> Outcome:
    """Return an outcome with the sizes of its reshuffle, which files of old runs do not hold."""
    deal = deals[outcome.cell.reshuffle]
    return replace(outcome, sizes=(len(deal.calibration), len(deal.test)))


def deal(task: Task, plan: Plan, *, by_group: bool) -> list[Reshuffle]:
    """Return the reshuffles of a task's pool."""
    if by_group:
        return reshuffles_by_group(task.pool.groups, task.calibration_share, plan.reshuffles, plan.seed)
    return reshuffles_by_row(len(task.pool.labels), task.calibration_share, plan.reshuffles, plan.seed)


def _in_parallel(
    task: Task, work: Sequence[tuple[Reshuffle, Entrant]], *, by_group: bool, jobs: int
) -> Iterator[Outcome]:
    """Yield outcomes as they come; every process computes on one thread, so that they do not crowd each other out."""
    without_training = Task(task.name, task.pool, task.pool, task.calibration_share, task.classes, task.companions)
    calls = (
        joblib.delayed(_measure_on_one_thread)(without_training, reshuffle, entrant, by_group)
        for reshuffle, entrant in work
    )
    yield from joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(calls)


def _measure_on_one_thread(task: Task, reshuffle: Reshuffle, entrant: Entrant, by_group: bool) -> Outcome:
    with on_one_thread():
        return measure_cell(task, reshuffle, entrant, by_group=by_group)


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


def task_fingerprint(task: Task) -> str:
    """Return a number that changes when the pool, the training set or the share do."""
    found = zlib.crc32(repr((task.calibration_share, task.classes)).encode())
    for part in (task.train, task.pool):
        for values in (part.embeddings, part.logits, part.labels, part.groups):
            if values is not None:
                found = zlib.crc32(np.ascontiguousarray(values).view(np.uint8).tobytes(), found)
    for name, logits in sorted(task.companions.items()):
        found = zlib.crc32(np.ascontiguousarray(logits).view(np.uint8).tobytes() + name.encode(), found)
    return f"{found:08x}"


def settings_of(plan: Plan) -> dict[str, Any]:
    """Return what outcomes depend on besides the task."""
    return {"seed": plan.seed, "kcal": version("kcal")}


def versions() -> dict[str, str]:
    """Return the versions of what computes."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except ModuleNotFoundError:
            continue
    return found


def _read_cells(path: Path, plan: Plan) -> dict[tuple[Cell, str], Outcome]:
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    settings = _parsed(lines[0]) if lines else None
    if settings is None:
        return {}
    if settings.get("settings") != settings_of(plan):
        raise InvalidInputError(
            f"{path} holds a run with other settings, {settings.get('settings')}; this one has {settings_of(plan)}. "
            "Choose another folder, or remove the file."
        )
    kept = {}
    for line in lines[1:]:
        stored = _parsed(line)
        if stored is None:
            continue  # cut short when the run was stopped
        try:
            outcome = Outcome.from_json(stored)
            kept[outcome.cell, str(stored["fingerprint"])] = outcome
        except (KeyError, TypeError) as error:
            raise FileFormatError(f"{path} holds a line that is no outcome of this benchmark ({error}).") from error
    return kept


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


@contextmanager
def _appending(
    path: Path, plan: Plan, kept: Mapping[tuple[Cell, str], Outcome]
) -> Iterator[Callable[[str, Outcome], None]]:
    """Yield a function that keeps an outcome for good: it is on disk before the next one begins."""
    fresh = path.with_suffix(".part")
    with fresh.open("w", encoding="utf-8") as stream:  # whole lines only
        _write_line(stream, {"settings": settings_of(plan), "versions": versions()})
        for (_, fingerprint), outcome in kept.items():
            _write_line(stream, {**outcome.as_json(), "fingerprint": fingerprint})
    fresh.replace(path)
    with path.open("a", encoding="utf-8") as stream:
        yield lambda fingerprint, outcome: _write_line(stream, {**outcome.as_json(), "fingerprint": fingerprint})


def _write_line(stream: TextIO, content: Mapping[str, Any]) -> None:
    stream.write(json.dumps(content, allow_nan=False) + "\n")
    stream.flush()
    os.fsync(stream.fileno())
