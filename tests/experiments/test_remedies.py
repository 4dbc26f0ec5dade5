"""Remedies are measured as fitting by hand measures them, by rows and by groups, and stand in the tables by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmark.conftest import make_task
from kcal import KCal, metrics, train_projection
from kcal.benchmark import Task
from kcal.benchmark.reshuffles import reshuffles_by_group, reshuffles_by_row
from kcal.benchmark.results import Row
from kcal.benchmark.studies import STUDIES, Study, remedies
from kcal.benchmark.studies.remedies import (
    DEFAULT,
    DIRECTIONS,
    DIVIDED,
    IDENTITY,
    KEPT,
    RECIPES,
    REMEDIES,
    STANDARDISED,
    START,
    Remedies,
    measure_remedies,
    overview,
    standardised,
    study_remedies,
    what_helped,
)
from kcal.benchmark.studies.study import SHOWN
from kcal.benchmark.tables import Entry, Table
from kcal.projection import FastRecipe, TrainedProjection

SHORTER = 40
"""What the steps of training are divided by, so that the tests are quick."""


def short(**changes: Any) -> FastRecipe:
    recipe = FastRecipe(**changes)
    return replace(recipe, steps=recipe.steps // SHORTER)


@pytest.fixture(scope="module", autouse=True)
def _short_trainings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, recipe in RECIPES.items():
            patch.setitem(RECIPES, name, replace(recipe, steps=recipe.steps // SHORTER))
        yield


@pytest.fixture(scope="module")
def by_rows() -> Remedies:
    return measure_remedies(make_task(), by_group=False, n_reshuffles=2, seed=0)


@pytest.mark.filterwarnings("ignore::kcal.KcalWarning")
def test_a_remedy_by_rows_is_what_fitting_by_hand_gives(task: Task, by_rows: Remedies) -> None:
    pool = task.pool
    changed = {"weight decay 0.1": short(weight_decay=0.1), "last checkpoint": short(select="last")}
    for name, recipe in changed.items():
        learned = train_projection(task.train.embeddings, task.train.labels, recipe=recipe, progress=False)
        for place, deal in enumerate(reshuffles_by_row(150, 0.4, 2, 0)):
            calibrator = KCal(projection=learned, progress=False)
            calibrator.fit(pool.embeddings[deal.calibration], pool.labels[deal.calibration])
            probabilities = calibrator.predict_proba(pool.embeddings[deal.test])
            expected = metrics.evaluate(probabilities, pool.labels[deal.test]).as_dict()
            for metric in SHOWN:
                assert by_rows.values[name][metric][place] == pytest.approx(expected[metric])


@pytest.mark.filterwarnings("ignore::kcal.KcalWarning")
def test_a_remedy_by_groups_trains_and_calibrates_by_groups(task: Task) -> None:
    found = measure_remedies(task, by_group=True, n_reshuffles=1, seed=0)
    train, pool = task.train, task.pool
    deal = reshuffles_by_group(np.asarray(pool.groups), 0.4, 1, 0)[0]
    recipe = short(learning_rate=1e-3)
    learned = train_projection(train.embeddings, train.labels, recipe=recipe, groups=train.groups, progress=False)
    calibrator = KCal(projection=learned, progress=False).fit(
        pool.embeddings[deal.calibration],
        pool.labels[deal.calibration],
        groups=np.asarray(pool.groups)[deal.calibration],
    )
    probabilities = calibrator.predict_proba(pool.embeddings[deal.test])
    expected = metrics.evaluate(probabilities, pool.labels[deal.test]).as_dict()
    for metric in SHOWN:
        assert found.values["learning rate 0.001"][metric][0] == pytest.approx(expected[metric])
    assert found.row == Row("small", by_group=True)


def test_what_differs_in_nothing_for_a_task_gives_the_same_numbers(by_rows: Remedies) -> None:
    for name in ("d ≤ 32", "d ≤ 64", KEPT):  # the embedding has six dimensions, and keeps its length
        for metric in SHOWN:
            assert by_rows.values[name][metric].tolist() == by_rows.values[DEFAULT][metric].tolist()
    for name in ("800 steps", "random start", "balanced class weights", START, IDENTITY, STANDARDISED, DIRECTIONS):
        assert np.abs(by_rows.change(name, "negative_log_likelihood")).max() > 0


@pytest.mark.filterwarnings("ignore::kcal.KcalWarning")
def test_standardising_is_by_the_training_set_and_before_a_batch_norm_changes_nothing(
    task: Task, by_rows: Remedies
) -> None:
    scaled = standardised(task)
    np.testing.assert_allclose(scaled.train.embeddings.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(scaled.train.embeddings.std(axis=0), 1, atol=1e-6)
    mean, deviation = task.train.embeddings.mean(axis=0), task.train.embeddings.std(axis=0)
    np.testing.assert_allclose(scaled.pool.embeddings, (task.pool.embeddings - mean) / deviation, rtol=1e-4, atol=1e-6)
    for metric in SHOWN:  # six features keep their length
        np.testing.assert_allclose(by_rows.values[DIVIDED][metric], by_rows.values[DEFAULT][metric], rtol=0.01)
    deal = reshuffles_by_row(150, 0.4, 1, 0)[0]
    for name, rows, projection in ((STANDARDISED, scaled, "identity"), (DIRECTIONS, task, "unit")):
        calibrator = KCal(projection=projection).fit(
            rows.pool.embeddings[deal.calibration], task.pool.labels[deal.calibration]
        )
        probabilities = calibrator.predict_proba(rows.pool.embeddings[deal.test])
        expected = metrics.negative_log_likelihood(probabilities, task.pool.labels[deal.test])
        assert by_rows.values[name]["negative_log_likelihood"][0] == pytest.approx(expected)


def test_equally_frequent_classes_are_not_trained_anew_for_sampling_and_weights(task: Task) -> None:
    rows = np.concatenate([np.flatnonzero(task.train.labels == k)[:20] for k in range(3)])
    train = replace(
        task.train,
        embeddings=task.train.embeddings[rows],
        logits=task.train.logits[rows],
        labels=np.repeat(range(3), 20),
    )
    trainer = remedies._Trainer(replace(task, train=train), 0, by_group=False)
    default = trainer.entrant(DEFAULT).projection
    for name in ("proportional sampling", "balanced class weights"):
        found = trainer.entrant(name).projection
        assert isinstance(found, TrainedProjection)
        assert isinstance(default, TrainedProjection)
        assert found.checkpoints is default.checkpoints


def test_every_recipe_changes_the_default_and_no_two_are_the_same() -> None:
    assert RECIPES[DEFAULT] == short()
    assert len(set(RECIPES.values())) == len(RECIPES)


def test_the_tables_hold_every_remedy_and_mark_the_best(by_rows: Remedies) -> None:
    table = by_rows.table()
    assert [row[0].text for row in table.rows] == list(REMEDIES)
    assert table.title == "small: one change of the recipe"
    place = 1 + SHOWN.index("negative_log_likelihood")
    losses = {name: values["negative_log_likelihood"].mean() for name, values in by_rows.values.items()}
    best = min(losses.values())
    assert {row[0].text for row in table.rows if row[place].bold} == {n for n, loss in losses.items() if loss == best}
    assert all(row[place].text.startswith(f"{losses[row[0].text]:.4f}±") for row in table.rows)


def test_the_overview_shows_differences_from_the_default(by_rows: Remedies) -> None:
    shifted = {name: dict(values) for name, values in by_rows.values.items()}
    default = shifted[DEFAULT]["negative_log_likelihood"]
    shifted["800 steps"]["negative_log_likelihood"] = default - 0.25
    shifted[START]["negative_log_likelihood"] = default + 0.5
    table = overview([replace(by_rows, values=shifted)])
    entries = {row[0].text: row[1] for row in table.rows}
    assert entries["default, NLL"].text == f"{default.mean():.4f}"
    assert entries["800 steps"] == ("−0.2500", True, False)
    assert entries[START] == ("+0.5000", False, False)
    assert entries["d ≤ 64"] == ("0.0000", False, False)
    assert len(table.rows) == len(REMEDIES)


def test_what_helped_is_told_from_the_table() -> None:
    rows = {"default, NLL": ("1.0000", "0.2000"), "a": ("−0.0100", "−0.1000"), "b": ("−0.0099", "−0.0020")}
    rows |= {"c": ("0.0000", "+0.0020"), "d": ("+0.5000", "+0.5000"), "e": ("0.0000", "−0.0019")}
    entries = tuple((Entry(name), *(Entry(text) for text in texts)) for name, texts in rows.items())
    study = Study("remedies", "t", "a", (Table("remedies_overview", "t", ("", "x", "y (by group)"), entries),))
    assert what_helped(study).splitlines() == [
        "- everywhere: a",
        "- somewhere: b (y (by group))",
        "- nowhere: c (higher on 1 of 2); d (higher on 2 of 2)",
        "- no such difference anywhere: e",
    ]


def test_the_study_is_by_groups_too_where_a_task_has_enough_of_them() -> None:
    seen: list[tuple[str, int, int]] = []
    made = study_remedies(
        [make_task(), make_task("pairs", n_groups=2)], reshuffles=1, watch=lambda *step: seen.append(step)
    )
    assert made.tables[0].heading == ("", "small", "small (by group)", "pairs")
    assert [table.title.partition(":")[0] for table in made.tables[1:]] == ["small", "small (by group)", "pairs"]
    assert [name for name, done, total in seen if done == total] == ["small", "small (by group)", "pairs"]
    assert made.about.endswith("Here: 1 reshuffle.")
    assert Study.from_json(made.as_json()) == made
    assert STUDIES["remedies"] is study_remedies
