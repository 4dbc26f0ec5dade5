"""The fast recipe against the paper's: loss against seconds of training."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import nn

from kcal.benchmark.entrants import train_for
from kcal.benchmark.running import on_one_thread
from kcal.benchmark.studies.measuring import deals_of, leave_one_out_loss, warm_up
from kcal.benchmark.studies.study import Line, Panel, Study, StudyWatch, unwatched
from kcal.benchmark.tables import ABSENT, Entry, Table
from kcal.benchmark.tasks import Task
from kcal.projection import FastRecipe, PaperRecipe, TrainingSamples, run_training, start_projection
from kcal.projection.recipes import FEATURES_OF_A_DIRECTION

SECONDS = 60.0
"""Of the paper's training, on each task."""
STEPS = (50, 100, 200, 400, 800, 1600)
"""Budgets of the fast recipe; 400 is the default."""
BATCHES_A_NOTE = 50
GROWTH = 1.3
"""Factor from the seconds of one note of the paper's training to those of the next."""
FIRST_NOTE = 0.5
LATE = 1.02
"""A note counts for a time that it is this late for: it waits for the batches under way."""
SHOWN_SECONDS = (1.0, 3.0, 10.0, 30.0, 60.0)
ABOUT = (
    "The leave-one-out loss of the first reshuffle's calibration set, at its best bandwidth, against seconds of a "
    "processor spent on training; measuring the loss does not count. Each point of the fast recipe is a training of "
    "its own with so many steps, the best of its checkpoints chosen on the same set; the default has 400 steps. It "
    "starts from principal axes, whose loss before any training is the dashed line, and from "
    f"{FEATURES_OF_A_DIRECTION} features on divides embeddings by their length first; it has up to "
    f"{FastRecipe().largest_dimension} dimensions. The paper's recipe takes embeddings as they are, in up to "
    f"{PaperRecipe().largest_dimension} dimensions, starts from random weights and keeps its last ones. "
    "Its 100 epochs of 5,000 batches take many minutes to hours: here it is "
    "stopped after {seconds:g} seconds at most, too short for its learning rate to be halved; all else is as "
    "published. So this tells what a short time brings, not where the paper's recipe would end."
)


@dataclass(frozen=True)
class LossInTime:
    """The loss of a recipe after so many seconds of training, and before any."""

    seconds: tuple[float, ...]
    losses: tuple[float, ...]
    start: float | None = None

    def best_until(self, seconds: float) -> float | None:
        """Return the lowest loss that was reached in that time, or None if nothing was noted by then."""
        reached = [loss for at, loss in zip(self.seconds, self.losses, strict=True) if at <= LATE * seconds]
        return min(reached, default=None)


class _TimeIsUpError(Exception):
    """Ends the paper's training."""


class _Notes:
    """Notes the paper's module at growing times; while it is copied the clock stands still."""

    def __init__(self, limit: float) -> None:
        self.limit, self.next = limit, FIRST_NOTE
        self.seconds: list[float] = []
        self.modules: list[nn.Module] = []
        self.start = time.process_time()

    def __call__(self, module: nn.Module) -> float:
        """Take a note if it is time; the loss that the recipe watches always falls here, so that its rate stays."""
        now = time.process_time()
        passed = now - self.start
        if passed >= min(self.next, self.limit):
            self.seconds.append(passed)
            self.modules.append(deepcopy(module).eval().requires_grad_(False))
            self.next = GROWTH * passed if GROWTH**2 * passed < self.limit else self.limit
        if passed >= self.limit:
            raise _TimeIsUpError
        self.start += time.process_time() - now
        return -passed


def study_recipes(
    tasks: Iterable[Task],
    *,
    reshuffles: int = 1,
    seed: int = 0,
    watch: StudyWatch = unwatched,
    seconds: float = SECONDS,
) -> Study:
    """Train every task with both recipes; the number of ``reshuffles`` does not matter."""
    names, found = [], []
    for task in tasks:
        watch(f"{task.name}: paper", 0, 2)
        with on_one_thread():
            warm_up()
            paper = paper_in_time(task, seconds=seconds, seed=seed)
            watch(f"{task.name}: fast", 1, 2)
            fast = fast_in_time(task, seconds=seconds, seed=seed)
        watch(task.name, 2, 2)
        names.append(task.name)
        found.append({"fast": fast, "paper": paper})
    panels = tuple(_panel(name, each) for name, each in zip(names, found, strict=True))
    table = recipes_table(names, found, sorted({*(at for at in SHOWN_SECONDS if at < seconds), seconds}))
    about = ABOUT.format(seconds=seconds)
    return Study("recipes", "The fast recipe and the paper's", about, (table,), panels)


def paper_in_time(
    task: Task, *, seconds: float, seed: int, recipe: PaperRecipe | None = None, batches: int = BATCHES_A_NOTE
) -> LossInTime:
    """Train by the paper's recipe for some seconds; its losses are measured afterwards."""
    numbers = recipe or PaperRecipe()
    n_notes = max(numbers.epochs * numbers.batches_per_epoch // batches, 1)
    short = replace(numbers, epochs=n_notes, batches_per_epoch=batches)
    embeddings = torch.from_numpy(task.train.embeddings)
    samples = TrainingSamples(embeddings, task.train.labels, len(task.classes))
    module = start_projection("skip", embeddings, "auto", numbers, seed)
    notes = _Notes(seconds)
    with suppress(_TimeIsUpError):
        run_training(module, samples, short, seed=seed, monitor=notes, show=False)
    return _measured(task, tuple(notes.seconds), tuple(notes.modules), seed)


def fast_in_time(task: Task, *, seconds: float, seed: int, steps: tuple[int, ...] = STEPS) -> LossInTime:
    """Train by the fast recipe with more and more steps, as long as they fit into the time."""
    rows = deals_of(task, 1, seed)[0].calibration
    taken: list[float] = []
    losses: list[float] = []
    untrained: float | None = None
    for n_steps in steps:
        if taken and taken[-1] * n_steps / steps[len(taken) - 1] > seconds:
            break
        start = time.process_time()
        trained = train_for("kcal", task, seed=seed, by_group=False, recipe=FastRecipe(steps=n_steps))
        taken.append(time.process_time() - start)
        assert trained is not None
        losses.append(leave_one_out_loss(task, rows, trained, seed=seed))
        if untrained is None:
            untrained = leave_one_out_loss(task, rows, trained.checkpoints[0], seed=seed)
    return LossInTime(tuple(taken), tuple(losses), untrained)


def _measured(task: Task, seconds: tuple[float, ...], modules: tuple[nn.Module, ...], seed: int) -> LossInTime:
    rows = deals_of(task, 1, seed)[0].calibration
    return LossInTime(seconds, tuple(leave_one_out_loss(task, rows, module, seed=seed) for module in modules))


def recipes_table(names: list[str], found: list[dict[str, LossInTime]], times: list[float]) -> Table:
    """Return the lowest loss that each recipe reached by some times, the lower of the two bold."""
    rows = []
    for name, recipes in zip(names, found, strict=True):
        reached = {recipe: [each.best_until(at) for at in times] for recipe, each in recipes.items()}
        for recipe, losses in reached.items():
            start = recipes[recipe].start
            entries = [Entry(ABSENT if start is None else f"{start:.4f}")]
            for place, loss in enumerate(losses):
                noted = [each[place] for each in reached.values()]
                lowest = min((other for other in noted if other is not None), default=None)
                entries.append(
                    Entry(ABSENT if loss is None else f"{loss:.4f}", bold=loss is not None and loss == lowest)
                )
            rows.append((Entry(f"{name}, {recipe}"), *entries))
    heading = ("task, recipe", "start", *(f"{at:g} s" for at in times))
    note = (
        f"The lowest loss so far, {ABSENT} where the shortest training was not done yet; start is the fast recipe's, "
        "before any training."
    )
    return Table("recipes", "Leave-one-out loss after some seconds of training", heading, tuple(rows), note)


def _panel(task: str, found: dict[str, LossInTime]) -> Panel:
    lines = [Line(f"{recipe} recipe", each.seconds, each.losses) for recipe, each in found.items()]
    every = [at for each in found.values() for at in each.seconds]
    for recipe, each in found.items():
        if each.start is not None:
            ends = (min(every), max(every))
            lines.append(Line(f"start of the {recipe} recipe", ends, (each.start, each.start), reference=True))
    return Panel(task, "seconds of training", "leave-one-out log-loss", tuple(lines), x_log=True)
