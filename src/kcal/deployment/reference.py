"""What a file says of the network that its calibrator belongs to: never the network itself, and never a pickle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from kcal.embeddings import ClassifierOutputs, Head, LayerHead
from kcal.embeddings.heads import MAX_LISTED, OutputHead, both_classes, linear_layers
from kcal.embeddings.networks import checksum, preserve_state
from kcal.errors import FileFormatError, InvalidInputError

FUNCTION = "function"
"""Marks a head that is a function."""
COMPARED_ROWS = 32
LOGIT_ERROR = 0.05
"""Error of logits, relative to the largest, that half precision and autocast may have."""


def network_reference(network: nn.Module, head: Head | None) -> dict[str, Any]:
    """Return class, checksum and head of a network, as JSON can represent them."""
    return {
        "class": f"{type(network).__module__}.{type(network).__qualname__}",
        "checksum": checksum(network),
        "head": head_reference(head),
    }


def head_reference(head: Head | None) -> dict[str, Any] | str | None:
    """Return the fields of a head that is a layer, a mark for a function, or None if none is needed or known yet."""
    if isinstance(head, LayerHead):
        return dict(vars(head))
    return None if head is None or isinstance(head, OutputHead) else FUNCTION


def head_from_reference(stored: Any) -> LayerHead | None:
    """Return the head that :func:`head_reference` described; raise if it was a function."""
    if stored is None:
        return None
    if stored == FUNCTION:
        expected = "must be given again: it is a function, of which nothing is stored"
        raise InvalidInputError("head", expected, got="None", remedy="Pass head= to CalibratedClassifier.")
    match stored:
        case {
            "name": str(),
            "logits_key": str() | int() | None,
            "call_index": int(),
            "gives_logits": bool(),
            **others,
        } if not others:
            return LayerHead(**stored)
    raise FileFormatError("the stored head is damaged.")


def check_state(network: nn.Module, state: Mapping[str, Any], *, strict: bool) -> None:
    """Raise if a state dictionary has tensors of other shapes than a network or, if ``strict``, of other names."""
    own = network.state_dict()
    shapes, given = ({name: getattr(part, "shape", None) for name, part in parts.items()} for parts in (own, state))
    wrong = set(own) ^ set(state) if strict else set()
    wrong |= {name for name in set(own) & set(state) if shapes[name] != given[name]}
    if wrong:
        expected = f"must hold the tensors of this network, a {type(network).__qualname__}, in their shapes"
        raise InvalidInputError("state_dict", expected, got=f"others for {', '.join(sorted(wrong)[:MAX_LISTED])}")


def check_outputs(outputs: ClassifierOutputs, network: nn.Module) -> None:
    """Raise if no linear layer of the network leads from the embeddings to the logits."""
    if outputs.embeddings is None or outputs.logits is None:
        return
    matrices = (outputs.embeddings, outputs.logits)
    embeddings, logits = (torch.as_tensor(rows[:COMPARED_ROWS]).float() for rows in matrices)
    with preserve_state(network), torch.no_grad():
        for layer in linear_layers(network).values():
            weight = layer.weight
            assert isinstance(weight, torch.Tensor)
            n_outputs = 1 if weight.shape[0] == 1 else logits.shape[1]
            if weight.shape[:2] != (n_outputs, embeddings.shape[1]):
                continue
            rows = embeddings.to(weight).reshape(*embeddings.shape, *[1] * (weight.ndim - 2))  # positions: one
            computed = both_classes(layer(rows).flatten(1).float().cpu())
            found = (computed, torch.log_softmax(computed, dim=1)) if computed.shape == logits.shape else ()
            if any((each - logits).abs().max() <= LOGIT_ERROR * logits.abs().max() for each in found):
                return
    raise InvalidInputError(
        "loader",
        "must be outputs of this network",
        got="embeddings and logits that none of its linear layers connects",
        remedy="Extract them with this network and these weights, or pass the head= that extracted them.",
    )


def check_pair(stored: Mapping[str, Any] | None, network: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Raise if the network that a calibrator's file names is not the one that is used, or not with the same head.

    ``stored`` and ``network`` are as :func:`network_reference` returns them. ``path`` is the calibrator's file; if it
    does not name its network, ``stored`` is None.
    """
    if stored is None:
        expected = f"can be used only if {path} names the network that it belongs to"
        raise InvalidInputError("network", expected, got="none", remedy="Write it with CalibratedClassifier.save.")
    heads = [reference.get("head") for reference in (stored, network)]
    if stored.get("checksum") != network.get("checksum") or (None not in heads and heads[0] != heads[1]):
        raise InvalidInputError(
            "network",
            f"must be the one that {path} was fitted with, a {stored.get('class')}",
            got=f"a {network.get('class')} with other weights or another head",
            remedy="Use the weights of the fit, or fit again and write both files: save, and network_to_onnx.",
        )
