"""Draw the samples of a training step: prediction samples and a background of each class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]

SPARE_DRAWS = 12
"""Draws beyond m for each class, so that a class rarely has too few distinct ones."""


@dataclass(frozen=True)
class Episode:
    """Rows of a step; exp(``log_weights``) is the number of training samples that each background row represents."""

    queries: Index  # (n_query,)
    background: Index  # (n_background,)
    log_weights: NDArray[np.float64]  # (n_background,)


class ClassIndex:
    """The rows of every class, sorted by class."""

    def __init__(self, codes: Index, n_classes: int) -> None:
        self.codes, self.n_classes = codes, n_classes
        self.rows = np.argsort(codes, kind="stable")
        self.counts = np.bincount(codes, minlength=n_classes)
        self.starts = np.concatenate([[0], np.cumsum(self.counts)[:-1]])

    def members(self, k: int) -> Index:
        """Return the rows of class ``k``."""
        return self.rows[self.starts[k] : self.starts[k] + self.counts[k]]

    def draw(
        self, per_class: int | Index, generator: np.random.Generator, unavailable: NDArray[np.bool_] | None = None
    ) -> tuple[Index, Index]:
        """Draw ``per_class`` distinct rows of each class (one number, or one per class), or all if a class has fewer.

        Return the rows, sorted by class, and the number drawn per class. Every class is sampled uniformly without
        replacement: by draws with replacement of which first occurrences are kept; a class with too few distinct
        draws is sampled again by a permutation.
        """
        wanted = np.broadcast_to(np.asarray(per_class, dtype=np.int64), (self.n_classes,))
        tries = int(wanted.max()) + SPARE_DRAWS
        offsets = (generator.random((self.n_classes, tries)) * self.counts[:, None]).astype(np.int64)
        offsets = np.minimum(offsets, np.maximum(self.counts[:, None] - 1, 0))
        rows = self.rows[np.minimum(self.starts[:, None] + offsets, len(self.rows) - 1)]  # (n_classes, tries)
        good = _first_occurrences(offsets)
        if unavailable is not None:
            good &= ~unavailable[rows]
        good &= self.counts[:, None] > 0
        good &= np.cumsum(good, axis=1) <= wanted[:, None]
        drawn = good.sum(axis=1)
        for k in np.flatnonzero(drawn < np.minimum(wanted, self.counts)).tolist():
            available = self.members(k) if unavailable is None else self.members(k)[~unavailable[self.members(k)]]
            chosen = generator.permutation(available)[: wanted[k]]
            drawn[k] = len(chosen)
            good[k] = np.arange(tries) < len(chosen)
            rows[k, : len(chosen)] = chosen
        return rows[good], drawn


def _first_occurrences(values: Index) -> NDArray[np.bool_]:
    """Return a mask of the first occurrence of every value in each row."""
    order = np.argsort(values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1)
    first = np.ones(values.shape, dtype=bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    result = np.empty_like(first)
    np.put_along_axis(result, order, first, axis=1)
    return result


class PaperEpisodes:
    """The paper's step: B prediction samples, and m other samples of each class as background.

    With groups, the prediction samples come from one group, drawn in proportion to its size, and the background
    leaves that group out.
    """

    def __init__(
        self,
        codes: Index,
        n_classes: int,
        *,
        predictions: int,
        per_class: int,
        generator: np.random.Generator,
        groups: Index | None = None,
    ) -> None:
        self.classes = ClassIndex(codes, n_classes)
        self.predictions, self.per_class, self.generator = predictions, per_class, generator
        self.groups = None if groups is None else ClassIndex(groups, int(groups.max()) + 1)
        self.unavailable = np.zeros(len(codes), dtype=bool)

    def draw(self) -> Episode:
        """Return the rows of one step."""
        queries, excluded = self._queries()
        self.unavailable[excluded] = True
        left = self.classes.counts - np.bincount(self.classes.codes[excluded], minlength=self.classes.n_classes)
        background, drawn = self.classes.draw(self.per_class, self.generator, self.unavailable)
        self.unavailable[excluded] = False
        stands_for = left[drawn > 0] / drawn[drawn > 0]
        return Episode(queries, background, np.repeat(np.log(stands_for), drawn[drawn > 0]))

    def _queries(self) -> tuple[Index, Index]:
        n_rows = len(self.unavailable)
        if self.groups is None:
            size = min(self.predictions, max(n_rows // 2, 1))  # a tiny set keeps a background
            queries = self.generator.choice(n_rows, size, replace=False, shuffle=False)
            return queries, queries
        group = self.groups.members(self.groups.codes[self.generator.integers(n_rows)])
        if len(group) <= self.predictions:
            return group, group
        return self.generator.choice(group, self.predictions, replace=False, shuffle=False), group


def proportional_counts(counts: Index, total: int) -> Index:
    """Return the number of samples per class: ``total`` in proportion to frequency, at least 2 where available."""
    shares = total * counts / max(int(counts.sum()), 1)
    least = np.minimum(counts, 2)
    drawn = np.clip(np.rint(shares).astype(np.int64), least, counts)
    while drawn.sum() > total and (drawn > least).any():
        drawn[np.argmax(np.where(drawn > least, drawn - shares, -np.inf))] -= 1
    while drawn.sum() < min(total, counts.sum()):
        drawn[np.argmin(np.where(drawn < counts, drawn - shares, np.inf))] += 1
    return drawn


class StratifiedBatches:
    """One batch that is prediction and background at once: the same number of samples of each class.

    ``proportional`` draws the same total, but each class in proportion to its frequency.

    exp(``log_weights``) is the number of training samples that a sample of the batch represents when it predicts
    another: of its own class n − 1 others, of which m − 1 are in the batch. ``shares`` are the weights of the
    log-losses in the batch: with them their sum estimates the mean over the training set or, if ``balanced``, the mean
    of the class means.
    """

    def __init__(
        self,
        codes: Index,
        n_classes: int,
        *,
        batch_size: int,
        generator: np.random.Generator,
        proportional: bool = False,
        balanced: bool = False,
    ) -> None:
        self.classes, self.generator = ClassIndex(codes, n_classes), generator
        present = int((self.classes.counts > 0).sum())
        per_class = max(2, batch_size // max(present, 1))
        drawn = np.minimum(self.classes.counts, per_class)
        if proportional:
            drawn = proportional_counts(self.classes.counts, int(drawn.sum()))
        self.per_class: Index = drawn if proportional else np.full(n_classes, per_class)
        stands_for = self.classes.counts / np.maximum(drawn, 1)
        self.codes = np.repeat(np.arange(n_classes), drawn)
        others = (self.classes.counts - 1) / np.maximum(drawn - 1, 1)
        by_class = np.tile(np.log(np.maximum(stands_for, 1.0)), (n_classes, 1))
        np.fill_diagonal(by_class, np.log(np.maximum(others, 1.0)))
        self.log_weights = by_class[self.codes[:, None], self.codes[None, :]]  # (predicted, predicts)
        counts_for = 1 / np.maximum(drawn * present, 1) if balanced else stands_for / self.classes.counts.sum()
        self.shares = np.repeat(counts_for, drawn)

    def draw(self) -> Index:
        """Return the rows of one batch, sorted by class; ``codes`` are their classes."""
        return self.classes.draw(self.per_class, self.generator)[0]
