"""Digests of networks and of batches: what outputs were computed from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn


def checksum(network: nn.Module) -> str:
    """Return the SHA-256 of the names, types, shapes and values of a network's parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        if isinstance(tensor, torch.Tensor):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(_bytes_of(tensor))
    return digest.hexdigest()


def chained_digest(before: str, batch: Any) -> str:
    """Return the digest of a batch and of all batches before it, whose digest is ``before``.

    Tensors, arrays, texts and numbers count, in containers of any depth; of other objects only the type.
    """
    digest = hashlib.blake2b(before.encode(), digest_size=16)
    for part in _content(batch):
        digest.update(part)
    return digest.hexdigest()


def _content(value: Any) -> Iterator[Any]:
    """Yield the bytes that a value is made of, each after its type and size."""
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype} {tuple(value.shape)} ".encode()
        yield _bytes_of(value)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype.str} {value.shape} ".encode()
        yield np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)} ".encode()
        for key, part in value.items():
            yield from _content(key)
            yield from _content(part)
    elif isinstance(value, tuple | list):
        yield f"sequence {len(value)} ".encode()
        for part in value:
            yield from _content(part)
    elif isinstance(value, np.ndarray):
        yield from _content(value.tolist())
    else:
        text = repr(value) if isinstance(value, str | bytes | int | float | complex | np.generic | None) else ""
        yield f"{type(value).__qualname__} {len(text)} {text} ".encode()


def _bytes_of(tensor: torch.Tensor) -> Any:
    """Return the memory of a tensor, on the CPU."""
    dense = tensor.detach().cpu() if tensor.layout == torch.strided else tensor.detach().cpu().to_dense()
    return dense.contiguous().reshape(-1).view(torch.uint8).numpy().data
