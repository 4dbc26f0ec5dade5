"""What was tried where KCal is not first: the default recipe with one thing changed at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kcal.benchmark.entrants import Entrant, train_for
from kcal.benchmark.results import MEASURES, Row
from kcal.benchmark.studies.measuring import (
    Values,
    classes_are_equally_frequent,
    deals_of,
    fit_quietly,
    gathered,
    rows_with_the_best_bold,
    shown_metrics,
    ways_to_deal,
)
from kcal.benchmark.studies.overview import METRIC, log_loss_overview
from kcal.benchmark.studies.study import SHOWN, Study, StudyWatch, counted, metric_label, unwatched
from kcal.benchmark.tables import Table
from kcal.benchmark.tasks import Task
from kcal.projection import UNTRAINED, FastRecipe, TrainedProjection

DEFAULT = "default"
KEPT = "standardised, lengths kept"
BEFORE = "lengths kept, d ≤ 32"
"""The fast recipe's default before."""
RECIPES = {
    DEFAULT: FastRecipe(),
    KEPT: FastRecipe(unit_length=False),
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
    "balanced class weights": FastRecipe(class_weights="balanced"),
}
"""Names in the tables, and how the projection is trained."""
DIVIDED = "standardised, then divided by the length"
START = "not trained: the start"
IDENTITY = "no projection"
STANDARDISED = "no projection, standardised"
DIRECTIONS = "no projection, divided by the length"
REMEDIES = (*RECIPES, DIVIDED, START, IDENTITY, STANDARDISED, DIRECTIONS)
CLEAR = 0.01
"""The share of the default's log-loss from which on a difference counts as one in a summary."""
ABOUT = (
    "What was tried where KCal is not first: the default recipe, and that recipe with one thing changed. A projection "
    "is trained once for each; the reshuffles are the same. Where a task has groups, it is also dealt by whole groups, "
    "and then training and calibration never predict a sample from its own group. "
    f"“{KEPT}” does not divide embeddings by their length: the batch norm in front of the "
    "projection then standardises the embeddings themselves, so that standardising them beforehand would change "
    f"nothing. “{DIVIDED}” standardises every feature by the training set's mean and deviation "
    "first. “d ≤ 32” allows so many dimensions; “last checkpoint” does not choose among checkpoints on the calibration "
    "set; “balanced class weights” lets every class count the same in the training loss, however rare it is. "
    f"“{START}” is the default before its first step: principal axes of the embeddings, divided "
    f"by their length where the default does so. “{IDENTITY}” is the kernel over the "
    "embeddings as they are, standardised by the training set, or divided by their length. Where a row has the same "
    "numbers as the start, the calibration sets chose the start, and how the projection is trained makes no "
    "difference; where classes are equally frequent, sampling and class weights make none.\n\n"
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
        for row in ways_to_deal(task):
            watch(row.label, 0, len(REMEDIES))
            found.append(
                measure_remedies(
                    task,
                    by_group=row.by_group,
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
    deals = deals_of(task, n_reshuffles, seed, by_group=by_group)
    train = _Trainer(task, seed, by_group=by_group)
    values = {}
    for done, name in enumerate(REMEDIES, start=1):
        seen = train.standardised if name in (DIVIDED, STANDARDISED) else task
        entrant = train.entrant(name)
        fitted = [fit_quietly(entrant, seen, deal.calibration, by_group=by_group) for deal in deals]
        values[name] = gathered(
            [shown_metrics(entrant, each, seen, deal.test) for each, deal in zip(fitted, deals, strict=True)]
        )
        watch(done)
    return Remedies(Row(task.name, by_group), values)


def standardised(task: Task) -> Task:
    """Return a task whose embeddings have the mean 0 and the deviation 1 on the training set, feature by feature."""
    mean, deviation = task.train.embeddings.mean(axis=0), task.train.embeddings.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1.0).astype(np.float32)
    train, pool = (replace(part, embeddings=(part.embeddings - mean) / scale) for part in (task.train, task.pool))
    return replace(task, train=train, pool=pool)


def overview(found: list[Remedies]) -> Table:
    """Return what every remedy changes in the log-loss: tasks as columns; what lowers it is bold."""
    title = f"What one change of the recipe does to the {MEASURES[METRIC].title}"
    return log_loss_overview("remedies_overview", title, DEFAULT, {each.row.label: each.values for each in found})


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
        self.standardised = standardised(task)
        self.trained: dict[FastRecipe, TrainedProjection] = {}

    def entrant(self, remedy: str) -> Entrant:
        """Return KCal with the projection of a remedy."""
        if remedy in (IDENTITY, STANDARDISED):
            return Entrant("kcal-untrained", self.seed)
        if remedy == DIRECTIONS:
            return Entrant("kcal", self.seed, UNTRAINED["unit"]())
        if remedy == DIVIDED:
            return Entrant("kcal", self.seed, self._train(self.standardised, RECIPES[DEFAULT]))
        trained = self._of(RECIPES.get(remedy, RECIPES[DEFAULT]))
        return Entrant("kcal", self.seed, trained.checkpoints[0] if remedy == START else trained)

    def _of(self, recipe: FastRecipe) -> TrainedProjection:
        width = self.task.train.embeddings.shape[1]
        same = replace(
            recipe,
            largest_dimension=min(recipe.largest_dimension, width),
            unit_length=recipe.takes_directions(width),
            select=RECIPES[DEFAULT].select,
        )
        if classes_are_equally_frequent(self.task):
            same = replace(same, sampling=RECIPES[DEFAULT].sampling, class_weights=RECIPES[DEFAULT].class_weights)
        if same not in self.trained:
            self.trained[same] = self._train(self.task, same)
        return replace(self.trained[same], recipe=recipe)

    def _train(self, task: Task, recipe: FastRecipe) -> TrainedProjection:
        trained = train_for("kcal", task, seed=self.seed, by_group=self.by_group, recipe=recipe)
        assert trained is not None
        return trained
