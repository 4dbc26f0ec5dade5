"""What the methods share that work on logits: the border, the classes, the normal form."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.errors import InvalidInputError
from kcal.validation import ALMOST_ZERO, check_labels, collect_classes, encode_labels

REPRESENTATIONS = ("logits", "probabilities")


def check_representation(representation: Any) -> None:
    """Refuse what does not say what the rows are."""
    if not isinstance(representation, str) or representation not in REPRESENTATIONS:
        raise InvalidInputError(f"representation must be one of {REPRESENTATIONS}; got {representation!r}.")


def log_probabilities(rows: torch.Tensor, representation: str) -> torch.Tensor:
    """Return log-softmax of the rows in float64, so that a constant added to a row changes nothing.

    ``representation`` says what the rows are; it is never guessed.
    """
    check_representation(representation)
    rows = rows.cpu().double()
    if representation == "logits":
        return torch.log_softmax(rows, dim=1)
    sums = rows.sum(dim=1)
    wrong = ((rows < 0).any(dim=1) | ((sums - 1).abs() > 1e-2)).nonzero().squeeze(1)
    if len(wrong):
        row = int(wrong[0])
        raise InvalidInputError(
            f"rows must be probabilities that sum to 1; row {row} sums to {float(sums[row]):.4g} with least entry "
            f'{float(rows[row].min()):.4g}. Pass representation="logits" if these are logits.'
        )
    return torch.log_softmax(rows.clamp_min(ALMOST_ZERO).log(), dim=1)


def log_softmax_of(rows: torch.Tensor, representation: str) -> torch.Tensor:
    """Return log-softmax of the rows in their own precision if they are logits; ``log_probabilities`` otherwise."""
    if representation == "logits":
        return torch.log_softmax(rows.cpu(), dim=1)
    return log_probabilities(rows, representation)


def encode_columns(y: Any, n_samples: int, n_columns: int, classes: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return class codes and classes: integer labels are column indices, other labels need ``classes``."""
    labels = check_labels(y, n_samples)
    if classes is None:
        if labels.dtype.kind not in "iub":
            raise InvalidInputError(
                f"labels of dtype {labels.dtype} do not say which column is which; pass classes= with the label of "
                "every column, in order."
            )
        known = np.arange(n_columns)
    else:
        known = collect_classes([], classes)
        if len(known) != n_columns:
            raise InvalidInputError(f"classes must name every column ({n_columns}); got {len(known)}.")
    if n_columns < 2:
        raise InvalidInputError(f"logits need one column a class, at least two; got {n_columns} (1 class).")
    return encode_labels(labels, known, "y"), known
