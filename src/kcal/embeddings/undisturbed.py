"""Run a network and leave it as it was."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)
COMPILED = "_orig_mod"
"""Where ``torch.compile`` keeps the network."""


def unwrap(network: nn.Module) -> nn.Module:
    """Return the network itself, without what DataParallel, DistributedDataParallel or ``torch.compile`` wrap it in."""
    if isinstance(network, WRAPPERS):
        return unwrap(network.module)
    children = dict(network.named_children())
    return unwrap(children[COMPILED]) if COMPILED in children else network


def device_of(network: nn.Module) -> torch.device:
    """Return the device of the first parameter or buffer of a network."""
    tensors = (tensor for part in (network.parameters(), network.buffers()) for tensor in part)
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


@contextmanager
def undisturbed(network: nn.Module) -> Iterator[None]:
    """Run the block in evaluation mode; restore the modes of all modules and the random states after it.

    What is compiled runs uncompiled, so that hooks see every layer.
    """
    with _random_states(), _uncompiled(), evaluation_mode(network):
        yield


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Run the block in evaluation mode; restore the modes of all modules after it.

    ``eval()`` is not called: some modules do more in it than to change their mode, such as to merge weights.
    """
    training = [module for module in network.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _random_states() -> Iterator[None]:
    """Restore the random states of Python, numpy and torch, on every device."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 (what data sets draw from)
    on_mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002
            if on_mps is not None:
                torch.mps.set_rng_state(on_mps)


def _uncompiled() -> AbstractContextManager[Any]:
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):
        return nullcontext()  # nothing was compiled, or torch is older than 2.6
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
