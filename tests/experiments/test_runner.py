"""The runner measures every variant on the same splits, stores at once, and measures nothing twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.lines import Line, Panel
from experiments.runner import n_splits_of, run_study
from experiments.study import Measurements, Study, StudyOutput, TaskSetting, Values, Variant, by_row_and_group
from kcal.benchmark import Task
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tasks import Split


@pytest.fixture
def seen() -> list[tuple[str, str, int]]:
    return []


@pytest.fixture
def study(seen: list[tuple[str, str, int]]) -> Study:
    """A study that notes what it measures: the test rows, and a list."""

    def variants(setting: TaskSetting) -> Mapping[str, Variant]:
        def of(name: str) -> Variant:
            def measure(split: Split) -> Values:
                seen.append((setting.label, name, split.index))
                return {"first": float(split.test[0]), "rows": [1.0, float(len(split.test))]}

            return measure

        return {name: of(name) for name in ("a", "b")}

    def show(measured: Measurements) -> StudyOutput:
        rows = tuple((Entry(label), Entry(str(len(each["a"]["first"])))) for label, each in measured.items())
        panel = Panel("t", "x", "y", (Line("l", (1.0, 2.0), (1.0, 2.0)),))
        return StudyOutput((Table("t", "A title", ("task", "splits"), rows, "A note."),), (panel,))

    return Study("variants", "A study", variants, show, by_row_and_group)


def test_all_variants_are_measured_on_the_same_splits(study: Study, task: Task) -> None:
    progress: list[tuple[str, int, int]] = []
    measured = run_study(study, lambda: [task], n_splits=3, progress=lambda *step: progress.append(step))
    assert list(measured) == ["small", "small (by group)"]
    for label, by_group in (("small", False), ("small (by group)", True)):
        splits = task.splits(3, 0, by_group=by_group)
        for name in ("a", "b"):
            np.testing.assert_array_equal(measured[label][name]["first"], [split.test[0] for split in splits])
            assert measured[label][name]["rows"].tolist() == [[1, len(split.test)] for split in splits]
    assert progress[:2] == [("small", 0, 6), ("small", 1, 6)]
    assert progress[-1] == ("small (by group)", 6, 6)
    assert n_splits_of(measured) == 3
    limited = run_study(replace(study, max_splits=1), lambda: [task], n_splits=3)
    assert n_splits_of(limited) == 1


def test_nothing_is_measured_twice_and_other_seeds_are(
    study: Study, task: Task, seen: list[tuple[str, str, int]], tmp_path: Path
) -> None:
    first = run_study(study, lambda: [task], n_splits=2, folder=tmp_path)
    assert len(seen) == 8
    again = run_study(study, lambda: [task], n_splits=3, folder=tmp_path)
    assert len(seen) == 8 + 4
    assert again["small"]["a"]["first"].tolist()[:2] == first["small"]["a"]["first"].tolist()
    run_study(study, lambda: [task], n_splits=2, seed=1, folder=tmp_path)
    assert len(seen) == 12 + 8
    run_study(study, lambda: [replace(task, calibration_share=0.5)], n_splits=2, seed=1, folder=tmp_path)
    assert len(seen) == 20 + 8


def test_a_stopped_study_resumes(study: Study, task: Task, seen: list[tuple[str, str, int]], tmp_path: Path) -> None:
    def stopping(setting: TaskSetting) -> Mapping[str, Variant]:
        def stop(split: Split) -> Values:
            raise KeyboardInterrupt

        return {**study.variants(setting), "b": stop}

    with pytest.raises(KeyboardInterrupt):
        run_study(replace(study, variants=stopping), lambda: [task], n_splits=2, folder=tmp_path)
    assert len(seen) == 2
    path = tmp_path / "variants.jsonl"
    path.write_text(path.read_text()[:-20])  # the last line was being written
    with pytest.raises(KeyboardInterrupt):
        run_study(replace(study, variants=stopping), lambda: [task], n_splits=2, folder=tmp_path)
    assert len(seen) == 2 + 1
    run_study(study, lambda: [task], n_splits=2, folder=tmp_path)
    assert len(seen) == 3 + 6
