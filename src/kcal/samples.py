"""The samples of a fit: what a network gave for them, checked and encoded, and their splits into folds.

One record goes through the whole library: calibration sets, training sets of a projection, online updates, stores.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold

from kcal.errors import InvalidInputError
from kcal.validation import (
    MAX_WEIGHT_RATIO,
    check_group_names,
    check_ids,
    check_integer,
    check_labels,
    check_nonnegative,
    check_weights,
    collect_classes,
    encode_labels,
)

Index = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_FOLDS = 10_000
MAX_SKLEARN_SEED = 2**32


@dataclass(frozen=True, eq=False, kw_only=True)
class Samples:
    """Labelled samples, one entry each.

    ``embeddings``, (n, h), and ``logits``, (n, n_classes), are tensors, or None where a method does not take them. The
    last four columns are for calibrators whose samples may change after the fit.
    """

    embeddings: Any = None
    logits: Any = None
    codes: Index  # positions of the labels in ``classes``
    classes: NDArray[Any]
    weights: Floats  # mean 1 over the positive ones
    groups: Index | None = None  # numbered in the order of their first samples
    ids: NDArray[Any] | None = None
    indices: Index  # rows of X; −1 after updates
    group_names: Any = None  # groups as they were given: text, numbers or booleans
    log_weights: Any = None  # of the weights as they were given; −inf for 0
    log_lengths: Any = None  # of the embeddings
    fingerprints: Any = None  # of the rows of X

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def labels(self) -> NDArray[Any]:
        """Class labels, (n,)."""
        return self.classes[self.codes]

    @property
    def n_classes(self) -> int:
        """Number of classes, those without samples included."""
        return len(self.classes)

    @property
    def counted(self) -> Index:
        """Positions of the samples of positive weight; one of weight 0 counts as absent."""
        return np.flatnonzero(self.weights)

    def select(self, index: Index) -> Samples:
        """Return some of the samples."""
        fields = {name: values for name, values in vars(self).items() if name != "classes" and values is not None}
        return replace(self, **{name: values[index] for name, values in fields.items()})

    def with_classes(self, classes: NDArray[Any]) -> Samples:
        """Return the same samples with other classes, which hold all labels."""
        return replace(self, codes=encode_labels(self.labels, classes, "train_labels"), classes=classes)

    def without_rows(self) -> Samples:
        """Return the samples without their embeddings, which a model has."""
        return replace(self, embeddings=None)

    def spread_index(self, n: int) -> Index:
        """Return the positions of no more than ``n`` samples, spread evenly over the classes; all in their order."""
        if len(self) <= n:
            return np.arange(len(self))
        return np.argsort(self.codes, kind="stable")[np.arange(n) * len(self) // n]

    @property
    def n_parts(self) -> int:
        """Number of samples or groups of positive weight, which a cross-validation can leave out in turn."""
        return len(self.counted) if self.groups is None else len(np.unique(self.groups[self.counted]))

    def keys(self, n_folds: int | None = None, seed: int = 0) -> torch.Tensor | None:
        """Return a key per sample, (n,): samples of the same key, a fold or a group, do not predict each other.

        Without folds these are the groups; None leaves out one sample at a time. A sample without weight plays no part
        in the choice of the others' folds.
        """
        keys = self.groups
        if n_folds is not None:
            groups = None if self.groups is None else self.groups[self.counted]
            keys = np.zeros(len(self), dtype=np.int64)
            keys[self.counted] = fold_codes(self.codes[self.counted], n_folds, groups, seed)
        device = None if self.embeddings is None else self.embeddings.device
        return None if keys is None else torch.as_tensor(keys, device=device)

    def class_weights(self) -> Floats:
        """Return the total weight of each class, (n_classes,)."""
        return np.bincount(self.codes, weights=self.weights, minlength=self.n_classes).astype(np.float64)

    def frequencies(self) -> Floats:
        """Return the weighted share of each class, (n_classes,)."""
        totals = self.class_weights()
        if not totals.any():
            raise InvalidInputError("sample_weight", "must not be 0 for every sample of the support")
        frequencies: Floats = totals / totals.sum()
        return frequencies

    @property
    def classes_seen(self) -> list[Any]:
        """Classes with samples of positive weight."""
        seen: list[Any] = self.classes[self.class_weights() > 0].tolist()
        return seen

    @property
    def share_alone(self) -> float:
        """Share of the samples of positive weight that are the only one of their class."""
        counts = np.bincount(self.codes[self.counted])
        return float(np.count_nonzero(counts == 1) / max(counts.sum(), 1))


def check_samples(
    embeddings: torch.Tensor | None,
    y: Any,
    *,
    classes: Any = None,
    known_labels: Sequence[NDArray[Any]] = (),
    logits: torch.Tensor | None = None,
    groups: Any = None,
    sample_weight: Any = None,
    ids: Any = None,
    names: tuple[str, str] = ("y", "groups"),
) -> Samples:
    """Return the samples of checked rows; classes are ``classes``, or the sorted union of ``y`` and ``known_labels``.

    ``names`` are those of the parameters with labels and groups, for errors.
    """
    rows: Any = embeddings if logits is None else logits
    n = len(rows)
    labels = check_labels(y, n, names[0])
    group_names = None if groups is None else check_group_names(groups, n, names[1])
    known = collect_classes([labels, *known_labels], classes)
    return Samples(
        embeddings=embeddings,
        logits=logits,
        codes=encode_labels(labels, known, names[0]),
        classes=known,
        weights=np.ones(n) if sample_weight is None else check_weights(sample_weight, n),
        groups=None if group_names is None else code_groups(group_names),
        ids=None if ids is None else check_ids(ids, n),
        indices=np.arange(n),
        group_names=group_names,
        log_weights=log_weights(sample_weight, n),
    )


def log_weights(sample_weight: Any, n: int) -> Floats:
    """Return the logarithms of weights as they are given, (n,); 0 without weights."""
    if sample_weight is None:
        return np.zeros(n)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(check_nonnegative(sample_weight, n, "sample_weight")))


def code_groups(groups: NDArray[Any]) -> Index:
    """Return groups numbered in the order of their first samples, (n,): their names play no part in any split."""
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.reshape(-1)].astype(np.int64)


def relative_weights(log_weights: Floats) -> Floats:
    """Return weights of mean 1 over the positive ones; those that are negligible beside the largest become 0."""
    if len(log_weights) == 0 or log_weights.max() == -np.inf:
        raise InvalidInputError(
            "calibrator", "has no sample of positive weight left", remedy="Call partial_fit with some."
        )
    weights: Floats = np.exp(log_weights - log_weights.max())
    weights[weights < 1 / MAX_WEIGHT_RATIO] = 0.0
    positive = weights > 0
    if (weights[positive] == 1).all():
        return weights
    return np.asarray(weights / weights[positive].mean())


def fold_codes(codes: Index, folds: int, groups: Index | None, seed: int) -> Index:
    """Return the fold of each row, (n,): classes spread evenly over folds, or whole groups by size."""
    folds = check_integer(folds, "folds", minimum=2, maximum=MAX_FOLDS)
    available = len(codes) if groups is None else len(np.unique(groups))
    if available < folds:
        unit = "samples" if groups is None else "groups"
        raise InvalidInputError("folds", f"must be at most the number of {unit}, {available}", got=str(folds))
    if groups is not None:
        return _grouped_folds(codes, groups, folds, seed)
    return stratified_folds(codes, folds, [seed, 2])


def cross_folds(codes: Index, groups: Index | None, n_folds: int, seed: int) -> Index:
    """Return the fold of each row, (n,), stratified by class or by whole groups; as many folds as there can be."""
    if groups is None:
        return stratified_folds(codes, min(n_folds, len(codes)), seed)
    return fold_codes(codes, min(n_folds, len(np.unique(groups))), groups, seed)


def random_folds(codes: Index, groups: Index | None, n_folds: int, seed: int) -> Index:
    """Return the fold of each row, (n,), at random or by whole groups; as many folds as there can be.

    Where folds are stratified by class, a model that has learned the class frequencies of the others finds the same
    ones in the fold that it predicts. That is too favourable where samples per class are few.
    """
    if groups is not None:
        return cross_folds(codes, groups, n_folds, seed)
    return _spread(np.random.default_rng(seed).permutation(len(codes)), min(n_folds, len(codes)))


def stratified_folds(codes: Index, n_folds: int, seed: int | list[int]) -> Index:
    """Return the fold of each row, (n,): random, each class spread evenly.

    Classes are visited in the order of their first shuffled row: their names and numbers play no part.
    """
    shuffled = np.random.default_rng(seed).permutation(len(codes))
    return _spread(shuffled[np.argsort(code_groups(codes[shuffled]), kind="stable")], n_folds)


def _grouped_folds(codes: Index, groups: Index, folds: int, seed: int) -> Index:
    """Return the fold of each row, (n,): whole groups, with similar class frequencies in every fold."""
    result = np.empty(len(codes), dtype=np.int64)
    largest = int(np.bincount(codes).max())  # if no class has a sample for every fold, nothing can be stratified
    kind = StratifiedGroupKFold if largest >= folds else GroupKFold
    splitter = kind(n_splits=folds, shuffle=True, random_state=int(seed) % MAX_SKLEARN_SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer samples than folds is fine here
        for fold, (_, rows) in enumerate(splitter.split(codes, code_groups(codes), code_groups(groups))):
            result[rows] = fold
    return result


def _spread(rows: Index, n_folds: int) -> Index:
    """Return the fold of each row, (n,): the first of ``rows`` in fold 0, the next in fold 1, and so on."""
    folds = np.empty_like(rows)
    folds[rows] = np.arange(len(rows)) % n_folds
    return folds
