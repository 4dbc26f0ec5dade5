"""A run measures what the library gives, uses no test sample to fit, and resumes."""

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
from kcal.benchmark import BENCHMARK_METHODS, Plan, Result, ResultKey, Task, run
from kcal.benchmark.methods import BenchmarkMethod, is_available, train_for
from kcal.benchmark.store import RESULTS_FILE
from kcal.calibrators import (
    METHODS,
    KCal,
    KCalLogits,
    OrderPreservingCalibration,
    TemperatureScaling,
)
from kcal.calibrators import gp as gaussian_process
from kcal.calibrators import order_preserving as order_training
from kcal.cli.evaluate import parse_methods
from kcal.errors import FileFormatError, InvalidInputError, KcalWarning
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
    monkeypatch.setattr(gaussian_process, "MAX_ITERATIONS", 3)
    monkeypatch.setattr(order_training, "MAX_ITERATIONS", 3)
    factories = {
        "iop": partial(OrderPreservingCalibration, form="diag", folds=2, epochs=1),
        **dict.fromkeys(AS_PUBLISHED, partial(KCal, recipe="paper", bandwidth="published")),
    }
    for name, factory in factories.items():
        monkeypatch.setitem(BENCHMARK_METHODS, name, replace(BENCHMARK_METHODS[name], factory=factory))


def test_all_methods_are_those_that_are_not_slow() -> None:
    assert {"dircal", "kcal-untrained"} <= set(parse_methods("all", BENCHMARK_METHODS))


def test_kcal_as_published_has_the_learning_rate_of_a_data_set_and_runs_only_if_named() -> None:
    rates = {name: BENCHMARK_METHODS[name].factory(seed=4).training_recipe().learning_rate for name in AS_PUBLISHED}
    assert list(rates.values()) == [5e-2, 1e-3, 1e-3]
    usual = BENCHMARK_METHODS["kcal-paper"].factory(seed=4)
    assert usual.training_recipe().learning_rate == 4e-4
    for name in AS_PUBLISHED:
        calibrator = BENCHMARK_METHODS[name].factory(seed=4)
        assert calibrator.get_params() | {"recipe": "paper"} == usual.get_params()
        assert name not in parse_methods("all", BENCHMARK_METHODS)


@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize("name", AVAILABLE)
@pytest.mark.parametrize("by_group", [False, True])
def test_no_test_sample_touches_a_fit(name: str, by_group: bool, task: Task) -> None:
    """With every test row made unusable, fits succeed and predict the same bits."""
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
def test_projections_are_trained_on_training_data_alone(name: str, by_group: bool, task: Task) -> None:
    spoiled = replace(task, pool=type(task.pool)(np.full_like(task.pool.embeddings, np.nan), None, None))
    one, other = (train_for(name, each, seed=0, by_group=by_group) for each in (task, spoiled))
    assert one is not None
    assert other is not None
    for first, second in zip(one.module.parameters(), other.module.parameters(), strict=True):
        np.testing.assert_array_equal(first.detach().numpy(), second.detach().numpy())


@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize("name", ["kcal", "kcal-linear", "kcal-logits"])
def test_a_projection_trained_for_a_method_is_the_one_that_it_trains_itself(name: str, task: Task) -> None:
    split = task.splits(1, 0)[0]
    rows, labels = task.pool.matrix(METHODS[name].inputs), task.pool.labels
    alone = METHODS[name].factory(seed=0, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone.fit(
            rows[split.calibration],
            labels[split.calibration],
            train_embeddings=task.train.matrix(METHODS[name].inputs),
            train_labels=task.train.labels,
        )
    method = BenchmarkMethod(name, 0, train_for(name, task, seed=0, by_group=False))
    fitted = method.fit(task, split.calibration, by_group=False)
    expected = alone.predict_proba(rows[split.test])
    np.testing.assert_allclose(method.predict(fitted, task, split.test), expected, atol=1e-6)


def test_results_are_what_the_library_gives(task: Task, tmp_path: Path) -> None:
    plan = Plan(("ts", "mmce"), n_splits=2, jobs=1)
    found = {result.key: result for result in run([task], plan, tmp_path)}
    assert len(found) == 2 * 2 * 3  # by row and by group, two splits, three methods
    for by_group in (False, True):
        for split in task.splits(2, 0, by_group=by_group):
            for name, logits in (("ts", task.pool.logits), ("mmce", task.companions["mmce"])):
                scaling = TemperatureScaling().fit(logits[split.calibration], task.pool.labels[split.calibration])
                expected = metrics.evaluate(scaling.predict_proba(logits[split.test]), task.pool.labels[split.test])
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
    logits, labels = task.pool.logits[rows].astype(np.float64), task.pool.labels[rows]
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert result.reliability is not None
    for k in range(3):
        stored = result.reliability[str(k)]
        expected = metrics.reliability(probs, labels, of=k, bins=10, adaptive=False, threshold=0)
        places = np.ceil(10 * probs[:, k]).astype(int) - 1  # right-closed
        assert stored["counts"] == expected.counts.tolist() == np.bincount(places, minlength=10).tolist()
        assert sum(stored["counts"]) == len(rows)
        assert (probs[:, k] < 1 / 3).sum() > 10  # which the class-wise threshold would leave out
        found = [np.nan if value is None else value for value in stored["observed_frequency"]]
        np.testing.assert_allclose(found, expected.observed_frequency, equal_nan=True)
        means = [np.nan if value is None else value for value in stored["mean_prediction"]]
        np.testing.assert_allclose(means, expected.mean_prediction, equal_nan=True, rtol=1e-5)


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


def counting(measured: list[str]) -> Any:
    def progress(what: str, done: int, total: int) -> None:
        if ": " in what and "preparing" not in what:
            measured.append(what)

    return progress


def test_a_stopped_run_resumes_and_loses_one_result_at_most(task: Task, tmp_path: Path) -> None:
    plan = Plan(("ts", "vector"), n_splits=2, jobs=1)
    first = run([task], plan, tmp_path)
    path = tmp_path / RESULTS_FILE
    text = path.read_text()
    path.write_text(text[: len(text) - 40])  # the last line was being written
    measured: list[str] = []
    second = run([task], plan, tmp_path, progress=counting(measured))
    assert len(measured) == 1
    assert [result.key for result in second] == [result.key for result in first]
    assert [result.metrics for result in second] == [result.metrics for result in first]
    measured.clear()
    run([task], plan, tmp_path, progress=counting(measured))
    assert measured == []
    run([task], Plan(("ts", "vector", "ets"), n_splits=3, jobs=1), tmp_path, progress=counting(measured))
    assert len(measured) == 2 * 4 * 3 - 2 * 3 * 2


def test_another_seed_or_other_data_are_not_mixed_in(task: Task, tmp_path: Path) -> None:
    run([task], Plan(("ts",), n_splits=1, jobs=1), tmp_path)
    with pytest.raises(InvalidInputError, match="seed must be that of the results"):
        run([task], Plan(("ts",), n_splits=1, seed=1, jobs=1), tmp_path)
    measured: list[str] = []
    with pytest.warns(KcalWarning, match="2 of other data"):
        run([make_task(seed=1)], Plan(("ts",), n_splits=1, jobs=1), tmp_path, progress=counting(measured))
    assert len(measured) == 4  # the task has the same name, but is another one
    (tmp_path / RESULTS_FILE).write_text((tmp_path / RESULTS_FILE).read_text() + '{"key": 3}\n')
    with pytest.raises(FileFormatError, match="not a result of this benchmark"):
        run([task], Plan(("ts",), n_splits=1, jobs=1), tmp_path)


def test_a_method_that_fails_says_so_and_the_others_go_on(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr(METHODS["vector"].calibrator_class, "fit", fail)
    found = {result.key.method: result for result in run([task], Plan(("ts", "vector"), 1, jobs=1), tmp_path)}
    assert found["vector"].error is not None
    assert "ZeroDivisionError: nothing to divide by" in found["vector"].error
    assert found["ts"].error is None
    monkeypatch.undo()
    again = {result.key.method: result for result in run([task], Plan(("ts", "vector"), 1, jobs=1), tmp_path)}
    assert again["vector"].error is None  # what failed is tried again


@pytest.mark.usefixtures("briefly")
def test_two_processes_give_the_same_numbers_as_one(tmp_path: Path) -> None:
    task = make_task(n_groups=1)
    plans = [Plan(("ts", "kcal"), n_splits=1, jobs=jobs) for jobs in (1, 2)]
    one, two = (run([task], plan, tmp_path / str(plan.jobs)) for plan in plans)
    assert [result.key for result in one] == [result.key for result in two]
    for first, second in zip(one, two, strict=True):
        assert first.metrics == pytest.approx(second.metrics, nan_ok=True)


def test_results_survive_json(task: Task, tmp_path: Path) -> None:
    for result in run([task], Plan(("ts",), 1, jobs=1), tmp_path):
        again = Result.from_json(json.loads(json.dumps(result.as_json(), allow_nan=False)))
        assert again.key == result.key
        assert dict(again.metrics) == pytest.approx(dict(result.metrics), nan_ok=True)


def test_a_companion_method_needs_its_companion(task: Task) -> None:
    assert is_available("focal", task)
    assert not is_available("smooth", task)
    assert is_available("kcal-untrained", task)


def test_a_plan_adds_the_baseline_and_refuses_what_cannot_run() -> None:
    assert Plan(("ts",)).methods == ("uncal", "ts")
    for options, words in (
        ({"methods": "ts"}, "methods must be a sequence of names"),
        ({"methods": 3}, "methods must be a sequence of names"),
        ({"methods": ("hal",)}, "methods must be one of .*got 'hal'"),
        ({"methods": ("ts", "ts")}, "methods must be different names; got ts 2 times"),
        ({"methods": ("ts",), "n_splits": 0}, "n_splits must be"),
        ({"methods": ("ts",), "seed": -1}, "seed must be"),
        ({"methods": ("ts",), "jobs": True}, "jobs must be"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            Plan(**options)


def test_the_most_expensive_methods_begin_first(task: Task, tmp_path: Path) -> None:
    measured: list[str] = []
    run([task], Plan(("ts", "vector", "sms"), n_splits=2, jobs=1), tmp_path, progress=counting(measured))
    names = [what.partition(": ")[2] for what in measured]
    assert names[:2] == ["sms", "sms"]
    assert len(names) == 2 * 2 * 4


def test_what_is_not_a_task_or_a_folder_is_an_error(task: Task, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"tasks must be kcal.benchmark.Task objects; got 'small'"):
        run(["small"], Plan(("ts",), 1, jobs=1), tmp_path)
    with pytest.raises(InvalidInputError, match="folder must be"):
        run([task], Plan(("ts",), 1, jobs=1), 3)


def test_a_method_that_uses_the_training_set_gets_it(task: Task) -> None:
    fitted = BenchmarkMethod("dac").fit(task, task.splits(1, 0)[0].calibration, by_group=False)
    assert len(fitted.model_.points) == len(task.train.labels)
