"""What a file says of the network that its calibrator belongs to: never the network itself, and never a pickle."""

from __future__ import annotations

import hashlib
import os
from types import NoneType
from typing import Any

import torch
from torch import nn

from kcal.embeddings import Head, LayerHead
from kcal.errors import FileFormatError, InvalidInputError

FIELDS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "logits": (str, int, NoneType),
    "call": (int,),
    "gives_logits": (bool,),
}
"""Types of the fields of a stored head."""


def network_reference(network: nn.Module, head: Head | None) -> dict[str, Any]:
    """Return class, checksum and head of a network, as JSON can represent them."""
    return {
        "class": f"{type(network).__module__}.{type(network).__qualname__}",
        "checksum": checksum(network),
        "head": head_reference(head),
    }


def head_reference(head: Head | None) -> dict[str, Any] | None:
    """Return the fields of a head that is a layer; None for a function."""
    return dict(vars(head)) if isinstance(head, LayerHead) else None


def head_from_reference(stored: dict[str, Any] | None) -> LayerHead | None:
    """Return the head that :func:`head_reference` described."""
    if stored is None:
        return None
    known = isinstance(stored, dict) and set(stored) == set(FIELDS)
    if not known or any(not isinstance(stored[name], kinds) for name, kinds in FIELDS.items()):
        raise FileFormatError("the stored head is damaged.")
    return LayerHead(**stored)


def check_network(reference: dict[str, Any], network: nn.Module, path: str | os.PathLike[str]) -> None:
    """Raise if a network is not the one that a file was written with."""
    if reference.get("checksum") != checksum(network):
        raise InvalidInputError(
            "network",
            f"must be the one that {path} was fitted with, a {reference.get('class')}",
            got=f"a {type(network).__module__}.{type(network).__qualname__} with other weights",
            remedy="Load the weights that it had then, or fit again: a calibrator belongs to one network.",
        )


def checksum(network: nn.Module) -> str:
    """Return the SHA-256 of the names, types, shapes and values of a network's parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        if isinstance(tensor, torch.Tensor):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
