"""What all losses share: the checks of a batch of logits and labels, its precision, reductions, and the modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from kcal.errors import InvalidInputError
from kcal.validation import check_choice, plain_tensor, shown

REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda losses: losses,
    "mean": torch.mean,
    "sum": torch.sum,
}


class LossModule(nn.Module):
    """Base of the losses as modules: the options of the function ``loss`` are attributes.

    Use them like ``nn.CrossEntropyLoss`` with labels (n,); the options ``weight``, ``ignore_index`` and
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


@contextmanager
def full_precision(logits: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield logits in float32 or float64, with autocast off."""
    with torch.autocast(device_type=logits.device.type, enabled=False):
        yield logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def check_batch(logits: Any, labels: Any) -> None:
    """Raise if ``logits`` are not a float matrix (n, n_classes) or ``labels`` not its column indices (n,), int64.

    Whether logits are finite is not checked. The range of the labels is read from the device: on one other than the
    CPU the host waits for it once per call, and a compiled graph breaks there.
    """
    for name, tensor in (("logits", logits), ("labels", labels)):
        if not isinstance(tensor, torch.Tensor):
            raise InvalidInputError(name, "must be a torch tensor", got=shown(tensor))
        plain_tensor(tensor, name)
    if logits.ndim != 2 or 0 in logits.shape or not logits.is_floating_point():
        got = f"shape {tuple(logits.shape)} and dtype {logits.dtype}"
        raise InvalidInputError("logits", "must be a float tensor (n, n_classes) with at least one row", got=got)
    if labels.shape != logits.shape[:1] or labels.dtype != torch.int64:
        expected = f"must be a tensor of shape ({len(logits)},) and dtype int64, one column index per row of logits"
        raise InvalidInputError("labels", expected, got=f"shape {tuple(labels.shape)} and dtype {labels.dtype}")
    lowest, highest = torch.stack(torch.aminmax(labels)).tolist()
    if lowest < 0 or highest >= logits.shape[1]:
        expected = f"must be column indices of logits, 0 to {logits.shape[1] - 1}"
        got = lowest if lowest < 0 else highest
        remedy = "Leave out unlabelled samples: there is no ignore_index."
        raise InvalidInputError("labels", expected, got=str(got), remedy=remedy)


def check_reduction(reduction: Any) -> str:
    """Return the name of a reduction; raise if it is unknown."""
    return check_choice(reduction, "reduction", tuple(REDUCTIONS))
