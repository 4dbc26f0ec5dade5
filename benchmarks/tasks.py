"""Tasks to measure on: the embedded example, and NAME.npz files of train and pool outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kcal import load_example
from kcal.calibrators import ClassifierOutputs


@dataclass(frozen=True)
class Task:
    """A trained network's outputs on its training data, and on a pool that it never saw."""

    name: str
    train: ClassifierOutputs
    pool: ClassifierOutputs
    n_calibration: int

    def split(self, seed: int) -> tuple[ClassifierOutputs, ClassifierOutputs]:
        """Reshuffle the pool into calibration and test."""
        order = np.random.default_rng(seed).permutation(len(self.pool.labels))
        parts = order[: self.n_calibration], order[self.n_calibration :]
        first, second = (
            ClassifierOutputs(self.pool.embeddings[rows], self.pool.logits[rows], self.pool.labels[rows])
            for rows in parts
        )
        return first, second


def read_tasks(folder: Path | None) -> Iterator[Task]:
    """Yield the embedded example, then the tasks of a folder if there is one."""
    yield example_task()
    if folder is not None:
        yield from (read_task(path) for path in sorted(folder.glob("*.npz")) if "@" not in path.stem)


def example_task() -> Task:
    """Return the embedded example with both of its unseen parts as the pool."""
    example = load_example()
    pool = [
        np.concatenate([getattr(part, name) for part in (example.calibration, example.test)])
        for name in ("embeddings", "logits", "labels")
    ]
    train = ClassifierOutputs(example.train.embeddings, example.train.logits, example.train.labels)
    return Task("embedded example", train, ClassifierOutputs(*pool), len(example.calibration))


def read_task(path: Path) -> Task:
    """Read one file."""
    with np.load(path, allow_pickle=False) as stored:
        train, pool = (
            ClassifierOutputs(
                stored[f"{part}_embeddings"].astype(np.float32),
                stored[f"{part}_logits"].astype(np.float32),
                stored[f"{part}_labels"].astype(np.int64),
            )
            for part in ("train", "pool")
        )
        n_calibration = round(float(stored["calibration_share"]) * len(pool.labels))
    return Task(path.stem, train, pool, n_calibration)
