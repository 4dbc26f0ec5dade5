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

FUNCTION = "function"
"""Marks a head that is a function."""
FIELDS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "logits_key": (str, int, NoneType),
    "call_index": (int,),
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


def head_reference(head: Head | None) -> dict[str, Any] | str | None:
    """Return the fields of a head that is a layer, a mark for a function, or None if the head is not known yet."""
    if isinstance(head, LayerHead):
        return dict(vars(head))
    return None if head is None else FUNCTION


def head_from_reference(stored: dict[str, Any] | str | None) -> LayerHead | None:
    """Return the head that :func:`head_reference` described; raise if it was a function."""
    if stored is None:
        return None
    if stored == FUNCTION:
        expected = "must be given again: it is a function, of which nothing is stored"
        raise InvalidInputError("head", expected, got="None", remedy="Pass head= to CalibratedClassifier.")
    if not isinstance(stored, dict) or set(stored) != set(FIELDS):
        raise FileFormatError("the stored head is damaged.")
    if any(not isinstance(stored[name], kinds) for name, kinds in FIELDS.items()):
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
