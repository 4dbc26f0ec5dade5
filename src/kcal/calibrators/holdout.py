"""Splits of the calibration set: halves and folds, stratified by class, or by whole groups."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold

from kcal.errors import InvalidInputError
from kcal.validation import check_integer

Index = NDArray[np.int64]

MAX_FOLDS = 10_000
MAX_SKLEARN_SEED = 2**32


def stratified_halves(codes: Index, groups: Index | None, seed: int) -> tuple[Index, Index]:
    """Return the rows of two halves, (to train on, to keep), each in ascending order.

    Without groups every class is halved, and the kept half gets the odd sample; so a class with one sample keeps it.
    With groups whole groups are split so that both halves have similar class frequencies.
    """
    if groups is not None:
        return _grouped_halves(codes, groups, seed)
    generator = np.random.default_rng([seed, 1])
    members = [generator.permutation(np.flatnonzero(codes == k)) for k in np.unique(codes)]
    first = np.sort(np.concatenate([rows[: len(rows) // 2] for rows in members]))
    return first, np.setdiff1d(np.arange(len(codes)), first)


def _grouped_halves(codes: Index, groups: Index, seed: int) -> tuple[Index, Index]:
    n_groups = len(np.unique(groups))
    if n_groups < 4:
        raise InvalidInputError(
            "groups",
            "must be at least four to hold out half of them for the projection",
            got=str(n_groups),
            remedy="Pass a training set, or a projection that needs none.",
        )
    folds = _grouped_folds(codes, groups, 2, seed)
    halves = [np.flatnonzero(folds == fold) for fold in range(2)]
    halves.sort(key=lambda rows: (len(np.unique(codes[rows])), len(rows)))  # keep the half with more classes
    return halves[0], halves[1]


def _grouped_folds(codes: Index, groups: Index, folds: int, seed: int) -> Index:
    """Return the fold of each row, (n,): whole groups, with similar class frequencies in every fold."""
    result = np.empty(len(codes), dtype=np.int64)
    largest = int(np.bincount(codes).max())  # if no class has a sample for every fold, nothing can be stratified
    kind = StratifiedGroupKFold if largest >= folds else GroupKFold
    splitter = kind(n_splits=folds, shuffle=True, random_state=int(seed) % MAX_SKLEARN_SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer samples than folds is fine here
        for fold, (_, rows) in enumerate(splitter.split(codes, codes, groups)):
            result[rows] = fold
    return result


def fold_codes(codes: Index, folds: int, groups: Index | None, seed: int) -> Index:
    """Return the fold of each row, (n,): classes spread evenly over folds, or whole groups by size."""
    folds = check_integer(folds, "folds", minimum=2, maximum=MAX_FOLDS)
    available = len(codes) if groups is None else len(np.unique(groups))
    if available < folds:
        unit = "samples" if groups is None else "groups"
        raise InvalidInputError("folds", f"must be at most the number of {unit}, {available}", got=str(folds))
    if groups is not None:
        return _grouped_folds(codes, groups, folds, seed)
    shuffled = np.random.default_rng([seed, 2]).permutation(len(codes))
    return _spread(shuffled[np.argsort(codes[shuffled], kind="stable")], folds)


def cross_folds(codes: Index, groups: Index | None, n_folds: int, seed: int) -> Index:
    """Return the fold of each row, (n,), stratified by class or by whole groups; as many folds as there can be."""
    if groups is None:
        return stratified_folds(codes, min(n_folds, len(codes)), seed)
    return fold_codes(codes, min(n_folds, len(np.unique(groups))), groups, seed)


def stratified_folds(codes: Index, n_folds: int, seed: int) -> Index:
    """Return the fold of each row, (n,): random, each class spread evenly.

    Classes are visited in the order of their first shuffled row, so that their names and numbers play no part.
    """
    shuffled = np.random.default_rng(seed).permutation(len(codes))
    _, first, inverse = np.unique(codes[shuffled], return_index=True, return_inverse=True)
    return _spread(shuffled[np.argsort(first[inverse.reshape(-1)], kind="stable")], n_folds)


def _spread(rows: Index, n_folds: int) -> Index:
    """Return the fold of each row, (n,): the first of ``rows`` in fold 0, the next in fold 1, and so on."""
    folds = np.empty_like(rows)
    folds[rows] = np.arange(len(rows)) % n_folds
    return folds
