"""Stored results are used again where nothing that they depend on has changed, and only there."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmark.conftest import make_task
from kcal import KCal
from kcal.benchmark import BENCHMARK_METHODS, Plan, Results, Task, run, trainings
from kcal.benchmark.methods import parameters_hash
from kcal.benchmark.output import as_json
from kcal.benchmark.store import RESULTS_FILE, code_fingerprint, task_fingerprint
from kcal.embeddings import ClassifierOutputs
from kcal.errors import FileFormatError, KcalWarning
from kcal.projection import RECIPES, FastRecipe

PLAN = Plan(("ts", "kcal-untrained"), n_splits=1, jobs=1)


def measured(task: Task, folder: Path, plan: Plan = PLAN) -> tuple[list[str], list[str]]:
    """Run, and return the methods that were measured and the warnings."""
    steps: list[str] = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", KcalWarning)
        run([task], plan, folder, progress=lambda what, *_: steps.append(what))
    done = [what.partition(": ")[2] for what in steps if ": " in what and "preparing" not in what]
    return done, [str(each.message) for each in told]


def change_lines(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    lines = [json.loads(line) for line in (folder / RESULTS_FILE).read_text().splitlines()]
    for line in lines[1:]:
        change(line)
    (folder / RESULTS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run([make_task()], PLAN, tmp_path)
    return tmp_path


def test_other_parameters_are_measured_anew_and_the_old_ones_serve_again(
    task: Task, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(BENCHMARK_METHODS["kcal-untrained"], factory=partial(KCal, projection="identity", smoothing=0.01))
    monkeypatch.setitem(BENCHMARK_METHODS, "kcal-untrained", other)
    done, told = measured(task, folder)
    assert done == ["kcal-untrained"] * 2
    by_row, by_group = told
    assert by_row == "small: stored results are measured again: 1 with other parameters of kcal-untrained."
    assert by_group.startswith("small, by group: ")
    assert measured(task, folder) == ([], [])
    monkeypatch.undo()
    assert measured(task, folder) == ([], [])


def test_a_recipe_of_other_numbers_is_another_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("kcal", "kcal-logits", "kcal-blend", "ts")
    before = {name: parameters_hash(name, seed=0) for name in names}
    monkeypatch.setitem(RECIPES, "fast", partial(FastRecipe, steps=7))
    after = {name: parameters_hash(name, seed=0) for name in names}
    assert [name for name in names if before[name] == after[name]] == ["kcal-blend", "ts"]


def test_other_versions_are_measured_anew(task: Task, folder: Path) -> None:
    change_lines(folder, lambda line: line["origin"]["versions"].update(torch="1.0", python="2.7", gpytorch="0.1"))
    done, told = measured(task, folder)
    assert len(done) == 2 * 3
    assert "3 with torch 1.0, now " in told[0]
    assert "python" not in told[0]
    assert "gpytorch" not in told[0]


def test_other_code_is_measured_anew(task: Task, folder: Path) -> None:
    change_lines(folder, lambda line: line["origin"].update(code="0"))
    done, told = measured(task, folder)
    assert len(done) == 2 * 3
    assert "3 with other code of kcal" in told[0]
    assert measured(task, folder) == ([], [])


def test_code_is_the_same_whatever_its_comments_say(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()

    def fingerprint(text: str) -> str:
        (tmp_path / "part" / "sums.py").write_text(text)
        return code_fingerprint.__wrapped__(tmp_path, ("part",))

    plain = fingerprint('"""Sums."""\n\ndef double(x):\n    return 2 * x\n')
    assert fingerprint('# new\n\ndef double(x):\n    """Twice."""\n    return 2*x\n') == plain
    assert fingerprint("def double(x):\n    return 3 * x\n") != plain
    assert fingerprint("def twice(x):\n    return 2 * x\n") != plain
    assert code_fingerprint.__wrapped__(tmp_path, ("part/sums.py",)) == fingerprint("def twice(x):\n    return 2 * x\n")


def test_the_fingerprint_of_a_task_depends_on_all_that_it_holds(task: Task) -> None:
    outside = ClassifierOutputs(task.pool.embeddings[:5], task.pool.logits[:5])
    others = [
        replace(task, calibration_share=0.3),
        replace(task, group_calibration_share=0.3),
        replace(task, out_of_scope=outside),
        replace(task, out_of_scope=ClassifierOutputs(task.pool.embeddings[:5] + 1, task.pool.logits[:5])),
        replace(task, companions={}),
        replace(task, pool=replace(task.pool, labels=task.pool.labels[::-1])),
    ]
    assert len({task_fingerprint(each) for each in (task, *others)}) == 7
    assert task_fingerprint(replace(task, name="other")) == task_fingerprint(task)


def test_results_state_the_versions_they_were_measured_with(task: Task, folder: Path) -> None:
    change_lines(folder, lambda line: line["origin"]["versions"].update(python="3.0"))
    results = Results.of(run([task], PLAN, folder), PLAN.methods)
    assert results.versions["python"] == "3.0"
    assert as_json(results, PLAN)["versions"] == results.versions


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that names what is trained, with few steps."""
    names: list[str] = []
    monkeypatch.setitem(RECIPES, "fast", partial(FastRecipe, steps=2))
    plain = trainings.train_for

    def train(name: str, *given: Any, **options: Any) -> Any:
        names.append(name)
        return plain(name, *given, **options)

    monkeypatch.setattr(trainings, "train_for", train)
    return names


def test_methods_that_learn_alike_share_one_training(
    task: Task, tmp_path: Path, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    laplace = replace(BENCHMARK_METHODS["kcal"], name="kcal-laplace", factory=partial(KCal, kernel="laplace"))
    monkeypatch.setitem(BENCHMARK_METHODS, "kcal-laplace", laplace)
    names = ("kcal", "kcal-laplace", "kcal-linear", "kcal-blend")
    every = run([task], Plan(names, n_splits=1, jobs=1), tmp_path / "every")
    assert sorted(trained) == ["kcal", "kcal", "kcal-linear", "kcal-linear"]  # by row, by group
    assert [result.error for result in every] == [None] * len(every)
    assert {result.key.method for result in every if result.train_seconds} == set(names[:3])
    alone = run([task], Plan(("kcal-laplace",), n_splits=1, jobs=1), tmp_path / "alone")
    shared = {result.key: result for result in every}
    again = [result for result in alone if result.key.method == "kcal-laplace"]
    assert [result.metrics for result in again] == [shared[result.key].metrics for result in again]
    learned = {result.key.method for result in every if result.details.get("checkpoint_step_") in (0, 1, 2)}
    assert learned == set(names[:3])


def test_only_what_is_missing_is_trained_and_its_seconds_are_kept(
    task: Task, tmp_path: Path, trained: list[str]
) -> None:
    plan = Plan(("ts", "kcal"), n_splits=1, jobs=1)
    first = Results.of(run([task], plan, tmp_path), plan.methods)
    assert trained.count("kcal") == 2  # by row, by group
    trained.clear()
    again = Results.of(run([task], plan, tmp_path), plan.methods)
    assert trained == []
    seconds = first.training_seconds(first.rows[0], "kcal")
    assert seconds is not None
    assert seconds > 0
    assert again.training_seconds(first.rows[0], "kcal") == seconds
    assert again.training_seconds(first.rows[0], "ts") is None
    run([task], Plan(("ts", "kcal", "vector"), n_splits=1, jobs=1), tmp_path)
    assert trained == []


def test_a_file_of_something_else_is_not_written_over(task: Task, tmp_path: Path) -> None:
    (tmp_path / RESULTS_FILE).write_text("my notes\n")
    with pytest.raises(FileFormatError, match="does not begin with the settings of a run"):
        run([task], PLAN, tmp_path)
    assert (tmp_path / RESULTS_FILE).read_text() == "my notes\n"
