"""The samples that KCal is fitted on: a calibration set, and a training set for the projection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kcal.calibrators.fit_warnings import warn_of_held_out, warn_of_training_rows
from kcal.calibrators.holdout import fold_codes, stratified_halves
from kcal.errors import InvalidInputError
from kcal.kernels import SortedSupport, sort_support
from kcal.projection import TrainedProjection, TrainingSamples, needs_training, project
from kcal.validation import (
    LARGEST_WEIGHT_RATIO,
    check_groups,
    check_ids,
    check_labels,
    check_matrix,
    check_scores,
    check_weights,
    collect_classes,
    encode_labels,
    row_fingerprints,
)

Index = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Samples:
    """The checked calibration samples of a fit, one entry per sample; ``indices`` are their rows of ``X``."""

    embeddings: torch.Tensor  # (n, h)
    labels: NDArray[Any]
    codes: Index  # positions of the labels in ``classes``
    classes: NDArray[Any]
    weights: Floats  # mean 1 over the positive ones
    groups: Index | None
    ids: NDArray[Any] | None
    indices: Index
    folds: Index | None = None  # of the bandwidth search, in place of leave-one-out

    def rows(self, index: Index) -> Samples:
        """Return some of the samples."""
        chosen: dict[str, Any] = {
            name: None if values is None else values[index] for name, values in vars(self).items() if name != "classes"
        }
        return replace(self, **chosen)

    def at_most(self, n: int) -> Samples:
        """Return no more than ``n`` samples, spread evenly over the classes and, within them, over the set."""
        return self if len(self.codes) <= n else self.rows(self.spread_index(n))

    def spread_index(self, n: int) -> Index:
        """Return the positions of no more than ``n`` samples, spread evenly over the classes; all in their order."""
        n_samples = len(self.codes)
        if n_samples <= n:
            return np.arange(n_samples)
        return np.argsort(self.codes, kind="stable")[np.arange(n) * n_samples // n]

    @property
    def n_parts(self) -> int:
        """Number of samples or groups of positive weight, which a cross-validation can leave out in turn."""
        counted = self.weights > 0
        return int(counted.sum()) if self.groups is None else len(np.unique(self.groups[counted]))

    def in_folds(self, n_folds: int, seed: int) -> Samples:
        """Return the samples with a fold each; one without weight plays no part in the choice of the others' folds."""
        counted, folds = self.weights > 0, np.zeros(len(self.codes), dtype=np.int64)
        groups = None if self.groups is None else self.groups[counted]
        folds[counted] = fold_codes(self.codes[counted], n_folds, groups, seed)
        return replace(self, folds=folds)

    @property
    def keys(self) -> torch.Tensor | None:
        """Samples with equal keys (a fold, a group) do not predict each other; None for leave-one-out, (n,)."""
        keys = self.groups if self.folds is None else self.folds
        return None if keys is None else torch.as_tensor(keys, device=self.embeddings.device)

    def support(self, module: nn.Module) -> SortedSupport:
        """Return the projected samples as support of the kernel sums."""
        return self.sorted(project(module, self.embeddings))

    def sorted(self, points: torch.Tensor) -> SortedSupport:
        """Return points, one per sample, as support of the kernel sums."""
        codes = torch.as_tensor(self.codes, device=points.device)
        weights = torch.as_tensor(self.weights / self.weights.max()).to(points)  # sums in single precision stay small
        return sort_support(points, codes, len(self.classes), weights)

    @property
    def classes_seen(self) -> list[Any]:
        """Classes with samples of positive weight."""
        seen: list[Any] = self.classes[self.class_weights() > 0].tolist()
        return seen

    @property
    def share_alone(self) -> float:
        """Share of the samples of positive weight that are the only one of their class."""
        counts = np.bincount(self.codes[self.weights > 0])
        return float(np.count_nonzero(counts == 1) / max(counts.sum(), 1))

    def class_weights(self) -> Floats:
        """Return the total weight of each class, (n_classes,)."""
        return np.bincount(self.codes, weights=self.weights, minlength=len(self.classes)).astype(np.float64)

    def frequencies(self) -> Floats:
        """Return the weighted share of each class, (n_classes,)."""
        totals = self.class_weights()
        if not totals.any():
            raise InvalidInputError("sample_weight", "must not be 0 for every sample of the support")
        frequencies: Floats = totals / totals.sum()
        return frequencies


def relative_weights(log_weights: Floats) -> Floats:
    """Return weights of mean 1 over the positive ones; those that are negligible beside the largest become 0."""
    if len(log_weights) == 0 or log_weights.max() == -np.inf:
        raise InvalidInputError(
            "calibrator", "has no sample of positive weight left", remedy="Call partial_fit with some."
        )
    weights: Floats = np.exp(log_weights - log_weights.max())
    weights[weights < 1 / LARGEST_WEIGHT_RATIO] = 0.0
    positive = weights > 0
    if (weights[positive] == 1).all():
        return weights
    return np.asarray(weights / weights[positive].mean())


def check_samples(
    embeddings: torch.Tensor,
    y: Any,
    *,
    classes: Any,
    known_labels: Sequence[NDArray[Any]] = (),
    groups: Any = None,
    sample_weight: Any = None,
    ids: Any = None,
) -> Samples:
    """Return the samples of a fit; classes are ``classes``, or the sorted union of ``y`` and ``known_labels``."""
    n = len(embeddings)
    labels = check_labels(y, n)
    known = collect_classes([labels, *known_labels], classes)
    return Samples(
        embeddings,
        labels,
        encode_labels(labels, known, "y"),
        known,
        np.ones(n) if sample_weight is None else check_weights(sample_weight, n),
        None if groups is None else check_groups(groups, n),
        None if ids is None else check_ids(ids, n),
        np.arange(n),
    )


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Embeddings to train a projection on, with their labels and groups."""

    embeddings: torch.Tensor  # (m, h)
    labels: NDArray[Any]
    groups: Index | None

    def encoded(self, classes: NDArray[Any]) -> TrainingSamples:
        """Return the samples with labels as positions in ``classes``."""
        codes = encode_labels(self.labels, classes, "train_labels")
        return TrainingSamples(self.embeddings, codes, len(classes), self.groups)


def check_training_set(
    embeddings: Any, labels: Any, groups: Any, like: torch.Tensor, projection: Any, *, columns: int, logits: bool
) -> TrainingSet | None:
    """Return the training set on the device and in the precision of the calibration rows; None without one.

    ``columns`` is the number of columns of ``X``, and ``logits`` whether they are logits.
    """
    if embeddings is None:
        for name, values in (("train_labels", labels), ("train_groups", groups)):
            if values is not None:
                raise InvalidInputError(name, "need train_embeddings", remedy="Pass both, or neither.")
        return None
    if labels is None:
        raise InvalidInputError("train_embeddings", "needs train_labels, one per row", got="None")
    owner = "the calibration set"
    rows = check_matrix(embeddings, "train_embeddings", columns=columns, owner=owner, logits=logits)
    rows = check_scores(embeddings, rows, "logits") if logits else rows
    names = check_labels(labels, len(rows), "train_labels")
    keys = None if groups is None else check_groups(groups, len(rows), "train_groups")
    if not needs_training(projection):
        name = repr(projection) if not isinstance(projection, nn.Module) else "a frozen module"
        expected = f"are of no use with projection={name}: there is nothing to learn"
        raise InvalidInputError("train_embeddings", expected, remedy="Leave them out.")
    return TrainingSet(rows.to(device=like.device, dtype=like.dtype), names, keys)


def known_labels(training: TrainingSet | None, projection: Any) -> list[NDArray[Any]]:
    """Return the labels that the projection is trained on: their classes get columns too."""
    if isinstance(projection, TrainedProjection):
        return [projection.classes]
    return [] if training is None else [training.labels]


def warn_of_shared_rows(samples: Samples, training: TrainingSet | None, projection: Any) -> None:
    """Warn if calibration samples are among the rows that the projection is trained on."""
    if isinstance(projection, TrainedProjection):
        warn_of_training_rows(samples.embeddings, projection.fingerprints)
    elif training is not None:
        warn_of_training_rows(samples.embeddings, row_fingerprints(training.embeddings))


def hold_out_half(samples: Samples, seed: int) -> tuple[TrainingSet, Samples]:
    """Return half of the calibration set to train a projection on, and the samples that are left; warn of it."""
    train, kept = stratified_halves(samples.codes, samples.groups, seed)
    if len(np.unique(samples.codes[train])) < 2:
        raise InvalidInputError(
            "train_embeddings",
            f"are needed: half of {len(samples.codes)} samples holds fewer than two classes to learn from",
            remedy='Pass train_embeddings and train_labels, a fitted projection, or projection="identity".',
        )
    warn_of_held_out(len(train), len(kept))
    half = samples.rows(train)
    return TrainingSet(half.embeddings, half.labels, half.groups), samples.rows(kept)
