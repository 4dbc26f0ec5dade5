"""Both samplings estimate the same loss, and their variances are those of many draws."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch

from experiments.sampling import estimate, imbalanced
from experiments.study import TaskSetting
from kcal.benchmark import Task
from kcal.projection import FastRecipe, TrainedProjection

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
