"""Splitting rows into parts: a half for the projection, folds for the bandwidth; groups stay together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kcal.errors import InvalidInputError

Index = NDArray[np.int64]


def stratified_halves(codes: Index, groups: Index | None, seed: int) -> tuple[Index, Index]:
    """Return the rows of two halves, (to learn from, to keep), each in ascending order.

    Without groups every class is halved, and the kept half gets the odd sample; so a class with one sample keeps it.
    With groups whole groups are dealt out, the largest first, to the half that has fewer rows.
    """
    generator = np.random.default_rng([seed, 1])
    if groups is not None:
        return _halves_by_group(groups, generator)
    learn = [
        generator.permutation(np.flatnonzero(codes == k))[: int((codes == k).sum()) // 2] for k in np.unique(codes)
    ]
    first = np.sort(np.concatenate(learn))
    return first, np.setdiff1d(np.arange(len(codes)), first)


def _halves_by_group(groups: Index, generator: np.random.Generator) -> tuple[Index, Index]:
    names, sizes = np.unique(groups, return_counts=True)
    if len(names) < 4:
        raise InvalidInputError(
            f"holding out groups to learn the projection needs at least four groups, two for each half; got "
            f"{len(names)}. Pass train_embeddings and train_labels, or a fitted projection."
        )
    shuffled = generator.permutation(len(names))
    order = shuffled[np.argsort(-sizes[shuffled], kind="stable")]
    side = np.zeros(len(names), dtype=bool)  # True: to keep
    rows = [0, 0]
    for index in order:
        keep = rows[1] <= rows[0]
        side[index] = keep
        rows[keep] += int(sizes[index])
    kept = side[np.searchsorted(names, groups)]
    return np.flatnonzero(~kept), np.flatnonzero(kept)


def fold_codes(codes: Index, folds: int, groups: Index | None, seed: int) -> Index:
    """Return a fold for each row: classes spread evenly over folds, or whole groups dealt out by size."""
    if not isinstance(folds, int) or isinstance(folds, bool) or folds < 2:
        raise InvalidInputError(f"folds must be an integer of at least 2, or None for leave-one-out; got {folds!r}.")
    available = len(codes) if groups is None else len(np.unique(groups))
    if available < folds:
        what = "samples" if groups is None else "groups"
        raise InvalidInputError(f"folds={folds} needs at least as many {what}; got {available}. Pass a smaller number.")
    generator = np.random.default_rng([seed, 2])
    result = np.empty(len(codes), dtype=np.int64)
    if groups is None:
        shuffled = generator.permutation(len(codes))
        by_class = shuffled[np.argsort(codes[shuffled], kind="stable")]
        result[by_class] = np.arange(len(codes)) % folds
        return result
    names, sizes = np.unique(groups, return_counts=True)
    rows = np.zeros(folds, dtype=np.int64)
    fold_of = np.empty(len(names), dtype=np.int64)
    for index in np.argsort(-sizes, kind="stable"):
        fold_of[index] = int(rows.argmin())
        rows[fold_of[index]] += sizes[index]
    return fold_of[np.searchsorted(names, groups)]
