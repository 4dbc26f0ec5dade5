"""Maximum mean calibration error (MMCE) of a batch, differentiable, alone or added to cross-entropy.

r = top probability,  c = 1 if the top class is correct, else 0,  k(r, r′) = exp(−|r − r′| / 0.4)

plain:     MMCE² = Σ_i Σ_j (c_i − r_i)(c_j − r_j) k(r_i, r_j) / n²
weighted:  MMCE² = mean over correct pairs of (1 − r)(1 − r′) k + mean over wrong pairs of r r′ k
                   − 2 mean over correct r, wrong r′ of (1 − r) r′ k;   0 if all are correct or all are wrong

loss = cross-entropy + λ sqrt(max(MMCE², 0) + 1e-10)
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from kcal.errors import InvalidInputError
from kcal.losses.batches import REDUCTIONS, LossModule, check_batch, check_reduction, full_precision
from kcal.validation import check_flag, check_number

KERNEL_WIDTH = 0.4
"""Width of the kernel over confidences."""
ROOT_FLOOR = 1e-10
"""Keeps the gradient of the root finite where the error is 0."""
COEFFICIENT = 0.2
"""Default λ. The published 4 belongs to an implementation whose errors are 7 to 57 times smaller (4 / 20 = 0.2)."""
LARGEST_COEFFICIENT = 1e6
LARGEST_BATCH = 20_000
"""The kernel matrix of a larger batch would need gigabytes."""


def mmce(logits: torch.Tensor, labels: torch.Tensor, *, weighted: bool = True) -> torch.Tensor:
    """Return sqrt(max(MMCE², 0) + 1e-10) of logits (n, n_classes) and labels (n,), a scalar.

    float16 and bfloat16 are computed in float32; value and gradient are finite for every batch of finite logits. The
    check of the labels waits for a device other than the CPU.

    Parameters
    ----------
    logits, labels : tensor
        Labels are column indices, from 0 to n_classes − 1, of dtype int64.
    weighted : bool
        Whether correct and wrong samples are averaged separately (see the formula of the module).
    """
    check_flag(weighted, "weighted")
    _check_mmce_batch(logits, labels)
    return _mmce(logits, labels, weighted=weighted)


def _mmce(logits: torch.Tensor, labels: torch.Tensor, *, weighted: bool) -> torch.Tensor:
    with full_precision(logits) as wide:
        confidence, predicted = torch.softmax(wide, dim=1).max(dim=1)  # (n,)
        correct = (predicted == labels).to(confidence.dtype)
        kernel = torch.exp(-(confidence[:, None] - confidence).abs() / KERNEL_WIDTH)  # (n, n)
        gaps = correct - confidence
        if weighted:  # the three means are one double sum of gaps, each divided by the count of its side
            gaps = gaps / torch.where(correct > 0, correct.sum(), (1 - correct).sum())
            gaps = gaps * (correct.min() < correct.max())
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
    logits, labels, weighted
        As in :func:`mmce`.
    coefficient : float
        λ, at least 0. Tune it on validation log-loss; published values do not transfer.
    reduction : "mean", "sum" or "none"
        As in torch. The MMCE is one number per batch and is added to the loss of each of its samples, so that the mean
        and the sum of "none" are "mean" and "sum".
    """
    _check_coefficient(coefficient)
    check_flag(weighted, "weighted")
    check_reduction(reduction)
    _check_mmce_batch(logits, labels)
    with full_precision(logits) as wide:
        losses = cross_entropy(wide, labels, reduction="none")
    return REDUCTIONS[reduction](losses + coefficient * _mmce(logits, labels, weighted=weighted))


def _check_coefficient(coefficient: float) -> float:
    return check_number(coefficient, "coefficient", minimum=0.0, maximum=LARGEST_COEFFICIENT)


def _check_mmce_batch(logits: torch.Tensor, labels: torch.Tensor) -> None:
    check_batch(logits, labels)
    if len(logits) > LARGEST_BATCH:
        raise InvalidInputError(
            "logits", f"must have at most {LARGEST_BATCH:,} rows", got=f"{len(logits):,}", remedy="Use smaller batches."
        )


class MMCE(LossModule):
    """:func:`mmce` as a module, with the same option."""

    def __init__(self, *, weighted: bool = True) -> None:
        super().__init__(mmce, weighted=check_flag(weighted, "weighted"))


class MMCELoss(LossModule):
    """:func:`mmce_loss` as a module, with the same options."""

    def __init__(self, *, coefficient: float = COEFFICIENT, weighted: bool = True, reduction: str = "mean") -> None:
        super().__init__(
            mmce_loss,
            coefficient=_check_coefficient(coefficient),
            weighted=check_flag(weighted, "weighted"),
            reduction=check_reduction(reduction),
        )
