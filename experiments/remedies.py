"""What was tried where KCal is not first: the default recipe with one change at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from experiments.output import log_loss_overview, metrics_table
from experiments.study import Measurements, Study, StudyOutput, TaskSetting, Variant, by_row_and_group
from kcal.benchmark import Task
from kcal.projection import FastRecipe, TrainedProjection

DEFAULT = "default"
RECIPES = {
    DEFAULT: FastRecipe(),
    "standardised, lengths kept": FastRecipe(unit_length=False),
    "d ≤ 32": FastRecipe(max_dimension=32),
    "d ≤ 64": FastRecipe(max_dimension=64),
    "lengths kept, d ≤ 32": FastRecipe(unit_length=False, max_dimension=32),
    "last checkpoint": FastRecipe(select="last"),
    "weight decay 0": FastRecipe(weight_decay=0.0),
    "weight decay 0.1": FastRecipe(weight_decay=0.1),
    "learning rate 0.001": FastRecipe(learning_rate=1e-3),
    "800 steps": FastRecipe(steps=800),
    "random start": FastRecipe(start="random"),
    "proportional sampling": FastRecipe(sampling="proportional"),
    "balanced class weights": FastRecipe(class_weights="balanced"),
}


def variants(setting: TaskSetting) -> Mapping[str, Variant]:
    """Return KCal by every recipe, and with projections that are not trained."""
    scaled = TaskSetting(standardised(setting.task), setting.seed, setting.by_group)

    def by_recipe(recipe: FastRecipe) -> Variant:
        return setting.variant("kcal", lambda: {"projection": trained_by(setting, recipe)})

    return {name: by_recipe(recipe) for name, recipe in RECIPES.items()} | {
        "standardised, then divided by the length": scaled.variant(
            "kcal", lambda: {"projection": trained_by(scaled, RECIPES[DEFAULT])}
        ),
        "not trained: the start": setting.variant(
            "kcal", lambda: {"projection": trained_by(setting, RECIPES[DEFAULT]).checkpoints[0]}
        ),
        "no projection": setting.variant("kcal-untrained"),
        "no projection, standardised": scaled.variant("kcal-untrained"),
        "no projection, divided by the length": setting.variant("kcal", lambda: {"projection": "unit"}),
    }


def trained_by(setting: TaskSetting, recipe: FastRecipe) -> TrainedProjection:
    """Return a projection; recipes that do not differ on a task share one training."""
    width, default = setting.task.train.embeddings.shape[1], RECIPES[DEFAULT]
    same = replace(
        recipe,
        max_dimension=min(recipe.max_dimension, width),
        unit_length=recipe.takes_directions(width),
        select=default.select,
    )
    if has_equal_classes(setting.task):
        same = replace(same, sampling=default.sampling, class_weights=default.class_weights)
    return replace(setting.projection(recipe=same), recipe=recipe)


def has_equal_classes(task: Task) -> bool:
    """Return whether all classes of the training set have the same number of samples."""
    return len(set(np.unique(task.train.labels, return_counts=True)[1].tolist())) == 1


def standardised(task: Task) -> Task:
    """Return a task whose embeddings have mean 0 and standard deviation 1 on the training set, per feature."""
    mean, deviation = task.train.embeddings.mean(axis=0), task.train.embeddings.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1.0).astype(np.float32)
    train, pool = (replace(part, embeddings=(part.embeddings - mean) / scale) for part in (task.train, task.pool))
    return replace(task, train=train, pool=pool)


def show(measured: Measurements) -> StudyOutput:
    title = "What one change of the recipe does to the NLL"
    overview = log_loss_overview(title, DEFAULT, measured)
    tables = [metrics_table(f"{label}: one change of the recipe", by_variant) for label, by_variant in measured.items()]
    return StudyOutput((overview, *tables))


STUDY = Study("remedies", "What was tried where KCal is not first", variants, show, by_row_and_group)
