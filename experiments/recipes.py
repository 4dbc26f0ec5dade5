"""The fast recipe and the paper's: loss against seconds of training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from experiments.dimension import warm_up
from experiments.lines import Line, Panel
from experiments.output import floats
from experiments.study import Measurements, Study, StudyOutput, TaskSetting, Values, Variant
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tables import NO_VALUE
from kcal.benchmark.tasks import Split
from kcal.projection import FastRecipe, PaperRecipe, Recipe

SECONDS = 60.0
"""Longest training."""
SHOWN_SECONDS = (1.0, 3.0, 10.0, 30.0, 60.0)
FAST_STEPS = (50, 100, 200, 400, 800, 1600)
"""Budgets of the fast recipe; 400 is the default."""
PAPER_BATCHES = tuple(50 * 2**power for power in range(18))
"""Budgets of the paper's recipe; 500,000 are its default."""


def variants(setting: TaskSetting) -> Mapping[str, Variant]:
    """Return both recipes, each with more and more steps as long as the time allows."""
    budgets: dict[str, list[Recipe]] = {
        "fast": [FastRecipe(steps=steps) for steps in FAST_STEPS],
        "paper": [PaperRecipe(epochs=1, batches_per_epoch=batches) for batches in PAPER_BATCHES],
    }
    return {name: partial(in_time, setting, recipes=recipes, limit=SECONDS) for name, recipes in budgets.items()}


def in_time(
    setting: TaskSetting,
    split: Split,
    recipes: list[Recipe],
    limit: float,
    clock: Callable[[], float] = time.process_time,
) -> Values:
    """Return seconds and losses of trainings, until the next would exceed the limit, and the loss before training.

    A training is expected to take twice the seconds of the one before, which has half its steps.
    """
    warm_up()
    seconds: list[float] = []
    losses: list[float] = []
    start_loss = float("nan")
    for recipe in recipes:
        if seconds and 2 * seconds[-1] > limit:
            break
        start = clock()
        trained = setting.projection(recipe=recipe)
        seconds.append(clock() - start)
        losses.append(setting.leave_one_out_loss(trained, split))
        if isinstance(recipe, FastRecipe) and np.isnan(start_loss):
            start_loss = setting.leave_one_out_loss(trained.checkpoints[0], split)
    return {"seconds": seconds, "losses": losses, "start": start_loss}


def lowest_until(seconds: np.ndarray, losses: np.ndarray, limit: float) -> float | None:
    """Return the lowest loss that was reached in some time; None if no training was that short."""
    reached = losses[seconds <= limit]
    return float(reached.min()) if len(reached) else None


def show(measured: Measurements) -> StudyOutput:
    """Return the lowest loss of each recipe by some times, and the losses against time."""
    rows, panels = [], []
    for label, by_recipe in measured.items():
        curves = {name: (values["seconds"][0], values["losses"][0]) for name, values in by_recipe.items()}
        reached = {name: [lowest_until(*curve, at) for at in SHOWN_SECONDS] for name, curve in curves.items()}
        lowest = [min((x for x in at if x is not None), default=None) for at in zip(*reached.values(), strict=True)]
        for name, losses in reached.items():
            start = float(by_recipe[name]["start"][0])
            rows.append(
                (
                    Entry(f"{label}, {name}"),
                    Entry(NO_VALUE if np.isnan(start) else f"{start:.4f}"),
                    *(
                        Entry(NO_VALUE if loss is None else f"{loss:.4f}", bold=loss is not None and loss == least)
                        for loss, least in zip(losses, lowest, strict=True)
                    ),
                )
            )
        lines = [Line(f"{name} recipe", floats(x), floats(y)) for name, (x, y) in curves.items()]
        every = np.concatenate([x for x, _ in curves.values()])
        level = float(by_recipe["fast"]["start"][0])
        ends = (float(every.min()), float(every.max()))
        lines.append(Line("start of the fast recipe", ends, (level, level), reference=True))
        panels.append(Panel(label, "seconds of training", "leave-one-out log-loss", tuple(lines), x_log=True))
    heading = ("task, recipe", "start", *(f"{at:g} s" for at in SHOWN_SECONDS))
    note = f"The lowest loss so far; {NO_VALUE} if no training was that short. Start: before any training."
    table = Table("recipes", "Leave-one-out loss after some seconds of training", heading, tuple(rows), note)
    return StudyOutput((table,), tuple(panels))


STUDY = Study("recipes", "The fast recipe and the paper's", variants, show, max_splits=1)
