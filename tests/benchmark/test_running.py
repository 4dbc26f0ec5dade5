"""A run measures what the library gives, sees no test sample while it fits, and goes on where it was stopped."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark.conftest import make_task
from kcal import metrics
from kcal.benchmark import ENTRANTS, Plan, Task, run, running
from kcal.benchmark.cells import Outcome
from kcal.benchmark.entrants import TRAINED, Entrant, takes_part, train_for
from kcal.benchmark.keeping import CELLS
from kcal.benchmark.running import deal
from kcal.calibrators import (
    METHODS,
    OrderPreservingCalibration,
    TemperatureScaling,
    gaussian_process,
)
from kcal.calibrators.order_preserving import training as order_training
from kcal.errors import FileFormatError, InvalidInputError, KcalWarning
from kcal.projection import RECIPES, FastRecipe

HERE = tuple(name for name in ENTRANTS if name != "smooth")
"""Without one that the small task has no companion for."""
LEARNING = ("kcal", "kcal-linear", "kcal-logits", "kcal-blend")


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let slow methods take a few steps: what they may see does not depend on how many."""
    monkeypatch.setitem(RECIPES, "fast", partial(FastRecipe, steps=3))
    monkeypatch.setattr(gaussian_process, "ITERATIONS", 3)
    monkeypatch.setattr(order_training, "ITERATIONS", 3)
    monkeypatch.setitem(
        METHODS,
        "iop",
        replace(METHODS["iop"], factory=partial(OrderPreservingCalibration, form="diag", folds=2, epochs=1)),
    )


@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("by_group", [False, True])
def test_no_test_sample_touches_a_fit(name: str, by_group: bool, task: Task) -> None:
    """With every test row made unusable, fits succeed and predict the same bits."""
    if name == "gp":
        pytest.importorskip("gpytorch")
    reshuffle = deal(task, Plan(("uncal",), 1), by_group=by_group)[0]
    projection = train_for(name, task, seed=0, by_group=by_group)
    assert (projection is not None) == (name in LEARNING)
    entrant = Entrant(name, 0, projection)
    spoiled = {what: getattr(task.pool, what).copy() for what in ("embeddings", "logits", "labels", "groups")}
    for what in ("embeddings", "logits"):
        spoiled[what][reshuffle.test] = np.nan
    spoiled["labels"][reshuffle.test] = -1
    companions = {loss: logits.copy() for loss, logits in task.companions.items()}
    for logits in companions.values():
        logits[reshuffle.test] = np.nan
    other = replace(task, pool=type(task.pool)(**spoiled), companions=companions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = entrant.fit(task, reshuffle.calibration, by_group=by_group)
        blind = entrant.fit(other, reshuffle.calibration, by_group=by_group)
    np.testing.assert_array_equal(
        entrant.predict(whole, task, reshuffle.test), entrant.predict(blind, task, reshuffle.test)
    )


@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize("name", LEARNING)
@pytest.mark.parametrize("by_group", [False, True])
def test_projections_are_trained_on_training_data_alone(name: str, by_group: bool, task: Task) -> None:
    spoiled = replace(task, pool=type(task.pool)(np.full_like(task.pool.embeddings, np.nan), None, None))
    one, other = (train_for(name, each, seed=0, by_group=by_group) for each in (task, spoiled))
    assert one is not None
    assert other is not None
    for first, second in zip(one.module.parameters(), other.module.parameters(), strict=True):
        np.testing.assert_array_equal(first.detach().numpy(), second.detach().numpy())


def test_outcomes_are_what_the_library_gives(task: Task, tmp_path: Path) -> None:
    plan = Plan(("ts", "mmce"), reshuffles=2, jobs=1)
    found = {outcome.cell: outcome for outcome in run([task], plan, tmp_path)}
    assert len(found) == 2 * 2 * 3  # rows and groups, two reshuffles, three methods
    for by_group in (False, True):
        for reshuffle in deal(task, plan, by_group=by_group):
            for name, logits in (("ts", task.pool.logits), ("mmce", task.companions["mmce"])):
                scaling = TemperatureScaling().fit(
                    logits[reshuffle.calibration], task.pool.labels[reshuffle.calibration]
                )
                expected = metrics.evaluate(
                    scaling.predict_proba(logits[reshuffle.test]), task.pool.labels[reshuffle.test]
                )
                cell = next(
                    cell
                    for cell in found
                    if (cell.by_group, cell.reshuffle, cell.method) == (by_group, reshuffle.index, name)
                )
                outcome = found[cell]
                assert outcome.error is None
                assert outcome.metrics["negative_log_likelihood"] == pytest.approx(expected.negative_log_likelihood)
                assert outcome.metrics["classwise_calibration_error"] == pytest.approx(
                    expected.classwise_calibration_error
                )
                assert outcome.details["temperature_"] == pytest.approx(scaling.temperature_)
                assert (outcome.reliability is not None) == (reshuffle.index == 0)


def counting(measured: list[str]) -> Any:
    def watch(what: str, done: int, total: int) -> None:
        if ": " in what and "preparing" not in what:
            measured.append(what)

    return watch


def test_a_run_that_was_stopped_goes_on_and_loses_one_cell_at_most(task: Task, tmp_path: Path) -> None:
    plan = Plan(("ts", "vector"), reshuffles=2, jobs=1)
    first = run([task], plan, tmp_path)
    path = tmp_path / CELLS
    text = path.read_text()
    path.write_text(text[: len(text) - 40])  # the last line was being written
    measured: list[str] = []
    second = run([task], plan, tmp_path, watch=counting(measured))
    assert len(measured) == 1
    assert [outcome.cell for outcome in second] == [outcome.cell for outcome in first]
    assert [outcome.metrics for outcome in second] == [outcome.metrics for outcome in first]
    measured.clear()
    run([task], plan, tmp_path, watch=counting(measured))
    assert measured == []
    run([task], Plan(("ts", "vector", "ets"), reshuffles=3, jobs=1), tmp_path, watch=counting(measured))
    assert len(measured) == 2 * 4 * 3 - 2 * 3 * 2


def test_another_seed_or_other_data_are_not_mixed_in(task: Task, tmp_path: Path) -> None:
    run([task], Plan(("ts",), reshuffles=1, jobs=1), tmp_path)
    with pytest.raises(InvalidInputError, match="other settings"):
        run([task], Plan(("ts",), reshuffles=1, seed=1, jobs=1), tmp_path)
    measured: list[str] = []
    with pytest.warns(KcalWarning, match="2 of other data"):
        run([make_task(seed=1)], Plan(("ts",), reshuffles=1, jobs=1), tmp_path, watch=counting(measured))
    assert len(measured) == 4  # the task has the same name, but is another one
    (tmp_path / CELLS).write_text((tmp_path / CELLS).read_text() + '{"cell": 3}\n')
    with pytest.raises(FileFormatError, match="no outcome of this benchmark"):
        run([task], Plan(("ts",), reshuffles=1, jobs=1), tmp_path)


def test_a_method_that_fails_says_so_and_the_others_go_on(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr(METHODS["vector"].calibrator_class, "fit", fail)
    found = {outcome.cell.method: outcome for outcome in run([task], Plan(("ts", "vector"), 1, jobs=1), tmp_path)}
    assert found["vector"].error is not None
    assert "ZeroDivisionError: nothing to divide by" in found["vector"].error
    assert found["ts"].error is None
    monkeypatch.undo()
    again = {outcome.cell.method: outcome for outcome in run([task], Plan(("ts", "vector"), 1, jobs=1), tmp_path)}
    assert again["vector"].error is None  # what failed is tried again


@pytest.mark.usefixtures("briefly")
def test_two_processes_give_the_same_numbers_as_one(task: Task, tmp_path: Path) -> None:
    plans = [Plan(("ts", "kcal"), reshuffles=1, jobs=jobs) for jobs in (1, 2)]
    one, two = (run([task], plan, tmp_path / str(plan.jobs)) for plan in plans)
    assert [outcome.cell for outcome in one] == [outcome.cell for outcome in two]
    for first, second in zip(one, two, strict=True):
        assert first.metrics == pytest.approx(second.metrics, nan_ok=True)


def test_outcomes_survive_json(task: Task, tmp_path: Path) -> None:
    for outcome in run([task], Plan(("ts",), 1, jobs=1), tmp_path):
        again = Outcome.from_json(json.loads(json.dumps(outcome.as_json(), allow_nan=False)))
        assert again.cell == outcome.cell
        assert dict(again.metrics) == pytest.approx(dict(outcome.metrics), nan_ok=True)


def test_an_entrant_without_its_companion_does_not_take_part(task: Task) -> None:
    assert takes_part("focal", task)
    assert not takes_part("smooth", task)
    assert takes_part("kcal-untrained", task)


def test_a_plan_adds_the_baseline_and_refuses_what_cannot_run() -> None:
    assert Plan(("ts",)).methods == ("uncal", "ts")
    assert set(TRAINED) <= set(ENTRANTS)
    for options, words in (
        ({"methods": ("hal",)}, "got 'hal'"),
        ({"methods": ("ts", "ts")}, "more than once"),
        ({"methods": ("ts",), "reshuffles": 0}, "reshuffles must be"),
        ({"methods": ("ts",), "seed": -1}, "seed must be"),
        ({"methods": ("ts",), "jobs": True}, "jobs must be"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            Plan(**options)


def test_slow_methods_begin_first_and_exist(task: Task, tmp_path: Path) -> None:
    assert set(running.SLOW) <= set(ENTRANTS)
    measured: list[str] = []
    run([task], Plan(("ts", "vector", "sms"), reshuffles=2, jobs=1), tmp_path, watch=counting(measured))
    names = [what.partition(": ")[2] for what in measured]
    assert names[:2] == ["sms", "sms"]
    assert len(names) == 2 * 2 * 4
