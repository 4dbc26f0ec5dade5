"""Stored results and trainings are used again where nothing that they depend on has changed, and only there."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmark.conftest import make_task
from kcal import KCal
from kcal.benchmark import BENCHMARK_METHODS, Plan, Results, Task, run, store
from kcal.benchmark.methods import parameters_hash
from kcal.benchmark.store import PROJECTIONS, RESULTS_FILE, code_fingerprint, task_fingerprint, train, training_path
from kcal.embeddings import ClassifierOutputs
from kcal.errors import FileFormatError, InvalidInputError, KcalWarning
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
    first = Results.of(run([task], PLAN, folder), PLAN.methods)
    path.write_text(path.read_text()[:-40])  # the last line was being written
    assert len(measured(task, folder)[0]) == 1
    assert measured(task, folder) == ([], [])
    again = Results.of(run([task], PLAN, folder), PLAN.methods)
    assert [result.metrics for result in again.results] == [result.metrics for result in first.results]
    more = Plan((*PLAN.methods, "ets"), n_splits=3, jobs=1)
    assert len(measured(task, folder, more)[0]) == 2 * 4 * 3 - 2 * 3


def test_other_parameters_are_measured_again_and_the_old_ones_serve_later(task, folder, monkeypatch):
    other = replace(BENCHMARK_METHODS["kcal-untrained"], factory=partial(KCal, projection="identity", smoothing=0.01))
    monkeypatch.setitem(BENCHMARK_METHODS, "kcal-untrained", other)
    done, told = measured(task, folder)
    assert done == ["kcal-untrained"] * 2
    assert told[0].startswith("small: 1 stored results are measured again")
    assert measured(task, folder) == ([], [])
    monkeypatch.undo()
    assert measured(task, folder) == ([], [])


def test_results_of_another_origin_are_measured_again(task, folder, monkeypatch):
    other = make_task(seed=1)  # of the same name
    for name in ("data", "versions", "code"):
        if name == "versions":
            monkeypatch.setattr(store, "versions", lambda: {"torch": "1.0"})
        if name == "code":
            monkeypatch.setattr(store, "code_fingerprint", lambda: "other")
        done, told = measured(other, folder)
        assert len(done) == 2 * 3, name
        assert told[0].startswith("small: 3 stored results are measured again")
        assert measured(other, folder) == ([], [])
    monkeypatch.undo()
    assert measured(task, folder) == ([], [])


def test_other_files_and_seeds_are_not_mixed_in(task, folder):
    with pytest.raises(InvalidInputError, match="seed"):
        run([task], replace(PLAN, seed=1), folder)
    for content in ((folder / RESULTS_FILE).read_text() + '{"key": 3}\n', "my notes\n"):
        (folder / RESULTS_FILE).write_text(content)
        with pytest.raises(FileFormatError, match="results"):
            run([task], PLAN, folder)
        assert (folder / RESULTS_FILE).read_text() == content


def test_fingerprint_of_code_ignores_comments_and_docstrings(tmp_path):
    (tmp_path / "part").mkdir()

    def fingerprint(text: str) -> str:
        (tmp_path / "part" / "sums.py").write_text(text)
        return code_fingerprint.__wrapped__(tmp_path, ("part",))

    plain = fingerprint('"""Sums."""\n\ndef double(x):\n    return 2 * x\n')
    assert fingerprint('# new\n\ndef double(x):\n    """Twice."""\n    return 2*x\n') == plain
    assert fingerprint("def double(x):\n    return 3 * x\n") != plain


def test_fingerprint_of_a_task_depends_on_all_that_it_holds(task):
    outside = ClassifierOutputs(task.pool.embeddings[:5], task.pool.logits[:5])
    others = [
        replace(task, calibration_share=0.3),
        replace(task, group_calibration_share=0.3),
        replace(task, out_of_scope=outside),
        replace(task, companions={}),
        replace(task, pool=replace(task.pool, labels=task.pool.labels[::-1])),
    ]
    assert len({task_fingerprint(each) for each in (task, *others)}) == 6
    assert task_fingerprint(replace(task, name="other")) == task_fingerprint(task)


def test_numbers_of_a_recipe_are_parameters(monkeypatch):
    names = ("kcal", "kcal-logits", "kcal-blend", "ts")
    before = {name: parameters_hash(name, seed=0) for name in names}
    monkeypatch.setitem(RECIPES, "fast", partial(FastRecipe, steps=7))
    assert [name for name in names if before[name] == parameters_hash(name, seed=0)] == ["kcal-blend", "ts"]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that names what is trained, with few steps."""
    names: list[str] = []
    monkeypatch.setitem(RECIPES, "fast", partial(FastRecipe, steps=2))
    train_with(monkeypatch, PaperRecipe(epochs=1, batches_per_epoch=2))
    plain = store.train_for

    def train_and_note(name: str, *given: Any, **options: Any) -> Any:
        names.append(name)
        return plain(name, *given, **options)

    monkeypatch.setattr(store, "train_for", train_and_note)
    return names


def train_with(monkeypatch: pytest.MonkeyPatch, recipe: PaperRecipe) -> None:
    factory = partial(KCal, recipe=recipe, bandwidth="published")
    monkeypatch.setitem(BENCHMARK_METHODS, "kcal-paper", replace(BENCHMARK_METHODS["kcal-paper"], factory=factory))


def test_methods_that_learn_alike_share_one_training(task, tmp_path, trained, monkeypatch):
    laplace = replace(BENCHMARK_METHODS["kcal"], name="kcal-laplace", factory=partial(KCal, kernel="laplace"))
    monkeypatch.setitem(BENCHMARK_METHODS, "kcal-laplace", laplace)
    names = ("kcal", "kcal-laplace", "kcal-linear", "kcal-blend")
    every = run([task], Plan(names, n_splits=1, jobs=1), tmp_path)
    assert sorted(trained) == ["kcal", "kcal", "kcal-linear", "kcal-linear"]  # by row, by group
    assert [result.error for result in every] == [None] * len(every)
    learning = {result.key.method for result in every if result.train_seconds}
    assert learning == {result.key.method for result in every if "checkpoint_step_" in result.details} == set(names[:3])
    trained.clear()
    again = run([task], Plan((*names, "ts"), n_splits=1, jobs=1), tmp_path)
    assert trained == []
    seconds = {result.key: result.train_seconds for result in every}
    assert all(result.train_seconds == seconds.get(result.key) for result in again)


def test_slow_trainings_are_kept(task, tmp_path, trained):
    plan = Plan(("kcal", "kcal-paper"), n_splits=1, jobs=1)
    first = run([task], plan, tmp_path)
    assert sorted(trained) == ["kcal", "kcal", "kcal-paper", "kcal-paper"]
    assert len(list((tmp_path / PROJECTIONS).iterdir())) == 4  # a projection and its seconds, by row and by group
    (tmp_path / RESULTS_FILE).unlink()
    trained.clear()
    again = run([task], plan, tmp_path)
    assert trained == ["kcal", "kcal"]
    for one, other in zip(first, again, strict=True):
        assert (one.error, one.metrics) == (None, other.metrics)
        if one.key.method == "kcal-paper":
            assert one.train_seconds == other.train_seconds > 0


def test_training_path_depends_on_what_is_trained(task, tmp_path, trained, monkeypatch):
    def path(task: Task = task, seed: int = 0, by_group: bool = False) -> Path:
        return training_path("kcal-paper", task, seed=seed, by_group=by_group, folder=tmp_path)

    first = path()
    assert first == path(replace(task, pool=make_task(seed=1).pool, calibration_share=0.2))  # it is not trained on
    others = [path(make_task(seed=1)), path(seed=1), path(by_group=True)]
    train_with(monkeypatch, PaperRecipe(epochs=2))
    assert len({first, path(), *others}) == 5


def test_damaged_training_is_trained_again(task, tmp_path, trained):
    path = training_path("kcal-paper", task, seed=0, by_group=False, folder=tmp_path)
    for damaged in (path, path.with_suffix(".json")):
        (one, seconds), (kept, same_seconds) = (
            train("kcal-paper", task, seed=0, by_group=False, folder=tmp_path) for _ in range(2)
        )
        assert all(map(torch.equal, one.module.parameters(), kept.module.parameters()))
        assert seconds == same_seconds
        damaged.write_bytes(b"{}")
        trained.clear()
        train("kcal-paper", task, seed=0, by_group=False, folder=tmp_path)
        assert trained == ["kcal-paper"]
