"""Modes of torch that the caller may have set, and under which a calibrator still computes what it should."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

DEVICE_TYPES = ("cpu", "cuda", "mps")


@contextmanager
def without_autocast() -> Iterator[None]:
    """Compute in the precision of the tensors, also where the caller runs its network in mixed precision."""
    with ExitStack() as stack:
        for device_type in DEVICE_TYPES:
            if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
                stack.enter_context(torch.autocast(device_type, enabled=False))
        yield


@contextmanager
def with_gradients() -> Iterator[None]:
    """Compute gradients, in full precision, also within ``no_grad``, ``inference_mode`` or ``autocast``."""
    with torch.inference_mode(False), torch.enable_grad(), without_autocast():
        yield
