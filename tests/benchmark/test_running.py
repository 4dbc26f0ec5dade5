"""A run measures what the library gives, uses no test sample to fit, and resumes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark.conftest import make_task
from kcal import metrics
from kcal.benchmark import BENCHMARK_METHODS, Plan, ResultKey, Task, run, store
from kcal.benchmark.methods import BenchmarkMethod, measure, train_for
from kcal.calibrators import (
    METHODS,
    KCal,
    KCalLogits,
    OrderPreservingCalibration,
    TemperatureScaling,
)
from kcal.calibrators import gp as gaussian_process
from kcal.calibrators import order_preserving as order_training
from kcal.errors import InvalidInputError
from kcal.projection import RECIPES, FastRecipe, PaperRecipe

AVAILABLE = tuple(name for name in BENCHMARK_METHODS if name != "smooth")
"""The small task has no companion for the other."""
AS_PUBLISHED = tuple(f"kcal-paper-{data_set}" for data_set in ("imagenet", "isruc", "pn2017"))
LEARNING = ("kcal", "kcal-paper", *AS_PUBLISHED, "kcal-linear", "kcal-logits")


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let slow methods take a few steps: what they may see does not depend on how many."""
    monkeypatch.setitem(RECIPES, "fast", partial(FastRecipe, steps=3))
    monkeypatch.setitem(RECIPES, "paper", partial(PaperRecipe, epochs=1, batches_per_epoch=3))
    monkeypatch.setattr(gaussian_process, "MAX_BOUND_ITERATIONS", 3)
    monkeypatch.setattr(order_training, "MAX_DENSITY_ITERATIONS", 3)
    factories = {
        "iop": partial(OrderPreservingCalibration, form="diag", folds=2, epochs=1),
        **dict.fromkeys(AS_PUBLISHED, partial(KCal, recipe="paper", bandwidth="published")),
    }
    for name, factory in factories.items():
        monkeypatch.setitem(BENCHMARK_METHODS, name, replace(BENCHMARK_METHODS[name], factory=factory))


def test_kcal_as_published_has_the_learning_rate_of_its_data_set() -> None:
    made = {name: BENCHMARK_METHODS[name].factory(seed=4) for name in ("kcal-paper", *AS_PUBLISHED)}
    rates = [one.tags.recipe.learning_rate for one in made.values()]
    assert rates == [4e-4, 5e-2, 1e-3, 1e-3]
    usual = made["kcal-paper"].get_params()
    assert all(one.get_params() | {"recipe": "paper"} == usual for one in made.values())


@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize("name", AVAILABLE)
def test_no_test_sample_touches_a_fit(name: str, task: Task) -> None:
    """With every test row made unusable, fits succeed and predict the same bits."""
    by_group = True
    if name == "gp":
        pytest.importorskip("gpytorch")
    split = task.splits(1, 0, by_group=by_group)[0]
    projection = train_for(name, task, seed=0, by_group=by_group)
    assert (projection is not None) == (name in LEARNING)
    method = BenchmarkMethod(name, 0, projection)
    spoiled = {what: getattr(task.pool, what).copy() for what in ("embeddings", "logits", "labels", "groups")}
    for what in ("embeddings", "logits"):
        spoiled[what][split.test] = np.nan
    spoiled["labels"][split.test] = -1
    companions = {loss: logits.copy() for loss, logits in task.companions.items()}
    for logits in companions.values():
        logits[split.test] = np.nan
    other = replace(task, pool=type(task.pool)(**spoiled), companions=companions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = method.fit(task, split.calibration, by_group=by_group)
        blind = method.fit(other, split.calibration, by_group=by_group)
    np.testing.assert_array_equal(method.predict(whole, task, split.test), method.predict(blind, task, split.test))


@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize("name", LEARNING)
@pytest.mark.parametrize("by_group", [False, True])
def test_projections_see_training_data_and_at_most_the_first_calibration_set(
    name: str, by_group: bool, task: Task
) -> None:
    hidden = task.splits(1, 0, by_group=by_group)[0].test
    if not isinstance(BENCHMARK_METHODS[name].factory(seed=0).tags.recipe, PaperRecipe):
        hidden = np.arange(len(task.pool.labels))
    spoiled = {what: getattr(task.pool, what).copy() for what in ("embeddings", "logits", "labels", "groups")}
    spoiled["embeddings"][hidden] = spoiled["logits"][hidden] = np.nan
    spoiled["labels"][hidden] = -1
    spoiled = replace(task, pool=type(task.pool)(**spoiled))
    one, other = (train_for(name, each, seed=0, by_group=by_group) for each in (task, spoiled))
    assert one is not None
    assert other is not None
    for first, second in zip(one.module.parameters(), other.module.parameters(), strict=True):
        np.testing.assert_array_equal(first.detach().numpy(), second.detach().numpy())


def test_results_are_what_the_library_gives(task: Task, tmp_path: Path) -> None:
    plan = Plan(("ts", "mmce", "kcal-untrained"), n_splits=2, jobs=1)
    found = {result.key: result for result in run([task], plan, tmp_path)}
    assert len(found) == 2 * 2 * 4  # by row and by group, two splits, four methods
    for by_group in (False, True):
        for split in task.splits(2, 0, by_group=by_group):
            labels, fitted = task.pool.labels[split.test], split.calibration
            groups = task.pool.groups[fitted] if by_group else None
            own = KCal(projection="identity").fit(task.pool.embeddings[fitted], task.pool.labels[fitted], groups=groups)
            predicted = {"kcal-untrained": own.predict_proba(task.pool.embeddings[split.test])}
            for name, logits in (("ts", task.pool.logits), ("mmce", task.companions["mmce"])):
                scaling = TemperatureScaling().fit(logits[fitted], task.pool.labels[fitted])
                predicted[name] = scaling.predict_proba(logits[split.test])
            for name, probs in predicted.items():
                expected = metrics.evaluate(probs, labels, protocol="paper")
                result = found[ResultKey("small", by_group, split.index, name)]
                assert result.error is None
                assert result.metrics["negative_log_likelihood"] == pytest.approx(expected.negative_log_likelihood)
                assert result.metrics["classwise_calibration_error"] == pytest.approx(
                    expected.classwise_calibration_error
                )
                assert (result.reliability is not None) == (split.index == 0)


def test_the_stored_bins_of_a_class_hold_every_test_sample(task: Task, tmp_path: Path) -> None:
    result = next(one for one in run([task], Plan(("uncal",), n_splits=1, jobs=1), tmp_path) if not one.key.by_group)
    rows = task.splits(1, 0)[0].test
    logits = task.pool.logits[rows].astype(np.float64)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert result.reliability is not None
    for k in range(3):
        stored, places = result.reliability[str(k)], np.ceil(10 * probs[:, k]).astype(int) - 1  # right-closed
        assert stored["counts"] == np.bincount(places, minlength=10).tolist()
        hits, sums = (
            np.bincount(places, values, minlength=10) for values in (task.pool.labels[rows] == k, probs[:, k])
        )
        used = np.flatnonzero(stored["counts"])
        for name, totals in (("observed_frequency", hits), ("mean_prediction", sums)):
            expected = totals[used] / np.array(stored["counts"])[used]
            np.testing.assert_allclose(np.array(stored[name])[used], expected, rtol=1e-5)


@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize("lowest", [None, -1e30], ids=["plain", "masked"])
def test_the_projection_of_kcal_on_logits_is_the_method_s_own(task: Task, lowest: float | None) -> None:
    logits = task.train.logits.copy()
    if lowest is not None:
        logits[:5, 2] = lowest
    split, pool = task.splits(1, 0)[0], task.pool
    rows = split.calibration
    own = KCalLogits(progress=False).fit(
        pool.logits[rows], pool.labels[rows], train_embeddings=logits, train_labels=task.train.labels
    )
    masked = replace(task, train=replace(task.train, logits=logits))
    method = BenchmarkMethod("kcal-logits", 0, train_for("kcal-logits", masked, seed=0, by_group=False))
    probs = method.predict(method.fit(task, rows, by_group=False), task, split.test)
    assert np.array_equal(probs, own.predict_proba(pool.logits[split.test]))


@pytest.mark.usefixtures("briefly")
def test_two_processes_give_the_same_numbers_as_one(tmp_path: Path) -> None:
    task = make_task()
    task = replace(task, pool=replace(task.pool, groups=None), train=replace(task.train, groups=None))
    plans = [Plan(("ts", "kcal"), n_splits=1, jobs=jobs) for jobs in (1, 2)]
    one, two = (run([task], plan, tmp_path / str(plan.jobs)) for plan in plans)
    assert [result.key for result in one] == [result.key for result in two]
    for first, second in zip(one, two, strict=True):
        assert first.metrics == pytest.approx(second.metrics, nan_ok=True)


def test_plan_adds_the_baseline_and_names_wrong_parameters(task, tmp_path):
    assert Plan(("ts",)).methods == ("uncal", "ts")
    for parameter, value in (
        ("methods", "ts"),
        ("methods", ("hal",)),
        ("methods", ("ts", "ts")),
        ("n_splits", 0),
        ("seed", -1),
        ("jobs", True),
    ):
        with pytest.raises(InvalidInputError, match=parameter):
            Plan(**{"methods": ("ts",)} | {parameter: value})
    with pytest.raises(InvalidInputError, match="tasks"):
        run(["small"], Plan(("ts",), 1, jobs=1), tmp_path)


def test_only_methods_that_use_the_training_set_get_it(task: Task, tmp_path: Path) -> None:
    given: dict[str, int] = {}

    def spy(function: Any, calls: Any, *, jobs: int) -> Iterator[Any]:
        for call in calls:
            if function is measure:
                given[call[2].name] = len(call[0].train.labels)
            yield function(*call)

    run([task], Plan(("ts", "dac"), 1, jobs=1), tmp_path, parallel=spy)
    assert given == {"uncal": 150, "ts": 150, "dac": 120}


@pytest.mark.usefixtures("short_trainings")
def test_a_failure_is_in_the_results_of_its_method_and_tried_again(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nothing to divide by")

    plan = Plan(("ts", "vector", "kcal"), 1, jobs=1)
    monkeypatch.setattr(METHODS["vector"].calibrator_class, "fit", fail)
    monkeypatch.setattr(store, "train_for", fail)
    found = {result.key.method: result for result in run([task], plan, tmp_path)}
    assert found["ts"].error is None
    assert "ZeroDivisionError: nothing to divide by" in str(found["vector"].error)
    assert "training the projection: ZeroDivisionError" in str(found["kcal"].error)
    monkeypatch.undo()
    assert {result.error for result in run([task], plan, tmp_path)} == {None}
