"""Maximum mean calibration error of a batch, a differentiable measure of miscalibration, beside cross-entropy.

r = top probability,  c = 1 if the top class is right, else 0,  k(r, r′) = exp(−|r − r′| / 0.4)

plain:     MMCE² = Σ_i Σ_j (c_i − r_i)(c_j − r_j) k(r_i, r_j) / n²
weighted:  MMCE² = mean over right pairs of (1 − r)(1 − r′) k + mean over wrong pairs of r r′ k
                   − 2 mean over right r, wrong r′ of (1 − r) r′ k;   0 if all are right or all are wrong

loss = cross-entropy + λ sqrt(max(MMCE², 0) + 1e-10)
"""

from __future__ import annotations

from math import inf
from numbers import Real

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from kcal.errors import InvalidInputError
from kcal.losses.batches import REDUCTIONS, check_batch, check_reduction, full_precision

WIDTH = 0.4
"""Of the kernel over confidences."""
ROOT_FLOOR = 1e-10
"""Keeps the root's slope finite where the error is 0."""
COEFFICIENT = 0.2
"""λ. The published 4 belongs to a code whose errors are 7 to 57 times smaller; 0.2 is 4 over the middle of that."""


def mmce(logits: torch.Tensor, labels: torch.Tensor, *, weighted: bool = True) -> torch.Tensor:
    """Return sqrt(max(MMCE², 0) + 1e-10) of logits (n, n_classes) and labels (n,), a scalar.

    Half precision is computed in single; value and gradient are finite for every batch of finite logits. Labels that
    are no columns are refused, for which a device other than the CPU is waited for once a call.
    """
    check_batch(logits, labels)
    return _mmce(logits, labels, weighted=weighted)


def _mmce(logits: torch.Tensor, labels: torch.Tensor, *, weighted: bool) -> torch.Tensor:
    """Return the error of a checked batch."""
    with full_precision(logits) as wide:
        confidence, guess = torch.softmax(wide, dim=1).max(dim=1)  # (n,)
        right = (guess == labels).to(confidence.dtype)
        kernel = torch.exp(-(confidence[:, None] - confidence).abs() / WIDTH)  # (n, n)
        gaps = right - confidence
        if weighted:  # a mean over right pairs, over wrong pairs and across is one double sum of gaps over their counts
            gaps = gaps / torch.where(right > 0, right.sum(), (1 - right).sum())
            gaps = gaps * (right.min() < right.max())
        else:
            gaps = gaps / len(gaps)
        return torch.sqrt((gaps @ kernel @ gaps).clamp_min(0.0) + ROOT_FLOOR)


def mmce_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    coefficient: float = COEFFICIENT,
    weighted: bool = True,
    reduction: str = "mean",
) -> torch.Tensor:
    """Return cross-entropy + λ MMCE of logits (n, n_classes) and labels (n,).

    Parameters
    ----------
    logits, labels : tensor
        Labels are columns, of dtype int64, from 0 to n_classes − 1; others are refused, for which a device other than
        the CPU is waited for once a call.
    coefficient : float
        λ: tune it on validation log-loss, a published one does not transfer.
    weighted : bool
        Which MMCE.
    reduction : "mean", "sum" or "none"
        As in torch; MMCE is one number a batch and counts for each of its samples, so that the mean and the sum of
        "none" are "mean" and "sum".
    """
    _check_coefficient(coefficient)
    check_reduction(reduction)
    check_batch(logits, labels)
    with full_precision(logits) as wide:
        losses = cross_entropy(wide, labels, reduction="none")
    return REDUCTIONS[reduction](losses + coefficient * _mmce(logits, labels, weighted=weighted))


def _check_coefficient(coefficient: float) -> None:
    if not isinstance(coefficient, Real) or not 0 <= coefficient < inf:
        raise InvalidInputError(f"coefficient must be a number of at least 0; got {coefficient!r}.")


class MMCE(nn.Module):
    """:func:`mmce` as a module.

    Parameters
    ----------
    weighted : bool
        Which MMCE.
    """

    def __init__(self, *, weighted: bool = True) -> None:
        super().__init__()
        self.weighted = weighted

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the error of logits (n, n_classes) and labels (n,), a scalar."""
        return mmce(logits, labels, weighted=self.weighted)

    def extra_repr(self) -> str:
        """Return the parameters as they print."""
        return f"weighted={self.weighted!r}"


class MMCELoss(nn.Module):
    """:func:`mmce_loss` as a module.

    It is called as ``nn.CrossEntropyLoss`` is, with labels (n,), but has none of its options ``weight``,
    ``ignore_index`` and ``label_smoothing``.

    Parameters
    ----------
    coefficient : float
        λ: tune it on validation log-loss, a published one does not transfer.
    weighted : bool
        Which MMCE.
    reduction : "mean", "sum" or "none"
        As in torch.
    """

    def __init__(self, *, coefficient: float = COEFFICIENT, weighted: bool = True, reduction: str = "mean") -> None:
        super().__init__()
        _check_coefficient(coefficient)
        check_reduction(reduction)
        self.coefficient = coefficient
        self.weighted = weighted
        self.reduction = reduction

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of logits (n, n_classes) and labels (n,)."""
        return mmce_loss(logits, labels, coefficient=self.coefficient, weighted=self.weighted, reduction=self.reduction)

    def extra_repr(self) -> str:
        """Return the parameters as they print."""
        return f"coefficient={self.coefficient!r}, weighted={self.weighted!r}, reduction={self.reduction!r}"
