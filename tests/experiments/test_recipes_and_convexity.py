"""Losses against time and against the bandwidth are those of training and fitting by hand."""

from __future__ import annotations

import itertools

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


def test_trainings_end_before_the_limit(task: Task) -> None:
    ticks = itertools.cycle([0.0, 3.0])  # each training takes three seconds
    chosen: list[FastRecipe | PaperRecipe] = [FastRecipe(steps=steps) for steps in (1, 2, 3)]
    values = recipes.in_time(TaskSetting(task), task.splits(1, 0)[0], chosen, 5.0, clock=lambda: next(ticks))
    assert values["seconds"] == [3.0]


def test_the_table_shows_the_lowest_loss_so_far() -> None:
    fast = {"seconds": np.array([[2.0, 5.0]]), "losses": np.array([[0.3, 0.4]]), "start": np.array([0.35])}
    paper = {
        "seconds": np.array([[0.5, 4.0, 9.0]]),
        "losses": np.array([[0.9, 0.5, 0.25]]),
        "start": np.array([np.nan]),
    }
    shown = recipes.show({"t": {"fast": fast, "paper": paper}})
    assert shown.tables[0].heading[1:5] == ("start", "1 s", "3 s", "10 s")
    assert [[entry.text for entry in row[1:5]] for row in shown.tables[0].rows] == [
        ["0.3500", "–", "0.3000", "0.3000"],
        ["–", "0.9000", "0.9000", "0.2500"],
    ]
    assert [[entry.bold for entry in row[1:5]] for row in shown.tables[0].rows] == [
        [False, False, True, False],
        [False, True, False, True],
    ]
    assert [line.label for line in shown.panels[0].lines][-1] == "start of the fast recipe"


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
