"""Focal loss: cross-entropy that counts a sample the less, the surer the network is of its class.

loss = −(1 − p_y)^γ log p_y
"""

from __future__ import annotations

from math import inf
from numbers import Real

import torch
from torch import nn

from kcal.errors import InvalidInputError
from kcal.losses.batches import REDUCTIONS, check_batch, check_reduction, full_precision

SCHEDULE = "flsd-53"
"""γ = 5 where p_y < 0.2, and 3 elsewhere."""


def focal_loss(
    logits: torch.Tensor, labels: torch.Tensor, *, gamma: float | str = SCHEDULE, reduction: str = "mean"
) -> torch.Tensor:
    """Return the focal loss of logits (n, n_classes) and labels (n,).

    Parameters
    ----------
    logits : tensor
        Half precision is computed in single. Loss and gradient are finite for logits up to 1e30 in size and γ up to
        1000; beyond that single precision can overflow.
    labels : tensor of int64
        Columns, from 0 to n_classes − 1; others are refused, for which a device other than the CPU is waited for once
        a call.
    gamma : float or "flsd-53"
        γ, or the published schedule: 5 where p_y < 0.2, else 3.
    reduction : "mean", "sum" or "none"
        As in torch.
    """
    _check_gamma(gamma)
    check_reduction(reduction)
    check_batch(logits, labels)
    with full_precision(logits) as wide:
        logarithms = torch.log_softmax(wide, dim=1)
        own = labels[:, None]
        log_p = logarithms.gather(1, own)[:, 0]  # (n,)
        # log(1 − p_y) from the other classes: 1 − p_y itself would be 0, and its powers' slopes infinite
        log_rest = torch.logsumexp(logarithms.scatter(1, own, -inf), dim=1)
        return REDUCTIONS[reduction](-torch.exp(_exponents(log_p, gamma) * log_rest) * log_p)


def _exponents(log_p: torch.Tensor, gamma: float | str) -> torch.Tensor | float:
    if not isinstance(gamma, str):
        return float(gamma)
    return torch.where(log_p.detach().exp() < 0.2, 5.0, 3.0).to(log_p.dtype)


def _check_gamma(gamma: float | str) -> None:
    known = gamma == SCHEDULE if isinstance(gamma, str) else isinstance(gamma, Real) and 0 <= gamma < inf
    if not known:
        raise InvalidInputError(f'gamma must be "{SCHEDULE}" or a number of at least 0; got {gamma!r}.')


class FocalLoss(nn.Module):
    """:func:`focal_loss` as a module.

    It is called as ``nn.CrossEntropyLoss`` is, with labels (n,), but has none of its options ``weight``,
    ``ignore_index`` and ``label_smoothing``.

    Parameters
    ----------
    gamma : float or "flsd-53"
        γ, or the published schedule: 5 where p_y < 0.2, else 3.
    reduction : "mean", "sum" or "none"
        As in torch.
    """

    def __init__(self, *, gamma: float | str = SCHEDULE, reduction: str = "mean") -> None:
        super().__init__()
        _check_gamma(gamma)
        check_reduction(reduction)
        self.gamma = gamma
        self.reduction = reduction

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of logits (n, n_classes) and labels (n,)."""
        return focal_loss(logits, labels, gamma=self.gamma, reduction=self.reduction)

    def extra_repr(self) -> str:
        """Return the parameters as they print."""
        return f"gamma={self.gamma!r}, reduction={self.reduction!r}"
