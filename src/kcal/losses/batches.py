"""What a batch of logits and labels may look like, its precision, and how losses are reduced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from kcal.errors import InvalidInputError

REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda losses: losses,
    "mean": torch.mean,
    "sum": torch.sum,
}


@contextmanager
def full_precision(logits: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield logits of at least single precision, out of reach of autocast."""
    with torch.autocast(device_type=logits.device.type, enabled=False):
        yield logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def check_batch(logits: torch.Tensor, labels: torch.Tensor) -> None:
    """Refuse shapes and kinds that cannot be meant, and labels that are no columns; logits are the network's own.

    The least and the greatest label are looked at. On the CPU that is nothing beside the loss; on another device the
    host waits for them, once a call, and a compiled graph breaks there.
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or labels.dtype != torch.int64 or 0 in logits.shape:
        raise InvalidInputError(
            "a loss needs logits (n, n_classes) and n labels that are columns, of dtype int64; got logits of shape "
            f"{tuple(logits.shape)} and labels of shape {tuple(labels.shape)} and dtype {labels.dtype}."
        )
    least, greatest = torch.stack(torch.aminmax(labels)).tolist()
    if least < 0 or greatest >= logits.shape[1]:
        wrong = least if least < 0 else greatest
        raise InvalidInputError(
            f"labels must be columns of the logits, 0 to {logits.shape[1] - 1}; got {wrong}. "
            "Leave out samples without a label: no number stands for them."
        )


def check_reduction(reduction: str) -> None:
    """Refuse what is no reduction."""
    if reduction not in REDUCTIONS:
        raise InvalidInputError(f"reduction must be one of {', '.join(REDUCTIONS)}; got {reduction!r}.")
