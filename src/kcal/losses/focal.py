"""Focal loss: cross-entropy with less weight on samples whose class is predicted with high probability.

loss = −(1 − p_y)^γ log p_y
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import torch

from kcal.errors import InvalidInputError
from kcal.losses.batches import REDUCTIONS, LossModule, check_batch, check_reduction, full_precision
from kcal.validation import shown

SCHEDULE = "flsd-53"
"""γ = 5 where p_y < 0.2, and 3 elsewhere."""
LARGEST_GAMMA = 1000


def focal_loss(
    logits: torch.Tensor, labels: torch.Tensor, *, gamma: float | str = SCHEDULE, reduction: str = "mean"
) -> torch.Tensor:
    """Return the focal loss of logits (n, n_classes) and labels (n,).

    Parameters
    ----------
    logits : tensor
        float16 and bfloat16 are computed in float32. Loss and gradient are finite for logits up to 1e30 in size;
        beyond that float32 can overflow.
    labels : tensor of int64
        Column indices, from 0 to n_classes − 1. The check of this range waits for a device other than the CPU.
    gamma : float or "flsd-53"
        γ from 0 to 1000, or the published schedule: 5 where p_y < 0.2, else 3.
    reduction : "mean", "sum" or "none"
        As in torch.
    """
    gamma = _check_gamma(gamma)
    check_reduction(reduction)
    check_batch(logits, labels)
    with full_precision(logits) as wide:
        log_probs = torch.log_softmax(wide, dim=1)  # (n, n_classes)
        columns = labels[:, None]
        log_p = log_probs.gather(1, columns)[:, 0]  # (n,)
        # log(1 − p_y) from the other classes: 1 − p_y could round to 0, where the gradient of its power is infinite.
        log_rest = torch.logsumexp(log_probs.scatter(1, columns, -inf), dim=1)
        exponent: Any = gamma
        if isinstance(gamma, str):
            exponent = torch.where(log_p.detach().exp() < 0.2, 5.0, 3.0).to(log_p.dtype)
        return REDUCTIONS[reduction](-torch.exp(exponent * log_rest) * log_p)


def _check_gamma(gamma: Any) -> float | str:
    if isinstance(gamma, str) and gamma == SCHEDULE:
        return gamma
    if isinstance(gamma, int | float | np.number) and not isinstance(gamma, bool) and 0 <= gamma <= LARGEST_GAMMA:
        return gamma if isinstance(gamma, int) else float(gamma)
    expected = f'must be "{SCHEDULE}" or a number between 0 and {LARGEST_GAMMA}'
    raise InvalidInputError("gamma", expected, got=shown(gamma))


class FocalLoss(LossModule):
    """:func:`focal_loss` as a module, with the same options."""

    def __init__(self, *, gamma: float | str = SCHEDULE, reduction: str = "mean") -> None:
        super().__init__(focal_loss, gamma=_check_gamma(gamma), reduction=check_reduction(reduction))
