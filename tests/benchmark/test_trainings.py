"""Trainings that take an hour: kept in the folder of a run, and used again while they are what a run would train."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmark.conftest import make_task
from kcal import KCal
from kcal.benchmark import BENCHMARK_METHODS, Plan, Task, run, trainings
from kcal.benchmark.store import RESULTS_FILE
from kcal.projection import RECIPES, FastRecipe, PaperRecipe

PLAN = Plan(("kcal", "kcal-paper"), n_splits=1, jobs=1)


def train_with(monkeypatch: pytest.MonkeyPatch, recipe: PaperRecipe) -> None:
    factory = partial(KCal, recipe=recipe, bandwidth="published")
    monkeypatch.setitem(BENCHMARK_METHODS, "kcal-paper", replace(BENCHMARK_METHODS["kcal-paper"], factory=factory))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that names what is trained, with few steps."""
    names: list[str] = []
    monkeypatch.setitem(RECIPES, "fast", partial(FastRecipe, steps=2))
    train_with(monkeypatch, PaperRecipe(epochs=1, batches_per_epoch=2))
    plain = trainings.train_for

    def train(name: str, *given: Any, **options: Any) -> Any:
        names.append(name)
        return plain(name, *given, **options)

    monkeypatch.setattr(trainings, "train_for", train)
    return names


def kept(folder: Path) -> set[str]:
    return {path.name for path in (folder / trainings.FOLDER).iterdir()}


def test_a_run_that_measures_again_does_not_train_again(task: Task, tmp_path: Path, trained: list[str]) -> None:
    first = run([task], PLAN, tmp_path)
    assert sorted(trained) == ["kcal", "kcal", "kcal-paper", "kcal-paper"]
    assert {name.split("-")[1] for name in kept(tmp_path)} == {"row", "group"}
    assert len(kept(tmp_path)) == 4  # of the slow method alone: a projection and its seconds, by row and by group
    (tmp_path / RESULTS_FILE).unlink()
    trained.clear()
    again = run([task], PLAN, tmp_path)
    assert trained == ["kcal", "kcal"]
    for one, other in zip(first, again, strict=True):
        assert one.error is None
        assert one.metrics == other.metrics
        if one.key.method == "kcal-paper":
            assert one.train_seconds == other.train_seconds > 0


def test_a_kept_projection_is_the_trained_one_to_the_bit(task: Task, tmp_path: Path, trained: list[str]) -> None:
    first, again = (trainings.train("kcal-paper", task, seed=0, by_group=True, folder=tmp_path) for _ in range(2))
    assert trained == ["kcal-paper"]
    for one, other in zip(first.projection.module.parameters(), again.projection.module.parameters(), strict=True):
        assert torch.equal(one, other)
    assert (first.seconds, first.projection.recipe) == (again.seconds, again.projection.recipe)


@pytest.mark.usefixtures("trained")
def test_another_training_has_another_file(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def path(task: Task = task, seed: int = 0, by_group: bool = False) -> Path:
        return trainings.kept_path("kcal-paper", task, seed=seed, by_group=by_group, folder=tmp_path)

    first = path()
    assert first == path(replace(task, pool=make_task(seed=1).pool, calibration_share=0.2))  # it is not trained on
    others = [path(make_task(seed=1)), path(seed=1), path(by_group=True)]
    monkeypatch.setattr(trainings, "TRAINING_CODE", ("projection",))
    others.append(path())
    train_with(monkeypatch, PaperRecipe(epochs=2))
    others.append(path())
    monkeypatch.setattr(trainings, "TRAINING_PACKAGES", ())
    others.append(path())
    assert len({first, *others}) == 7


def test_a_damaged_file_is_trained_again(task: Task, tmp_path: Path, trained: list[str]) -> None:
    path = trainings.kept_path("kcal-paper", task, seed=0, by_group=False, folder=tmp_path)
    for damaged in (path, path.with_suffix(".json")):
        first = trainings.train("kcal-paper", task, seed=0, by_group=False, folder=tmp_path)
        damaged.write_bytes(b"{}")
        trained.clear()
        again = trainings.train("kcal-paper", task, seed=0, by_group=False, folder=tmp_path)
        assert trained == ["kcal-paper"]
        np.testing.assert_array_equal(first.projection.module.bend.weight, again.projection.module.bend.weight)
