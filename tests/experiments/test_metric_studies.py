"""Variants, remedies, sizes, dimensions and groups are measured as fitting by hand measures them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from benchmark.conftest import make_task
from experiments import bandwidth_law, dimension, groups, remedies, variants
from experiments.output import LOG_LOSS
from experiments.remedies import RECIPES, standardised
from experiments.runner import run_study
from experiments.study import Measurements, TaskSetting
from kcal import KCal, metrics, train_projection
from kcal.benchmark import Task
from kcal.benchmark.results import MAIN_METRICS
from kcal.benchmark.tasks import group_splits, row_splits

STEPS = 8


@pytest.fixture(scope="module", autouse=True)
def _short_recipes() -> Iterator[None]:
    """Train the recipes that a study names with few steps, too."""
    with pytest.MonkeyPatch.context() as patch:
        for name, recipe in RECIPES.items():
            patch.setitem(RECIPES, name, replace(recipe, steps=2 * STEPS if recipe.steps == 800 else STEPS))
        patch.setattr(dimension, "DIMENSIONS", (2, 4, 8))
        patch.setattr(dimension, "REPEATS", 1)
        yield


def by_hand(calibrator: Any, task: Task, split: Any, **given: Any) -> dict[str, float]:
    """Return the test metrics of a calibrator that is fitted on embeddings by hand."""
    rows = split.calibration
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrator.fit(task.pool.embeddings[rows], task.pool.labels[rows], **{k: v[rows] for k, v in given.items()})
        logits = {"logits": given["logits"][split.test]} if "logits" in given else {}
        probs = calibrator.predict_proba(task.pool.embeddings[split.test], **logits)
    return metrics.evaluate(probs, task.pool.labels[split.test], protocol="paper").as_dict()


def check(measured: Any, place: int, expected: dict[str, float]) -> None:
    for name in MAIN_METRICS:
        assert measured[name][place] == pytest.approx(expected[name], rel=1e-6)


@pytest.fixture(scope="module")
def split() -> Any:
    return row_splits(150, 0.4, 1, 0)[0]


def test_variants_give_what_the_classes_give(task: Task, split: Any) -> None:
    measured = run_study(variants.STUDY, lambda: [task], n_splits=1)["small"]
    labels = task.pool.labels[split.test]
    plain = metrics.evaluate(softmax(task.pool.logits[split.test], axis=1), labels, protocol="paper").as_dict()
    check(measured["uncalibrated"], 0, plain)
    check(measured["untrained"], 0, by_hand(KCal(projection="identity"), task, split))
    learned = train_projection(task.train.embeddings, task.train.labels, projection="linear", progress=False)
    check(measured["KCal-Linear"], 0, by_hand(KCal(projection=learned, progress=False), task, split))


@pytest.fixture(scope="module")
def remedied(task: Task) -> Measurements:
    return run_study(remedies.STUDY, lambda: [task], n_splits=2)


def test_remedies_are_what_fitting_by_hand_gives(task: Task, remedied: Measurements) -> None:
    train, pool = task.train, task.pool
    for name in ("weight decay 0.1", "last checkpoint"):
        learned = train_projection(train.embeddings, train.labels, recipe=RECIPES[name], progress=False)
        for place, each in enumerate(row_splits(150, 0.4, 2, 0)):
            check(remedied["small"][name], place, by_hand(KCal(projection=learned, progress=False), task, each))
    grouped = group_splits(np.asarray(pool.groups), 0.4, 1, 0)[0]
    recipe = RECIPES["learning rate 0.001"]
    learned = train_projection(train.embeddings, train.labels, recipe=recipe, groups=train.groups, progress=False)
    expected = by_hand(KCal(projection=learned, progress=False), task, grouped, groups=np.asarray(pool.groups))
    check(remedied["small (by group)"]["learning rate 0.001"], 0, expected)
    scaled = standardised(task)
    np.testing.assert_allclose(scaled.train.embeddings.std(axis=0), 1, atol=1e-6)
    first = row_splits(150, 0.4, 1, 0)[0]
    check(remedied["small"]["no projection, standardised"], 0, by_hand(KCal(projection="identity"), scaled, first))
    check(remedied["small"]["no projection, divided by the length"], 0, by_hand(KCal(projection="unit"), task, first))


def test_sizes_end_with_the_whole_calibration_set_and_bandwidths_are_of_one_checkpoint(task: Task) -> None:
    measured = run_study(bandwidth_law.STUDY, lambda: [task], n_splits=2)
    by_share = measured["small"]
    assert [values["size"][0] for name, values in by_share.items() if name != "uncalibrated"] == [4, 8, 15, 30, 60]
    learned = train_projection(task.train.embeddings, task.train.labels, progress=False)
    fixed = None
    for place, each in enumerate(row_splits(150, 0.4, 2, 0)):
        calibrator = KCal(projection=learned, progress=False)
        check(by_share["1"], place, by_hand(calibrator, task, each))
        fixed = fixed or calibrator.projection_
        with_fixed = KCal(projection=fixed, progress=False)
        by_hand(with_fixed, task, each)
        assert by_share["1"]["bandwidth"][place] == pytest.approx(with_fixed.bandwidth_)
        assert by_share["1"]["rarest"][place] == np.bincount(task.pool.labels[each.calibration]).min()


def test_the_slope_is_the_power_that_the_bandwidths_follow() -> None:
    counts = np.array([2.0, 3.0, 20.0, 25.0])
    measured = {"rarest": counts, "bandwidth": 0.7 * counts**-0.25, "dimension": np.full(4, 6.0)}
    found = bandwidth_law.Bandwidths([measured])
    assert (found.slope, found.level) == (pytest.approx(-0.25), pytest.approx(0.7))
    assert np.isnan(bandwidth_law.Bandwidths([measured | {"rarest": np.ones(4)}]).slope)


def test_each_dimension_is_trained_by_itself(task: Task, split: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {"small": dimension.variants(TaskSetting(task))}["small"]
    assert list(measured) == ["2", "4"]  # the embedding has six
    for name, variant in measured.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = variant(split)
        learned = train_projection(task.train.embeddings, task.train.labels, dimension=int(name), progress=False)
        expected = by_hand(KCal(projection=learned, progress=False), task, split)
        assert values[LOG_LOSS] == pytest.approx(expected[LOG_LOSS])
        assert values["train"] > 0
        assert values["microseconds"] > 0
    monkeypatch.setattr(dimension, "DIMENSIONS", (8,))
    assert list(dimension.variants(TaskSetting(task))) == ["6"]


def test_random_rows_are_as_many_as_those_of_the_groups(task: Task) -> None:
    grouped = task.splits(3, 0, by_group=True)
    for split, same in zip(grouped, groups.SameSizes(task).splits(3), strict=True):
        assert len(same.calibration) == len(split.calibration)
        assert sorted([*same.calibration, *same.test]) == list(range(150))
        assert same.calibration.tolist() != split.calibration.tolist()


def test_what_new_groups_lose_is_the_difference_from_rows(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "METHODS", ("uncal", "ts", "kcal"))
    measured = run_study(groups.STUDY, lambda: [task, make_task("pairs", n_groups=2)], n_splits=2)
    assert list(measured) == ["small (rows)", "small (by group)"]
    train = task.train
    learned = train_projection(train.embeddings, train.labels, groups=train.groups, progress=False)
    for place, split in enumerate(task.splits(2, 0, by_group=True)):
        calibrator = KCal(projection=learned, progress=False)
        expected = by_hand(calibrator, task, split, groups=np.asarray(task.pool.groups))
        check(measured["small (by group)"]["kcal"], place, expected)
    lost = {row[0].text: row[1:] for row in groups.show(measured).tables[2].rows}
    for place, (name, sign, scale) in enumerate((("accuracy", -1, 100), (LOG_LOSS, 1, 1))):
        change = measured["small (by group)"]["ts"][name] - measured["small (rows)"]["ts"][name]
        shown = float(lost["ts"][0 if place == 0 else -1].text.partition("±")[0].replace("−", "-"))
        assert shown == pytest.approx(sign * scale * change.mean(), abs=0.006)
    assert {entry.text[0] for entries in lost.values() for entry in entries} <= {"+", "−"}
