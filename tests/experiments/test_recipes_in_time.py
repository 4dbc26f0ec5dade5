"""What the study of the recipes notes is what training for so long gives."""

from __future__ import annotations

import pytest

from kcal import FastRecipe, KCal, PaperRecipe, train_projection
from kcal.benchmark import Task
from kcal.benchmark.reshuffles import reshuffles_by_row
from kcal.benchmark.studies.recipes import LossInTime, fast_in_time, paper_in_time, recipes_table, study_recipes


def loss_by_hand(task: Task, recipe: FastRecipe | PaperRecipe) -> float:
    trained = train_projection(task.train.embeddings, task.train.labels, recipe=recipe, progress=False)
    rows = reshuffles_by_row(150, 0.4, 1, 0)[0].calibration
    calibrator = KCal(projection=trained, progress=False).fit(task.pool.embeddings[rows], task.pool.labels[rows])
    assert calibrator.bandwidth_curve_ is not None
    return calibrator.bandwidth_curve_.loss


def test_the_first_note_of_the_paper_is_its_first_batches(task: Task) -> None:
    found = paper_in_time(task, seconds=0.0, seed=0, batches=7)  # the time is up at the first note
    assert len(found.losses) == 1
    assert found.losses[0] == pytest.approx(loss_by_hand(task, PaperRecipe(epochs=1, batches_per_epoch=7)))


def test_each_budget_of_the_fast_recipe_is_a_training_of_its_own(task: Task) -> None:
    found = fast_in_time(task, seconds=1e9, seed=0, steps=(4, 9))
    assert found.losses == pytest.approx([loss_by_hand(task, FastRecipe(steps=n)) for n in (4, 9)])
    assert len(fast_in_time(task, seconds=0.0, seed=0, steps=(4, 9)).losses) == 1


def test_the_table_tells_the_lowest_loss_so_far() -> None:
    fast = LossInTime((2.0, 5.0), (0.3, 0.4), 0.35)
    paper = LossInTime((0.5, 4.0, 10.1), (0.9, 0.5, 0.25))  # the last note is a little late
    assert [fast.best_until(at) for at in (1, 3, 10)] == [None, 0.3, 0.3]
    table = recipes_table(["t"], [{"fast": fast, "paper": paper}], [1, 3, 10])
    assert [[entry.text for entry in row[1:]] for row in table.rows] == [
        ["0.3500", "–", "0.3000", "0.3000"],
        ["–", "0.9000", "0.9000", "0.2500"],
    ]
    assert [[entry.bold for entry in row[1:]] for row in table.rows] == [
        [False, False, True, False],
        [False, True, False, True],
    ]


def test_the_study_says_how_long_the_paper_was_given(task: Task) -> None:
    made = study_recipes([task], seconds=0.01)
    assert "after 0.01 seconds at most" in made.about
    assert made.tables[0].heading == ("task, recipe", "start", "0.01 s")
