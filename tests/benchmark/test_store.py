"""Stored results and trainings are used again where nothing that they depend on has changed, and only there."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmark.conftest import make_task
from kcal import KCal
from kcal.benchmark import BENCHMARK_METHODS, Plan, Task, run, store
from kcal.benchmark.store import PROJECTIONS, RESULTS_FILE, task_fingerprint, training_path
from kcal.embeddings import ClassifierOutputs
from kcal.errors import FileFormatError, KcalWarning
from kcal.projection import RECIPES, FastRecipe, PaperRecipe

PLAN = Plan(("ts", "kcal-untrained"), n_splits=1, jobs=1)


def measured(task: Task, folder: Path, plan: Plan = PLAN) -> tuple[list[str], list[str]]:
    """Run, and return the methods that were measured and the warnings."""
    steps: list[str] = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", KcalWarning)
        run([task], plan, folder, progress=lambda what, *_: steps.append(what))
    done = [what.partition(": ")[2] for what in steps if ": " in what and "preparing" not in what]
    return done, [str(each.message) for each in told]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run([make_task()], PLAN, tmp_path)
    return tmp_path


def test_stopped_run_resumes_and_loses_one_result_at_most(task, folder):
    path = folder / RESULTS_FILE
    first = run([task], PLAN, folder)
    path.write_text(path.read_text()[:-40])  # the last line was being written
    assert len(measured(task, folder)[0]) == 1
    assert measured(task, folder) == ([], [])
    assert [result.metrics for result in run([task], PLAN, folder)] == [result.metrics for result in first]
    more = Plan((*PLAN.methods, "ets"), n_splits=3, jobs=1)
    assert len(measured(task, folder, more)[0]) == 2 * 4 * 3 - 2 * 3


def test_results_of_another_origin_are_measured_again_and_serve_later(task, folder, monkeypatch):
    other = replace(BENCHMARK_METHODS["kcal-untrained"], factory=partial(KCal, projection="identity", smoothing=0.01))
    for change in ("parameters", "data", "seed", "versions"):
        data, plan, methods = task, PLAN, ["uncal", "ts", "kcal-untrained"]
        if change == "parameters":
            monkeypatch.setitem(BENCHMARK_METHODS, "kcal-untrained", other)
            methods = ["kcal-untrained"]
        if change == "data":
            data = make_task(seed=1)  # of the same name
        if change == "seed":
            plan = replace(PLAN, seed=1)
        if change == "versions":
            monkeypatch.setattr(store, "versions", lambda: {"torch": "1.0"})
        done, told = measured(data, folder, plan)
        assert sorted(done) == sorted(methods * 2), change  # by row and by group
        assert f"{len(methods)} stored results" in told[0]
        assert measured(data, folder, plan) == ([], [])
        monkeypatch.undo()
        assert measured(task, folder) == ([], [])


def test_other_files_are_not_mixed_in(task, folder):
    content = (folder / RESULTS_FILE).read_text() + '\n{"key": 3}\n'
    (folder / RESULTS_FILE).write_text(content)
    with pytest.raises(FileFormatError, match="results"):
        run([task], PLAN, folder)
    assert (folder / RESULTS_FILE).read_text() == content


def test_fingerprint_of_a_task_depends_on_all_that_it_holds(task):
    outside = ClassifierOutputs(task.pool.embeddings[:5], task.pool.logits[:5])
    others = [
        replace(task, calibration_share=0.3),
        replace(task, group_calibration_share=0.3),
        replace(task, out_of_scope=outside),
        replace(task, companions={}),
        replace(task, pool=replace(task.pool, labels=task.pool.labels[::-1].copy())),
    ]
    assert len({task_fingerprint(each) for each in (task, *others)}) == 6
    assert task_fingerprint(replace(make_task(), name="other")) == task_fingerprint(task)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that names what is trained, with few steps."""
    names: list[str] = []
    monkeypatch.setitem(RECIPES, "fast", partial(FastRecipe, steps=2))
    factory = partial(KCal, recipe=PaperRecipe(epochs=1, batches_per_epoch=2), bandwidth="published")
    monkeypatch.setitem(BENCHMARK_METHODS, "kcal-paper", replace(BENCHMARK_METHODS["kcal-paper"], factory=factory))
    plain = store.train_for

    def train_and_note(name: str, *given: Any, **options: Any) -> Any:
        names.append(name)
        return plain(name, *given, **options)

    monkeypatch.setattr(store, "train_for", train_and_note)
    return names


def test_methods_that_learn_alike_share_one_training(task, tmp_path, trained, monkeypatch):
    laplace = replace(BENCHMARK_METHODS["kcal"], name="kcal-laplace", factory=partial(KCal, kernel="laplace"))
    monkeypatch.setitem(BENCHMARK_METHODS, "kcal-laplace", laplace)
    names = ("kcal", "kcal-laplace", "kcal-linear", "kcal-blend")
    every = run([task], Plan(names, n_splits=1, jobs=1), tmp_path)
    assert sorted(trained) == ["kcal", "kcal", "kcal-linear", "kcal-linear"]  # by row, by group
    assert [result.error for result in every] == [None] * len(every)
    learning = {result.key.method for result in every if result.train_seconds}
    assert learning == {result.key.method for result in every if "checkpoint_step_" in result.details} == set(names[:3])
    monkeypatch.setitem(RECIPES, "fast", partial(FastRecipe, steps=3))  # its numbers are parameters
    trained.clear()
    measured(task, tmp_path, Plan(names, n_splits=1, jobs=1))
    assert len(trained) == 4


def test_slow_trainings_are_kept_unless_damaged(task, tmp_path, trained):
    plan = Plan(("kcal", "kcal-paper"), n_splits=1, jobs=1)
    first = run([task], plan, tmp_path)
    paths = [training_path("kcal-paper", task, seed=0, by_group=by, folder=tmp_path) for by in (False, True)]
    assert sorted((tmp_path / PROJECTIONS).iterdir()) == sorted(paths)
    for damaged in (False, True):
        (tmp_path / RESULTS_FILE).unlink()
        trained.clear()
        if damaged:
            paths[0].write_bytes(b"{}")
        again = run([task], plan, tmp_path)
        assert sorted(trained) == ["kcal", "kcal"] + ["kcal-paper"] * damaged
        for one, other in zip(first, again, strict=True):
            assert (one.error, one.metrics) == (None, other.metrics)
