"""Recognise probabilities among what is passed as logits: for warnings only, the representation is never guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcal.errors import RepresentationWarning, warn
from kcal.validation.matrices import SUM_TOLERANCE

if TYPE_CHECKING:
    import torch

ROWS_TO_RECOGNISE = 10
"""Rows from which on probabilities are recognised."""


def look_like_probabilities(rows: torch.Tensor) -> bool:
    """Return whether rows, (n, n_classes), are numbers from 0 to 1 that sum to 1."""
    if rows.min() < 0 or rows.max() > 1:
        return False
    return bool(((rows.double().sum(dim=1) - 1).abs() <= SUM_TOLERANCE).all())


def warn_of_probabilities(rows: torch.Tensor, representation: str, name: str = "X") -> None:
    """Warn if what was passed as logits, (n, n_classes), looks like the output of a softmax or a sigmoid."""
    if representation != "logits" or len(rows) < ROWS_TO_RECOGNISE:
        return
    is_column = rows.shape[1] == 2 and not bool(rows[:, 0].any()) and rows.min() >= 0 and rows.max() <= 1
    if is_column or look_like_probabilities(rows):  # one column of logits was completed by zeros
        warn(
            f"{name} was passed as logits, but all of it lies between 0 and 1"
            f"{'' if is_column else ', and its rows sum to 1'}: it looks like probabilities.",
            RepresentationWarning,
            remedy='Pass representation="probabilities" if it is.',
        )
