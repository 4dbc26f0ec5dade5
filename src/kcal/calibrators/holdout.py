"""Splitting rows into parts: a half for the projection, folds for the bandwidth; groups stay together."""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold

from kcal.errors import InvalidInputError

Index = NDArray[np.int64]


def stratified_halves(codes: Index, groups: Index | None, seed: int) -> tuple[Index, Index]:
    """Return the rows of two halves, (to learn from, to keep), each in ascending order.

    Without groups every class is halved, and the kept half gets the odd sample; so a class with one sample keeps it.
    With groups whole groups are dealt out, so that both halves have much the same classes.
    """
    generator = np.random.default_rng([seed, 1])
    if groups is not None:
        return _halves_by_group(codes, groups, seed)
    learn = [
        generator.permutation(np.flatnonzero(codes == k))[: int((codes == k).sum()) // 2] for k in np.unique(codes)
    ]
    first = np.sort(np.concatenate(learn))
    return first, np.setdiff1d(np.arange(len(codes)), first)


def _halves_by_group(codes: Index, groups: Index, seed: int) -> tuple[Index, Index]:
    n_groups = len(np.unique(groups))
    if n_groups < 4:
        raise InvalidInputError(
            f"holding out groups to learn the projection needs at least four groups, two for each half; got "
            f"{n_groups}. Pass train_embeddings and train_labels, or a fitted projection."
        )
    folds = _deal_groups(codes, groups, 2, seed)
    halves = [np.flatnonzero(folds == fold) for fold in range(2)]
    halves.sort(key=lambda rows: (len(np.unique(codes[rows])), len(rows)))  # keep the half that knows more classes
    return halves[0], halves[1]


def _deal_groups(codes: Index, groups: Index, folds: int, seed: int) -> Index:
    """Return a fold for each row: whole groups, dealt out so that every fold has much the same classes."""
    result = np.empty(len(codes), dtype=np.int64)
    most = int(np.bincount(codes).max())  # where no class has a sample for every fold, there is nothing to stratify
    kind = StratifiedGroupKFold if most >= folds else GroupKFold
    splitter = kind(n_splits=folds, shuffle=True, random_state=seed % 2**32)  # the largest that it takes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer samples than folds is no trouble here
        for fold, (_, rows) in enumerate(splitter.split(codes, codes, groups)):
            result[rows] = fold
    return result


def check_folds(folds: Any) -> None:
    """Refuse a number of folds that is none."""
    if not isinstance(folds, Integral) or isinstance(folds, bool) or folds < 2:
        raise InvalidInputError(f"folds must be an integer of at least 2, or None for leave-one-out; got {folds!r}.")


def fold_codes(codes: Index, folds: int, groups: Index | None, seed: int) -> Index:
    """Return a fold for each row: classes spread evenly over folds, or whole groups dealt out by size."""
    check_folds(folds)
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
    return _deal_groups(codes, groups, int(folds), seed)


def stratified_folds(codes: Index, n_folds: int, seed: int) -> Index:
    """Return the fold of every row, (n,): random, each class spread evenly.

    Classes come in the order in which shuffled rows show them, so that their names and numbers play no part.
    """
    shuffled = np.random.default_rng(seed).permutation(len(codes))
    _, first, inverse = np.unique(codes[shuffled], return_index=True, return_inverse=True)
    order = np.argsort(first[inverse.reshape(-1)], kind="stable")
    folds = np.empty(len(codes), dtype=np.int64)
    folds[shuffled[order]] = np.arange(len(codes)) % n_folds
    return folds
