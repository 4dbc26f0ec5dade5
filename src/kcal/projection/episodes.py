"""Draw the samples of a training step: prediction samples and a background of each class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kcal.projection.recipes import FastRecipe, PaperRecipe
from kcal.samples import Samples

Index = NDArray[np.int64]

SPARE_DRAWS = 12
"""Draws beyond m for each class, so that a class rarely has too few distinct ones."""
DRAWN_AT_ONCE, MAX_STEPS_AT_ONCE = 200_000, 256
"""Background samples, and steps, that are drawn at a time."""


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

    def draw(self, per_class: int | Index, generator: np.random.Generator) -> tuple[Index, Index]:
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
        good &= self.counts[:, None] > 0
        good &= np.cumsum(good, axis=1) <= wanted[:, None]
        drawn = good.sum(axis=1)
        for k in np.flatnonzero(drawn < np.minimum(wanted, self.counts)).tolist():
            chosen = generator.permutation(self.members(k))[: wanted[k]]
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


def draw_distinct(counts: Index, size: int, generator: np.random.Generator) -> Index:
    """Return ``size`` distinct integers below each count, (n, size), every set equally likely: Floyd's algorithm.

    Where a count is smaller than ``size``, all integers below it are drawn, and the other places hold −1.
    """
    chosen = np.empty((size, len(counts)), dtype=np.int64)
    uniform = generator.random((size, len(counts)))
    for place in range(size):
        last = counts - size + place
        candidate = (uniform[place] * (last + 1)).astype(np.int64)
        known = (chosen[:place] == candidate).any(axis=0)
        chosen[place] = np.where(known, last, candidate)
        chosen[place][last < 0] = -1
    return chosen.T


class PaperEpisodes:
    """The paper's step: B prediction samples, and m other samples of each class as background.

    With groups, the prediction samples come from one group, drawn in proportion to its size, and the background
    leaves that group out. Many steps are drawn at a time.
    """

    def __init__(self, samples: Samples, recipe: PaperRecipe, generator: np.random.Generator) -> None:
        codes, groups, self.generator = samples.codes, samples.groups, generator
        self.predictions, self.per_class = recipe.predictions, recipe.background_per_class
        self.rows = np.argsort(codes, kind="stable") if groups is None else np.lexsort((groups, codes))
        self.codes, self.counts = codes[self.rows], np.bincount(codes, minlength=samples.n_classes)
        self.groups = None if groups is None else ClassIndex(groups, int(groups.max()) + 1)
        self.n_steps = min(max(DRAWN_AT_ONCE // (samples.n_classes * self.per_class), 1), MAX_STEPS_AT_ONCE)
        self._ahead: list[Episode] = []

    def draw(self) -> Episode:
        """Return the rows of one step."""
        if not self._ahead:
            steps = self._steps() if self.groups is None else self._steps_by_group(self.groups)
            self._ahead = [self._episode(*step) for step in zip(*steps, strict=True)]
        return self._ahead.pop()

    def _episode(self, queries: Index, places: Index, left: Index) -> Episode:
        """Return a step from its queries, the places of its background in ``rows``, and the numbers of samples left."""
        drawn = np.minimum(left, self.per_class)
        stands_for = np.maximum(left, 1) / np.maximum(drawn, 1)
        return Episode(queries[queries >= 0], self.rows[places[places >= 0]], np.repeat(np.log(stands_for), drawn))

    def _steps(self) -> tuple[Index, Index, Index]:
        """Return queries, (n, B), places of the background, (n, K, m), and samples left by class, (n, K); −1 is none.

        Drawn are places among the samples that are not queries; the number of queries before each leads to its place
        among all. The i-th query, at p_i, is before a place g among the others if p_i − i ≤ g.
        """
        n_rows, n_classes, step = len(self.rows), len(self.counts), np.arange(self.n_steps)[:, None]
        size = min(self.predictions, max(n_rows // 2, 1))  # a tiny set keeps a background
        queries = np.sort(draw_distinct(np.full(self.n_steps, n_rows), size, self.generator), axis=1)
        classes = (self.codes[queries] + n_classes * step).reshape(-1)
        left = self.counts - np.bincount(classes, minlength=n_classes * self.n_steps).reshape(-1, n_classes)
        drawn = draw_distinct(left.reshape(-1), self.per_class, self.generator).reshape(self.n_steps, -1)
        starts = np.repeat(np.cumsum(left, axis=1) - left, self.per_class, axis=1)
        others = drawn + starts + n_rows * step  # ascending from step to step
        before = np.searchsorted((queries - np.arange(size) + n_rows * step).reshape(-1), others.reshape(-1), "right")
        places = drawn + starts + before.reshape(drawn.shape) - size * step
        return self.rows[queries], np.where(drawn < 0, -1, places), left

    def _steps_by_group(self, groups: ClassIndex) -> tuple[Index, Index, Index]:
        """Return the same with the queries of each step from one group, all of which its background leaves out.

        ``rows`` are sorted by class and group: a group is one run of places in each class.
        """
        chosen = groups.codes[self.generator.integers(len(self.rows), size=self.n_steps)]
        queries = draw_distinct(groups.counts[chosen], self.predictions, self.generator)
        queries = np.where(queries < 0, -1, groups.rows[groups.starts[chosen][:, None] + queries])
        keys = self.codes * groups.n_classes + groups.codes[self.rows]
        wanted = np.arange(len(self.counts)) * groups.n_classes + chosen[:, None]  # (n, K)
        first, end = np.searchsorted(keys, wanted, "left"), np.searchsorted(keys, wanted, "right")
        left = self.counts - (end - first)
        drawn = draw_distinct(left.reshape(-1), self.per_class, self.generator).reshape(*left.shape, -1)
        places = drawn + (np.cumsum(self.counts) - self.counts)[:, None]
        places += np.where(places >= first[..., None], (end - first)[..., None], 0)
        return queries, np.where(drawn < 0, -1, places), left


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

    def __init__(self, samples: Samples, recipe: FastRecipe, generator: np.random.Generator) -> None:
        n_classes, self.generator = samples.n_classes, generator
        self.classes = ClassIndex(samples.codes, n_classes)
        counts = self.classes.counts
        present = int((counts > 0).sum())
        self.per_class = np.full(n_classes, max(2, recipe.batch_size // max(present, 1)))
        self.drawn = np.minimum(counts, self.per_class)
        if recipe.sampling == "proportional":
            self.drawn = self.per_class = proportional_counts(counts, int(self.drawn.sum()))
        stands_for = counts / np.maximum(self.drawn, 1)
        others = (counts - 1) / np.maximum(self.drawn - 1, 1)
        by_class = np.tile(np.log(np.maximum(stands_for, 1.0)), (n_classes, 1))
        np.fill_diagonal(by_class, np.log(np.maximum(others, 1.0)))
        self.codes = np.repeat(np.arange(n_classes), self.drawn)
        self.log_weights = by_class[self.codes[:, None], self.codes]  # (predicted, predicts)
        balanced = recipe.class_weights == "balanced"
        counts_for = 1 / np.maximum(self.drawn * present, 1) if balanced else stands_for / counts.sum()
        self.shares = np.repeat(counts_for, self.drawn)

    def draw(self) -> Index:
        """Return the rows of one batch, sorted by class; ``codes`` are their classes."""
        return self.classes.draw(self.per_class, self.generator)[0]
