"""The data of the golden cases, made by a generator of their own; other tests may change theirs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class Part:
    embeddings: Floats  # (n, n_features)
    logits: Floats  # (n, n_classes)
    labels: Codes  # (n,)

    def rows(self, chosen: NDArray[np.bool_]) -> Part:
        return Part(self.embeddings[chosen], self.logits[chosen], self.labels[chosen])


@dataclass(frozen=True, repr=False)
class Problem:
    """Gaussian classes and the correlated, overconfident logits of a linear network."""

    calibration: Part
    train: Part
    test: Part
    groups: Codes  # (n_calibration,)
    train_groups: Codes
    weights: Floats  # (n_calibration,), of mean 1
    counts: Codes  # (n_calibration,), 0, 1 or 2, of mean 1
    n_classes: int


@cache
def make(n: int = 180, n_train: int = 240, n_features: int = 12, n_classes: int = 4, seed: int = 20) -> Problem:
    generator = np.random.default_rng(seed)
    centres = generator.normal(scale=0.75, size=(n_classes, n_features))
    mixing = generator.normal(scale=0.25, size=(n_features, n_features)) + np.eye(n_features)
    network = (2.5 * centres + generator.normal(scale=0.4, size=centres.shape)).T
    shares = np.linspace(1.0, 2.0, n_classes) / np.linspace(1.0, 2.0, n_classes).sum()

    def part(size: int) -> Part:
        labels = np.concatenate([np.arange(n_classes), generator.choice(n_classes, size - n_classes, p=shares)])
        embeddings = centres[labels] + generator.normal(size=(size, n_features)) @ mixing
        logits = embeddings @ network + generator.normal(scale=0.5, size=(size, 1))
        return Part(embeddings, logits, labels)

    weights = generator.gamma(4.0, size=n)
    counts = generator.permutation(np.arange(n) % 3)
    return Problem(
        part(n),
        part(n_train),
        part(40),
        groups=generator.integers(0, 30, n),
        train_groups=generator.integers(100, 140, n_train),
        weights=weights / weights.mean(),
        counts=counts,
        n_classes=n_classes,
    )


def few() -> Problem:
    """180 calibration samples of 4 classes with 12 features."""
    return make()


def many() -> Problem:
    """12 classes with 18 features: so many that embeddings are compared by direction."""
    return make(n_features=18, n_classes=12, seed=21)


def without_last_class(problem: Problem) -> Problem:
    """No calibration sample of the last class."""
    kept = problem.calibration.labels < problem.n_classes - 1
    return replace(
        problem,
        calibration=problem.calibration.rows(kept),
        groups=problem.groups[kept],
        weights=problem.weights[kept],
        counts=problem.counts[kept],
    )


def masked(problem: Problem) -> Problem:
    """Logits with one class masked in two rows of three, never the true one."""

    def mask(part: Part) -> Part:
        logits, rows = part.logits.copy(), np.arange(len(part.labels))
        rows = rows[rows % 3 > 0]
        logits[rows, (part.labels[rows] + 1 + rows % (problem.n_classes - 1)) % problem.n_classes] = -1e4
        return replace(part, logits=logits)

    return replace(problem, calibration=mask(problem.calibration), train=mask(problem.train), test=mask(problem.test))


def as_probabilities(problem: Problem) -> Problem:
    """Softmax in place of the logits."""

    def softmax(part: Part) -> Part:
        odds = np.exp(part.logits - part.logits.max(axis=1, keepdims=True))
        return replace(part, logits=odds / odds.sum(axis=1, keepdims=True))

    return replace(
        problem, calibration=softmax(problem.calibration), train=softmax(problem.train), test=softmax(problem.test)
    )


def in_single(problem: Problem) -> Problem:
    """The same in single precision."""

    def single(part: Part) -> Part:
        return replace(part, embeddings=part.embeddings.astype(np.float32), logits=part.logits.astype(np.float32))

    return replace(
        problem, calibration=single(problem.calibration), train=single(problem.train), test=single(problem.test)
    )
