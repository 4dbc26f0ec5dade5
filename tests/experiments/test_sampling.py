"""Both samplings estimate the same loss, and their scatter is that of many draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kcal.benchmark import Task
from kcal.benchmark.entrants import train_for
from kcal.benchmark.studies import sampling
from kcal.benchmark.studies.measuring import leave_one_out_loss
from kcal.benchmark.studies.sampling import VarianceRatios, imbalanced, study_sampling, variance_ratios
from kcal.projection import FastRecipe, TrainedProjection


@pytest.fixture
def trained(task: Task) -> TrainedProjection:
    found = train_for("kcal", task, seed=0, by_group=False, recipe=FastRecipe(steps=8))
    assert found is not None
    return found


def test_classes_fall_geometrically(task: Task) -> None:
    cut = imbalanced(task, seed=0, ratio=4)
    counts = np.sort(np.bincount(cut.train.labels))[::-1]
    before = np.sort(np.bincount(task.train.labels))[::-1]
    largest = min(before[0], 2 * before[1], 4 * before[2])
    np.testing.assert_allclose(counts, largest / np.array([1, 2, 4]), atol=0.5)
    assert "1:4" in cut.name
    known = {row.tobytes() for row in task.train.embeddings}
    assert all(row.tobytes() in known for row in cut.train.embeddings)


def test_the_whole_background_gives_the_gradient_of_the_plain_formula(task: Task, trained: TrainedProjection) -> None:
    queries, rest = np.arange(0, 120, 4), np.setdiff1d(np.arange(120), np.arange(0, 120, 4))
    estimator = sampling._Estimator(trained.module, task, queries)
    gradient, losses = estimator.estimate(rest, np.zeros(len(rest)))
    rows, labels = torch.from_numpy(task.train.embeddings), torch.from_numpy(task.train.labels)
    points = estimator.module(rows)
    distances = torch.cdist(points[queries], points[rest]).square() / (2 * points.shape[1])
    own = torch.where(labels[queries][:, None] == labels[rest][None, :], 0.0, -torch.inf)
    expected = torch.logsumexp(-distances, 1) - torch.logsumexp(own - distances, 1)
    np.testing.assert_allclose(losses, expected.detach(), atol=1e-4)
    parts = torch.autograd.grad(expected.mean(), estimator.parameters)
    np.testing.assert_allclose(gradient, torch.cat([part.flatten() for part in parts]), atol=1e-4)


def test_ratios_are_those_of_drawing_by_hand(
    task: Task, trained: TrainedProjection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "PER_CLASS", 4)
    cut = imbalanced(task, seed=0, ratio=8)
    found = variance_ratios(trained.module, cut, seed=0, draws=400)
    labels, generator = cut.train.labels, np.random.default_rng(5)
    queries = np.sort(np.random.default_rng(0).choice(len(labels), len(labels) // 2, replace=False))
    rest = np.setdiff1d(np.arange(len(labels)), queries)
    points = sampling._Estimator(trained.module, cut, queries).module(torch.from_numpy(cut.train.embeddings))
    near = np.exp(-(torch.cdist(points[queries], points[rest]).detach().numpy() ** 2) / 12)
    counts, frequencies = np.bincount(labels[rest]), np.bincount(labels)
    equal = np.minimum(counts, 4)
    numbers = (equal, np.minimum(sampling.proportional_counts(frequencies, int(equal.sum())), counts))
    scatter = []
    for drawn in numbers:
        means = []
        for _ in range(400):
            sums = np.zeros((len(queries), 3))
            for k in range(3):
                chosen = generator.choice(np.flatnonzero(labels[rest] == k), drawn[k], replace=False)
                sums[:, k] = counts[k] / drawn[k] * near[:, chosen].sum(axis=1)
            own = sums[np.arange(len(queries)), labels[queries]] / sums.sum(axis=1)
            means.append(-np.log(own).mean())
        scatter.append(np.var(means))
    assert found.loss == pytest.approx(scatter[0] / scatter[1], rel=0.5)


def test_equally_frequent_classes_are_drawn_alike(
    task: Task, trained: TrainedProjection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "PER_CLASS", 4)
    even = imbalanced(task, seed=0, ratio=1)
    assert variance_ratios(trained.module, even, seed=0, draws=2) == VarianceRatios(1, 1, 1, 1)


def test_the_study_shows_both_training_sets(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "DRAWS", 3)
    monkeypatch.setattr(sampling, "RECIPE", FastRecipe(steps=40))
    study = study_sampling([task], reshuffles=1)
    assert [len(table.rows) for table in study.tables] == [4, 2, 2]
    assert [table.rows[1][0].text for table in study.tables[1:]] == ["small, training set made 1:20"] * 2
    for row in study.tables[2].rows:
        seconds, steps = ([float(entry.text) for entry in row[start : start + 2]] for start in (1, 3))
        assert min(seconds) > 0
        assert max(steps) == 40  # the faster one keeps its own
        assert steps[int(np.argmax(seconds))] <= steps[int(np.argmin(seconds))]


def test_the_slower_sampling_gets_the_steps_that_fit_into_the_shorter_time(task: Task) -> None:
    seeds = range(2)
    equal = sampling.train_timed(task, {"equal": 8}, seeds)["equal"]
    assert len(equal.trained) == 2
    assert equal.seconds > 0
    timed = {"equal": replace(equal, seconds=4.0), "proportional": replace(equal, seconds=3.0)}
    found = sampling.at_equal_time(task, timed, seeds)
    assert found["proportional"] is timed["proportional"]
    assert found["equal"].steps == 6
    again = train_for("kcal", task, seed=1, by_group=False, recipe=FastRecipe(steps=6))
    assert again is not None
    rows = torch.from_numpy(task.pool.embeddings)
    torch.testing.assert_close(found["equal"].trained[1].module(rows), again.module(rows))
    calibration = np.arange(60)
    assert found["equal"].losses(task, calibration, last=True)[1] == leave_one_out_loss(task, calibration, again.module)
    near = {"equal": replace(equal, seconds=3.01), "proportional": replace(equal, seconds=3.0)}
    assert sampling.at_equal_time(task, near, seeds) == near
    even = imbalanced(task, seed=0, ratio=1)
    assert sampling.at_equal_time(even, timed, seeds) == timed
