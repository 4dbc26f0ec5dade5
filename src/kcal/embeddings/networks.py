"""Run a network on batches of inputs and leave it as it was."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from kcal.errors import InvalidInputError
from kcal.validation import shared_tensor

BATCH_REMEDY = "Pass batch=, a function that returns (inputs, labels) of a batch."


def unwrap(network: nn.Module) -> nn.Module:
    """Return the network itself, without what DataParallel, DistributedDataParallel or ``torch.compile`` wrap it in."""
    if isinstance(network, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrap(network.module)
    compiled = dict(network.named_children()).get("_orig_mod")
    return network if compiled is None else unwrap(compiled)


def device_of(network: nn.Module) -> torch.device:
    """Return the device of the first parameter or buffer of a network."""
    tensors = (tensor for part in (network.parameters(), network.buffers()) for tensor in part)
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def dtype_of(network: nn.Module) -> torch.dtype:
    """Return the floating-point type of the first such parameter or buffer of a network."""
    tensors = (tensor for part in (network.parameters(), network.buffers()) for tensor in part)
    return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)


def checksum(network: nn.Module) -> str:
    """Return the SHA-256 of the names, types, shapes and values of a network's parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        if isinstance(tensor, torch.Tensor):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def tensor_bytes(tensor: torch.Tensor) -> Any:
    """Return the memory of a tensor, on the CPU."""
    dense = tensor.detach().cpu() if tensor.layout == torch.strided else tensor.detach().cpu().to_dense()
    return dense.contiguous().reshape(-1).view(torch.uint8).numpy().data


@contextmanager
def preserve_state(network: nn.Module) -> Iterator[None]:
    """Run the block in evaluation mode; restore the modes of all modules and the random states after it.

    What is compiled runs uncompiled: hooks see every layer.
    """
    eager: AbstractContextManager[Any] = nullcontext()  # if nothing was compiled, or torch is older than 2.6
    if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
        eager = torch.compiler.set_stance("force_eager")
    with _random_states(), eager, evaluation_mode(network):
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


def run_network(network: nn.Module, inputs: Any) -> Any:
    """Return the output of a network; a mapping holds its keyword arguments, a tuple or list its positional ones."""
    if not isinstance(inputs, Mapping):
        return network(*inputs) if isinstance(inputs, tuple | list) else network(inputs)
    try:
        return network(**inputs)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        expected = "must hold the keyword arguments of the network"
        raise InvalidInputError("batches", expected, got=f"this error: {error}", remedy=BATCH_REMEDY) from error


def count_rows(inputs: Any) -> int | None:
    """Return the number of samples in the inputs of a batch, by the first tensor in them; None if there is none."""
    if isinstance(inputs, torch.Tensor | np.ndarray):
        return inputs.shape[0] if inputs.ndim else None
    parts = inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple | list) else ()
    return next((count for count in map(count_rows, parts) if count is not None), None)


def to_device(inputs: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Return the inputs with all tensors in them on a device; numpy arrays become tensors, of ``dtype`` if floats."""
    if np.ma.is_masked(inputs):
        raise InvalidInputError("batches", "must not have masked entries", got="a masked array", remedy="Fill them.")
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "biuf":
        is_float = inputs.dtype.kind == "f"
        tensor = shared_tensor(inputs.astype(np.float32, copy=False) if is_float else inputs)
        inputs = tensor.to(dtype) if is_float else tensor
    if isinstance(inputs, torch.Tensor):
        return inputs.to(device, non_blocking=True)
    if isinstance(inputs, Mapping):
        return {key: to_device(value, device, dtype) for key, value in inputs.items()}
    return tuple(to_device(value, device, dtype) for value in inputs) if isinstance(inputs, tuple | list) else inputs
