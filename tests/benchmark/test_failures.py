"""A failure of a method or a task is reported in its place, and the rest of the run goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.conftest import make_task
from kcal.benchmark import Plan, Result, ResultKey, Results, Task, run, trainings
from kcal.benchmark.output import as_json, markdown
from kcal.benchmark.results import TABLE_METRICS, Row
from kcal.benchmark.table import Entry
from kcal.benchmark.tables import all_tables, failure_table, group_note, metric_table, rank_table, time_table

ECE = "expected_calibration_error"


def result(method: str, split: int, ece: float, error: str | None = None) -> Result:
    key = ResultKey("task", False, split, method)
    return Result(key, error=error) if error else Result(key, dict.fromkeys(TABLE_METRICS, 0.5) | {ECE: ece}, 1.0, 0.5)


def results_with(*failing: tuple[str, int]) -> Results:
    levels = {"uncal": 0.3, "ts": 0.1, "kcal": 0.2}
    found = [
        result(method, index, ece + 0.01 * index, "ValueError: a|b\nc" if (method, index) in failing else None)
        for method, ece in levels.items()
        for index in range(10)
    ]
    return Results.of(found, (*levels, "focal"))


def test_training_that_fails_is_in_the_results_of_its_method(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str, *_: object, **__: object) -> None:
        if name == "kcal":
            raise ZeroDivisionError("nothing to learn")

    monkeypatch.setattr(trainings, "train_for", fail)
    found = run([task], Plan(("ts", "kcal"), 2, jobs=1), tmp_path)
    for each in found:
        if each.key.method == "kcal":
            assert each.error is not None
            assert each.error.startswith("training the projection: ZeroDivisionError: nothing to learn")
        else:
            assert each.error is None
    assert len(found) == 2 * 2 * 3


@pytest.mark.parametrize("n_groups", [1, 2])
def test_too_few_groups_are_split_by_row_with_a_note(n_groups: int, tmp_path: Path) -> None:
    plan = Plan(("ts",), 1, jobs=1)
    tasks = [make_task("few", n_groups=n_groups), make_task("enough", n_groups=3)]
    results = Results.of(run(tasks, plan, tmp_path), plan.methods)
    assert [row.label for row in results.rows] == ["few", "enough", "enough (by group)"]
    note = group_note(results)
    assert note.startswith("Split by row only, with fewer than 3 groups in the pool: few (")
    assert "enough" not in note
    assert note in markdown(all_tables(results), note)
    assert group_note(results_with()) == ""


def test_failed_and_missing_methods_look_different() -> None:
    results = results_with(*(("ts", index) for index in range(10)))
    assert [entry.text for entry in metric_table(results, ECE).rows[0]][2:] == ["failed", "24.50±3.03", "–"]
    assert metric_table(results, ECE).rows[0][3].bold
    assert [entry.text for entry in rank_table(results).rows[0]][2:] == ["failed", "1.50", "–"]
    assert [entry.text for entry in time_table(results).rows[0]][2:] == ["failed", "1.00 + 0.50", "–"]


def test_failing_now_and_then_leaves_a_mean_that_is_not_compared() -> None:
    results = results_with(("ts", 1))
    ts, kcal = metric_table(results, ECE).rows[0][2:4]
    assert ts == Entry("14.89±2.93 ✗1")
    assert kcal.bold
    ranks = results.ranks(ECE)
    assert ranks is not None
    assert set(ranks.ranks) == {"uncal", "kcal"}
    assert results.values(Row("task", False), ECE, "ts") is None


def test_without_the_baseline_numbers_stand_without_marks() -> None:
    results = results_with(("uncal", 0))
    row = metric_table(results, ECE).rows[0]
    assert [entry.text for entry in row] == ["task", "35.00±2.74 ✗1", "14.50±3.03", "24.50±3.03", "–"]
    assert not any(entry.bold for entry in row)
    assert as_json(results, Plan(("ts", "kcal"), 10))["versions"] == {}
    nobody = results_with(*((method, index) for method in ("uncal", "ts", "kcal") for index in range(10)))
    assert all(table.rows for table in all_tables(nobody))


def test_errors_are_whole_lines_of_a_table() -> None:
    results = results_with(("ts", 1))
    by_group = [replace(each, key=replace(each.key, by_group=True)) for each in results.results]
    text = failure_table(Results.of([*results.results, *by_group], results.methods)).as_markdown()
    assert "| task | ts | 1 | ValueError: a\\|b c |" in text
    assert "| task (by group) | ts | 1 | ValueError: a\\|b c |" in text
    assert failure_table(results_with()).rows == ()
