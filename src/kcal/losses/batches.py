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
    """Refuse shapes and kinds that cannot be meant; values are the network's own, and torch looks at the labels."""
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or labels.dtype != torch.int64 or 0 in logits.shape:
        raise InvalidInputError(
            "a loss needs logits (n, n_classes) and n labels that are columns, of dtype int64; got logits of shape "
            f"{tuple(logits.shape)} and labels of shape {tuple(labels.shape)} and dtype {labels.dtype}."
        )


def check_reduction(reduction: str) -> None:
    """Refuse what is no reduction."""
    if reduction not in REDUCTIONS:
        raise InvalidInputError(f"reduction must be one of {', '.join(REDUCTIONS)}; got {reduction!r}.")
