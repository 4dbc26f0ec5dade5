"""What was tried where KCal is not first: the default recipe with one thing changed at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kcal.benchmark.entrants import Entrant, train_for
from kcal.benchmark.reshuffles import Reshuffle, reshuffles_by_group
from kcal.benchmark.results import MEASURES, Row
from kcal.benchmark.studies.measuring import (
    Values,
    can_be_dealt_by_group,
    deals_of,
    fit_quietly,
    gathered,
    rows_with_the_best_bold,
    shown_metrics,
)
from kcal.benchmark.studies.study import SHOWN, Study, StudyWatch, counted, metric_label, unwatched
from kcal.benchmark.tables import Entry, Table
from kcal.benchmark.tasks import Task
from kcal.projection import FastRecipe, TrainedProjection

DEFAULT = "default"
BEFORE = "lengths kept, d ≤ 32"
"""The fast recipe's default before."""
RECIPES = {
    DEFAULT: FastRecipe(),
    "lengths kept": FastRecipe(unit_length=False),
    "d ≤ 32": FastRecipe(largest_dimension=32),
    "d ≤ 64": FastRecipe(largest_dimension=64),
    BEFORE: FastRecipe(unit_length=False, largest_dimension=32),
    "last checkpoint": FastRecipe(select="last"),
    "weight decay 0": FastRecipe(weight_decay=0.0),
    "weight decay 0.1": FastRecipe(weight_decay=0.1),
    "learning rate 0.001": FastRecipe(learning_rate=1e-3),
    "800 steps": FastRecipe(steps=800),
    "random start": FastRecipe(start="random"),
    "proportional sampling": FastRecipe(sampling="proportional"),
}
"""Names in the tables, and how the projection is trained."""
START = "not trained: the start"
IDENTITY = "no projection"
REMEDIES = (*RECIPES, START, IDENTITY)
CLEAR = 0.01
"""The share of the default's log-loss from which on a difference counts as one in a summary."""
HALF_A_DIGIT = 5e-5
"""Of the differences in the overview; less is shown as none."""
ABOUT = (
    "What was tried where KCal is not first: the default recipe, and that recipe with one thing changed. A projection "
    "is trained once for each; the reshuffles are the same. Where a task has groups, it is also dealt by whole groups, "
    "and then training and calibration never predict a sample from its own group. “Lengths kept” does not divide "
    "embeddings by their length; “d ≤ 32” allows so many dimensions; “last checkpoint” does not choose among "
    f"checkpoints on the calibration set. “{START}” is the default before its first step: principal axes of the "
    f"embeddings, divided by their length where the default does so. “{IDENTITY}” is the kernel over the embeddings as "
    "they are. Where a row has the same numbers as the start, the calibration sets chose the start, and how the "
    "projection is trained makes no difference.\n\n"
    f"These tables describe, they do not prove. “{BEFORE}” was the default until the test NLL on reshuffles of "
    "CIFAR-10, CIFAR-100, CLINC150 and Sleep-EDF decided for dividing by the length and for more dimensions; start, "
    "rate and steps had been chosen on splits of some of these tasks and of the embedded example. The reshuffles were "
    "others, but of the same pools: on these tasks, what the default gains is gained on samples that helped to choose "
    "it. And of so many rows the best is in part the luckiest, the more so with few reshuffles. Mean ± standard "
    "deviation over reshuffles; bold is the best mean, whatever the accuracy and however small the lead."
)


@dataclass(frozen=True, eq=False)
class Remedies:
    """The shown metrics of every remedy on a task under one way of dealing out its pool."""

    row: Row
    values: dict[str, Values]

    def table(self) -> Table:
        """Return remedies as rows, metrics as columns."""
        rows = rows_with_the_best_bold(list(self.values.items()))
        heading = ("", *(metric_label(name) for name in SHOWN))
        return Table("remedies", f"{self.row.label}: one change of the recipe", heading, rows)

    def change(self, remedy: str, metric: str) -> NDArray[np.float64]:
        """Return a metric's difference from the default, (n_reshuffles,)."""
        return np.asarray(self.values[remedy][metric] - self.values[DEFAULT][metric])


def study_remedies(
    tasks: Iterable[Task], *, reshuffles: int = 10, seed: int = 0, watch: StudyWatch = unwatched
) -> Study:
    """Measure every remedy on every task, by rows and, where there are groups, by groups."""
    found = []
    for task in tasks:
        for by_group in (False, True) if can_be_dealt_by_group(task) else (False,):
            row = Row(task.name, by_group)
            watch(row.label, 0, len(REMEDIES))
            found.append(
                measure_remedies(
                    task,
                    by_group=by_group,
                    n_reshuffles=reshuffles,
                    seed=seed,
                    watch=lambda done, name=row.label: watch(name, done, len(REMEDIES)),  # type: ignore[misc]
                )
            )
    tables = (overview(found), *(each.table() for each in found))
    return Study("remedies", "What was tried where KCal is not first", counted(ABOUT, reshuffles), tables)


def measure_remedies(
    task: Task, *, by_group: bool, n_reshuffles: int, seed: int, watch: Callable[[int], None] = lambda _: None
) -> Remedies:
    """Return the shown metrics of every remedy over reshuffles."""
    deals = _dealt(task, n_reshuffles, seed, by_group=by_group)
    train = _Trainer(task, seed, by_group=by_group)
    values = {}
    for done, name in enumerate(REMEDIES, start=1):
        if name == IDENTITY:
            entrant = Entrant("kcal-untrained", seed)
        else:
            trained = train(RECIPES.get(name, RECIPES[DEFAULT]))
            entrant = Entrant("kcal", seed, trained.checkpoints[0] if name == START else trained)
        fitted = [fit_quietly(entrant, task, deal.calibration, by_group=by_group) for deal in deals]
        values[name] = gathered(
            [shown_metrics(entrant, each, task, deal.test) for each, deal in zip(fitted, deals, strict=True)]
        )
        watch(done)
    return Remedies(Row(task.name, by_group), values)


def overview(found: list[Remedies]) -> Table:
    """Return what every remedy changes in the log-loss: tasks as columns; what lowers it is bold."""
    metric = "negative_log_likelihood"
    rows = [(Entry(f"{DEFAULT}, {MEASURES[metric].title}"), *(_mean(each.values[DEFAULT][metric]) for each in found))]
    for name in REMEDIES:
        if name != DEFAULT:
            changes = [float(each.change(name, metric).mean()) for each in found]
            rows.append((Entry(name), *(Entry(_signed(change), bold=_signed(change)[0] == "−") for change in changes)))
    note = "Mean difference of the NLL from the default's on the same reshuffles; below zero, bold, is better than it."
    title = f"What one change of the recipe does to the {MEASURES[metric].title}"
    return Table("remedies_overview", title, ("", *(each.row.label for each in found)), tuple(rows), note)


def what_helped(study: Study) -> str:
    """Return which changes lower the log-loss everywhere, somewhere or nowhere, and which do nothing, as a list."""
    table = study.tables[0]
    default, *others = table.rows
    least = [CLEAR * float(entry.text) for entry in default[1:]]
    lists: dict[str, list[str]] = {"everywhere": [], "somewhere": [], "nowhere": [], "no such difference anywhere": []}
    for name, *entries in others:
        changes = [float(entry.text.replace("−", "-")) for entry in entries]
        helped = [row for row, change, by in zip(table.heading[1:], changes, least, strict=True) if change <= -by]
        if len(helped) == len(changes):
            lists["everywhere"].append(name.text)
        elif helped:
            lists["somewhere"].append(f"{name.text} ({', '.join(helped)})")
        else:
            harmed = sum(change >= by for change, by in zip(changes, least, strict=True))
            told = f"{name.text} (higher on {harmed} of {len(changes)})"
            lists["nowhere"].append(told) if harmed else lists["no such difference anywhere"].append(name.text)
    return "\n".join(f"- {place}: {'; '.join(names) or 'none'}" for place, names in lists.items())


class _Trainer:
    """Trains a task's projection by recipes; what differs in nothing for a task is trained once."""

    def __init__(self, task: Task, seed: int, *, by_group: bool) -> None:
        self.task, self.seed, self.by_group = task, seed, by_group
        self.trained: dict[FastRecipe, TrainedProjection] = {}

    def __call__(self, recipe: FastRecipe) -> TrainedProjection:
        width = self.task.train.embeddings.shape[1]
        same = replace(
            recipe,
            largest_dimension=min(recipe.largest_dimension, width),
            unit_length=recipe.takes_directions(width),
            select=RECIPES[DEFAULT].select,
        )
        if same not in self.trained:
            trained = train_for("kcal", self.task, seed=self.seed, by_group=self.by_group, recipe=same)
            assert trained is not None
            self.trained[same] = trained
        return replace(self.trained[same], recipe=recipe)


def _dealt(task: Task, n_reshuffles: int, seed: int, *, by_group: bool) -> list[Reshuffle]:
    if not by_group:
        return deals_of(task, n_reshuffles, seed)
    assert task.pool.groups is not None
    return reshuffles_by_group(task.pool.groups, task.calibration_share, n_reshuffles, seed)


def _mean(values: NDArray[np.float64]) -> Entry:
    return Entry(f"{values.mean():.4f}")


def _signed(change: float) -> str:
    return "0.0000" if abs(change) < HALF_A_DIGIT else f"{change:+.4f}".replace("-", "−")
