"""Both samplings estimate the same loss, and their variances are those of many draws."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch

from experiments import sampling
from experiments.runner import run_study
from experiments.sampling import estimate, imbalanced, variance_ratios
from experiments.study import TaskSetting
from kcal.benchmark import Task
from kcal.benchmark.tasks import row_splits
from kcal.projection import FastRecipe, TrainedProjection, train_projection

STEPS = 4


@pytest.fixture(scope="module")
def trained(task: Task) -> TrainedProjection:
    return TaskSetting(task).projection(recipe=FastRecipe(steps=STEPS))


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
    gradient, losses = estimate(trained.module, task, queries, rest, np.zeros(len(rest)))
    rows, labels = torch.from_numpy(task.train.embeddings), torch.from_numpy(task.train.labels)
    module = deepcopy(trained.module).eval().requires_grad_(True)
    points = module(rows)
    distances = torch.cdist(points[queries], points[rest]).square() / (2 * points.shape[1])
    own = torch.where(labels[queries][:, None] == labels[rest][None, :], 0.0, -torch.inf)
    expected = torch.logsumexp(-distances, 1) - torch.logsumexp(own - distances, 1)
    np.testing.assert_allclose(losses, expected.detach(), atol=1e-4)
    parts = torch.autograd.grad(expected.mean(), list(module.parameters()))
    np.testing.assert_allclose(gradient, torch.cat([part.flatten() for part in parts]), atol=1e-4)


def test_ratios_are_those_of_drawing_by_hand(
    task: Task, trained: TrainedProjection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "PER_CLASS", 4)
    cut = imbalanced(task, seed=0, ratio=8)
    found = variance_ratios(trained.module, cut, seed=0, draws=200)
    labels, generator = cut.train.labels, np.random.default_rng(5)
    queries = np.sort(np.random.default_rng(0).choice(len(labels), len(labels) // 2, replace=False))
    rest = np.setdiff1d(np.arange(len(labels)), queries)
    points = deepcopy(trained.module).eval()(torch.from_numpy(cut.train.embeddings))
    near = np.exp(-(torch.cdist(points[queries], points[rest]).detach().numpy() ** 2) / 12)
    counts, frequencies = np.bincount(labels[rest]), np.bincount(labels)
    equal = np.minimum(counts, 4)
    numbers = (equal, np.minimum(sampling.proportional_counts(frequencies, int(equal.sum())), counts))
    scatter = []
    for drawn in numbers:
        means = []
        for _ in range(200):
            sums = np.zeros((len(queries), 3))
            for k in range(3):
                chosen = generator.choice(np.flatnonzero(labels[rest] == k), drawn[k], replace=False)
                sums[:, k] = counts[k] / drawn[k] * near[:, chosen].sum(axis=1)
            own = sums[np.arange(len(queries)), labels[queries]] / sums.sum(axis=1)
            means.append(-np.log(own).mean())
        scatter.append(np.var(means))
    assert found[sampling.RATIOS.index("loss")] == pytest.approx(scatter[0] / scatter[1], rel=0.5)


def test_the_study_compares_both_training_sets(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "variance_ratios", partial(variance_ratios, draws=3))
    monkeypatch.setattr(sampling, "RECIPE", FastRecipe(steps=STEPS))
    measured = run_study(sampling.STUDY, lambda: [task], n_splits=2)
    values = measured["small"]["trainings"]
    setting, split = TaskSetting(task), row_splits(150, 0.4, 1, 0)[0]
    for seed in (0, 1):  # a split is a training with a seed of its own
        learned = train_projection(
            task.train.embeddings, task.train.labels, recipe=FastRecipe(steps=STEPS), seed=seed, progress=False
        )
        assert values["equal best"][seed] == pytest.approx(setting.leave_one_out_loss(learned, split))
        assert values["equal last"][seed] == pytest.approx(setting.leave_one_out_loss(learned.module, split))
    for each in measured.values():
        seconds = np.array([each["trainings"][f"{name} seconds"] for name in sampling.SAMPLINGS])
        steps = np.array([each["trainings"][f"{name} steps"] for name in sampling.SAMPLINGS])
        assert (seconds > 0).all()
        assert (steps.max(axis=0) == STEPS).all()  # the faster one keeps its own
