"""A small task, drawn at random."""

from __future__ import annotations

import numpy as np
import pytest

from kcal.benchmark import Task
from kcal.embeddings import ClassifierOutputs


def outputs(generator: np.random.Generator, n: int, n_groups: int) -> ClassifierOutputs:
    labels = np.concatenate([np.arange(3), generator.integers(3, size=n - 3)])
    means = np.eye(3, 6)[labels]
    embeddings = (2 * means + generator.normal(size=(n, 6))).astype(np.float32)
    logits = (3 * means[:, :3] + 1.5 * generator.normal(size=(n, 3))).astype(np.float32)
    return ClassifierOutputs(embeddings, logits, labels, np.arange(n) % n_groups)


def make_task(
    name: str = "small", *, companions: bool = True, n_groups: int = 5, seed: int = 0, n_out_of_scope: int = 0
) -> Task:
    generator = np.random.default_rng(seed)
    train, pool = outputs(generator, 120, n_groups), outputs(generator, 150, n_groups)
    trained = {"focal": pool.logits + 0.1, "mmce": 0.5 * pool.logits} if companions else {}
    outside = None
    if n_out_of_scope:
        far = (5 + generator.normal(size=(n_out_of_scope, 6))).astype(np.float32)
        outside = ClassifierOutputs(far, generator.normal(size=(n_out_of_scope, 3)).astype(np.float32))
    return Task(name, train, pool, 0.4, ("cat", "dog", "owl"), trained, outside)


@pytest.fixture
def task() -> Task:
    return make_task()
