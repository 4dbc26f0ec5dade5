"""Losses that train a network to be calibrated: focal loss and the maximum mean calibration error (MMCE).

::

    focal loss = −(1 − p_y)^γ log p_y

    r = top probability,  c = 1 if the top class is correct, else 0,  k(r, r′) = exp(−|r − r′| / 0.4)

    plain:     MMCE² = Σ_i Σ_j (c_i − r_i)(c_j − r_j) k(r_i, r_j) / n²
    weighted:  MMCE² = mean over correct pairs of (1 − r)(1 − r′) k + mean over wrong pairs of r r′ k
                       − 2 mean over correct r, wrong r′ of (1 − r) r′ k;   0 if all are correct or all are wrong

    MMCE loss = cross-entropy + λ sqrt(max(MMCE², 0) + 1e-10)

Each is a function of logits (n, n_classes) and labels (n,), and a module. float16 and bfloat16 are computed in float32.
Whether logits are finite is not checked. The check of the labels waits for a device other than the CPU once per call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from kcal.errors import InvalidInputError
from kcal.validation import check_choice, check_flag, check_number, shown

__all__ = ["MMCE", "FocalLoss", "MMCELoss", "focal_loss", "mmce", "mmce_loss"]

SCHEDULE = "flsd-53"
"""γ = 5 where p_y < 0.2, and 3 elsewhere."""
MAX_GAMMA = 1000
KERNEL_WIDTH = 0.4
"""Width of the kernel over confidences."""
ROOT_FLOOR = 1e-10
"""Keeps the gradient of the root finite where the error is 0."""
COEFFICIENT = 0.2
"""Default λ. The published 4 belongs to an implementation whose errors are 7 to 57 times smaller (4 / 20 = 0.2)."""
MAX_COEFFICIENT = 1e6
MAX_BATCH = 20_000
"""The kernel matrix of a larger batch would need gigabytes."""
REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda losses: losses,
    "mean": torch.mean,
    "sum": torch.sum,
}


def focal_loss(
    logits: torch.Tensor, labels: torch.Tensor, *, gamma: float | str = SCHEDULE, reduction: str = "mean"
) -> torch.Tensor:
    """Return the focal loss of logits (n, n_classes) and labels (n,).

    Parameters
    ----------
    logits : tensor
        Loss and gradient are finite for logits up to 1e30 in size; beyond that float32 can overflow.
    labels : tensor of int64
        Column indices, from 0 to n_classes − 1.
    gamma : float or "flsd-53"
        γ from 0 to 1000, or the published schedule: 5 where p_y < 0.2, else 3.
    reduction : "mean", "sum" or "none"
        As in torch.
    """
    gamma = _check_gamma(gamma)
    reduce = REDUCTIONS[_check_reduction(reduction)]
    _check_batch(logits, labels)
    with _full_precision(logits) as wide:
        log_probs = torch.log_softmax(wide, dim=1)  # (n, n_classes)
        columns = labels[:, None]
        log_p = log_probs.gather(1, columns)[:, 0]  # (n,)
        # log(1 − p_y) from the other classes: 1 − p_y could round to 0, where the gradient of its power is infinite.
        log_rest = torch.logsumexp(log_probs.scatter(1, columns, -inf), dim=1)
        exponent: Any = gamma
        if isinstance(gamma, str):
            exponent = torch.where(log_p.detach().exp() < 0.2, 5.0, 3.0).to(log_p.dtype)
        return reduce(-torch.exp(exponent * log_rest) * log_p)


def mmce(logits: torch.Tensor, labels: torch.Tensor, *, weighted: bool = True) -> torch.Tensor:
    """Return sqrt(max(MMCE², 0) + 1e-10) of logits (n, n_classes) and labels (n,), a scalar.

    Value and gradient are finite for every batch of finite logits.

    Parameters
    ----------
    logits, labels : tensor
        Labels are column indices, from 0 to n_classes − 1, of dtype int64.
    weighted : bool
        Whether correct and wrong samples are averaged separately (see the formula of the module).
    """
    check_flag(weighted, "weighted")
    _check_batch(logits, labels, max_rows=MAX_BATCH)
    with _full_precision(logits) as wide:
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
        As in torch. The MMCE is one number per batch and is added to the loss of each of its samples: the mean and the
        sum of "none" are "mean" and "sum".
    """
    _check_coefficient(coefficient)
    reduce = REDUCTIONS[_check_reduction(reduction)]
    error = mmce(logits, labels, weighted=weighted)
    with _full_precision(logits) as wide:
        return reduce(cross_entropy(wide, labels, reduction="none") + coefficient * error)


class _LossModule(nn.Module):
    """A loss as a module: the options of the function ``loss`` are attributes.

    Use it like ``nn.CrossEntropyLoss`` with labels (n,); the options ``weight``, ``ignore_index`` and
    ``label_smoothing`` do not exist.
    """

    def __init__(self, loss: Callable[..., torch.Tensor], **options: Any) -> None:
        super().__init__()
        self._loss, self._names = loss, tuple(options)
        for name, value in options.items():
            setattr(self, name, value)

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of logits (n, n_classes) and labels (n,)."""
        return self._loss(logits, labels, **{name: getattr(self, name) for name in self._names})

    def extra_repr(self) -> str:
        """Return the options for repr()."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self._names)


class FocalLoss(_LossModule):
    """:func:`focal_loss` as a module, with the same options."""

    def __init__(self, *, gamma: float | str = SCHEDULE, reduction: str = "mean") -> None:
        super().__init__(focal_loss, gamma=_check_gamma(gamma), reduction=_check_reduction(reduction))


class MMCE(_LossModule):
    """:func:`mmce` as a module, with the same option."""

    def __init__(self, *, weighted: bool = True) -> None:
        super().__init__(mmce, weighted=check_flag(weighted, "weighted"))


class MMCELoss(_LossModule):
    """:func:`mmce_loss` as a module, with the same options."""

    def __init__(self, *, coefficient: float = COEFFICIENT, weighted: bool = True, reduction: str = "mean") -> None:
        super().__init__(
            mmce_loss,
            coefficient=_check_coefficient(coefficient),
            weighted=check_flag(weighted, "weighted"),
            reduction=_check_reduction(reduction),
        )


@contextmanager
def _full_precision(logits: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield logits in float32 or float64, with autocast off."""
    with torch.autocast(device_type=logits.device.type, enabled=False):
        yield logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _check_batch(logits: Any, labels: Any, *, max_rows: float = inf) -> None:
    """Raise if ``logits`` are not a float matrix (n, n_classes) or ``labels`` not its column indices (n,), int64."""
    for name, tensor in (("logits", logits), ("labels", labels)):
        if not isinstance(tensor, torch.Tensor):
            raise InvalidInputError(name, "must be a torch tensor", got=shown(tensor))
    if logits.ndim != 2 or 0 in logits.shape or not logits.is_floating_point():
        got = f"shape {tuple(logits.shape)} and dtype {logits.dtype}"
        raise InvalidInputError("logits", "must be a float tensor (n, n_classes) with at least one row", got=got)
    if len(logits) > max_rows:
        got = f"{len(logits):,}"
        raise InvalidInputError(
            "logits", f"must have at most {max_rows:,} rows", got=got, remedy="Use smaller batches."
        )
    if labels.shape != logits.shape[:1] or labels.dtype != torch.int64:
        expected = f"must be a tensor of shape ({len(logits)},) and dtype int64, one column index per row of logits"
        raise InvalidInputError("labels", expected, got=f"shape {tuple(labels.shape)} and dtype {labels.dtype}")
    lowest, highest = torch.stack(torch.aminmax(labels)).tolist()
    if lowest < 0 or highest >= logits.shape[1]:
        expected = f"must be column indices of logits, 0 to {logits.shape[1] - 1}"
        got = str(lowest if lowest < 0 else highest)
        remedy = "Leave out unlabelled samples: there is no ignore_index."
        raise InvalidInputError("labels", expected, got=got, remedy=remedy)


def _check_gamma(gamma: Any) -> float | str:
    if isinstance(gamma, str) and gamma == SCHEDULE:
        return gamma
    expected = f'must be "{SCHEDULE}" or a number between 0 and {MAX_GAMMA}'
    return check_number(gamma, "gamma", minimum=0, maximum=MAX_GAMMA, expected=expected)


def _check_coefficient(coefficient: Any) -> float:
    return check_number(coefficient, "coefficient", minimum=0.0, maximum=MAX_COEFFICIENT)


def _check_reduction(reduction: Any) -> str:
    return check_choice(reduction, "reduction", tuple(REDUCTIONS))
