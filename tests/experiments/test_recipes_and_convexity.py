"""Losses against time and against the bandwidth are those of training and fitting by hand."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import convexity, recipes
from experiments.runner import run_study
from experiments.study import TaskSetting
from kcal import FastRecipe, KCal, PaperRecipe, train_projection
from kcal.benchmark import Task


def loss_by_hand(task: Task, recipe: FastRecipe | PaperRecipe) -> float:
    trained = train_projection(task.train.embeddings, task.train.labels, recipe=recipe, progress=False)
    rows = task.splits(1, 0)[0].calibration
    calibrator = KCal(projection=trained, progress=False).fit(task.pool.embeddings[rows], task.pool.labels[rows])
    assert calibrator.bandwidth_curve_ is not None
    return calibrator.bandwidth_curve_.loss


def test_each_budget_is_a_training_of_its_own(task: Task) -> None:
    setting, split = TaskSetting(task), task.splits(1, 0)[0]
    for chosen in (
        [FastRecipe(steps=steps) for steps in (4, 9)],
        [PaperRecipe(epochs=1, batches_per_epoch=batches) for batches in (3, 7)],
    ):
        values = recipes.in_time(setting, split, list(chosen), 1e9)
        assert values["losses"] == pytest.approx([loss_by_hand(task, recipe) for recipe in chosen])
        assert np.isnan(values["start"]) == isinstance(chosen[0], PaperRecipe)


def test_the_loss_is_shown_around_its_minimum(task: Task) -> None:
    measured = run_study(convexity.STUDY, lambda: [task], n_splits=3)
    bandwidths, losses = (measured["small"]["kcal"][name] for name in ("bandwidths", "losses"))
    assert bandwidths.shape == losses.shape == (1, 41)  # of the first split alone
    assert losses.min() == pytest.approx(loss_by_hand(task, "fast"), rel=1e-3)
    assert 0 < int(losses.argmin()) < 40
    shown = convexity.show(measured)
    assert shown.tables[0].rows[0][0].text == "small"
    assert len(shown.panels) == 1


def test_minima_and_the_convex_range_of_known_curves() -> None:
    at = np.linspace(-1, 3, 41)
    assert convexity.n_minima((at - 1) ** 2) == 1
    assert convexity.convex_range((at - 1) ** 2) == (0, 40)
    waves = np.cos(2 * np.pi * at) + 0.01 * at
    assert convexity.n_minima(waves) == 4
    low, high = convexity.convex_range(waves)
    assert at[high] - at[low] == pytest.approx(0.5, abs=0.25)
