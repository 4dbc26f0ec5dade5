"""The data that KCal learns its projection from: the network's training set, or half of the calibration set."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kcal.calibrators.fit_warnings import warn_of_held_out, warn_of_training_rows
from kcal.errors import InvalidInputError
from kcal.projection import TrainedProjection, needs_training
from kcal.samples import Samples
from kcal.validation import check_labels, check_matrix, check_scores, row_fingerprints


def check_training_set(
    embeddings: Any, labels: Any, groups: Any, like: torch.Tensor, projection: Any, *, columns: int, logits: bool
) -> tuple[torch.Tensor, NDArray[Any]] | None:
    """Return rows and labels of the training set, if there is one, on the device and in the precision of ``like``.

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
    if not needs_training(projection):
        name = "a frozen module" if isinstance(projection, nn.Module) else repr(projection)
        expected = f"are of no use with projection={name}: there is nothing to learn"
        raise InvalidInputError("train_embeddings", expected, remedy="Leave them out.")
    return rows.to(device=like.device, dtype=like.dtype), names


def warn_of_shared_rows(samples: Samples, training: Samples | None, projection: Any) -> None:
    """Warn if calibration samples are among the rows that the projection is trained on."""
    if isinstance(projection, TrainedProjection):
        warn_of_training_rows(samples.embeddings, projection.fingerprints)
    elif training is not None:
        warn_of_training_rows(samples.embeddings, row_fingerprints(training.embeddings))


def hold_out_half(samples: Samples, seed: int) -> tuple[Samples, Samples]:
    """Return half of the calibration set to train a projection on, and the samples that are left; warn of it."""
    n_groups = None if samples.groups is None else len(np.unique(samples.groups))
    if n_groups is not None and n_groups < 4:
        raise InvalidInputError(
            "groups",
            "must be at least four to hold out half of them for the projection",
            got=str(n_groups),
            remedy="Pass a training set, or a projection that needs none.",
        )
    training, kept = samples.halves(seed)
    if len(np.unique(training.codes)) < 2:
        raise InvalidInputError(
            "train_embeddings",
            f"are needed: half of {len(samples)} samples holds fewer than two classes to learn from",
            remedy='Pass train_embeddings and train_labels, a fitted projection, or projection="identity".',
        )
    warn_of_held_out(len(training), len(kept))
    return training, kept
