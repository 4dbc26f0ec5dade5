"""The head of a network: the linear layer that computes logits from embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from kcal.calibrators.model_state import StoredModel, tensor
from kcal.embeddings.layer_calls import CONVOLUTIONS
from kcal.errors import InvalidInputError
from kcal.validation import LARGEST, shown, to_numbers

EXPECTED = "must be an nn.Linear, a 1×1 convolution or a pair of arrays, weight (n_classes, h) and bias (n_classes,)"
FORWARDS = [layer.forward for layer in (nn.Linear, *CONVOLUTIONS)]  # a subclass with its own need not be linear


@dataclass(frozen=True, eq=False)
class LinearHead(StoredModel):
    """Logits as a linear function of embeddings: z = W·x + b."""

    weight: torch.Tensor = tensor("classes", "features")
    bias: torch.Tensor | None = tensor("classes", optional=True)

    @classmethod
    def of(cls, head: Any, n_features: int) -> Self:
        """Return a copy of a layer or a pair of arrays; one output, the log-odds of two classes, becomes two."""
        is_layer = getattr(type(head), "forward", None) in FORWARDS
        if not is_layer and not (isinstance(head, tuple | list) and len(head) == 2):
            raise InvalidInputError("head", EXPECTED, got=shown(head))
        weight, bias = (head.weight, head.bias) if is_layer else head
        given = (weight,) if bias is None else (weight, bias)
        parts = [to_numbers(part, "head").astype(np.float64, order="C") for part in given]
        if is_layer and np.prod(parts[0].shape[2:]) == 1:
            parts[0] = parts[0].reshape(parts[0].shape[:2])
        shapes = [part.shape for part in parts]
        if len(shapes[0]) != 2 or not shapes[0][0] or shapes[1:] not in ([], [shapes[0][:1]]):
            raise InvalidInputError("head", EXPECTED, got=f"shapes {' and '.join(map(str, shapes))}")
        if shapes[0][1] != n_features:
            expected = f"must take the features of X, {n_features:,} of them"
            raise InvalidInputError("head", expected, got=f"one of {shapes[0][1]:,} features")
        if not all((np.abs(part) <= LARGEST).all() for part in parts):  # False for NaN
            raise InvalidInputError("head", f"must have finite entries of at most {LARGEST:g}", got="others")
        if len(parts[0]) == 1:
            parts = [np.concatenate([np.zeros_like(part), part]) for part in parts]
        return cls(*map(torch.from_numpy, parts))

    def logits(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return logits, (n, n_classes), in the precision and on the device of the embeddings, (n, h)."""
        bias = None if self.bias is None else self.bias.to(embeddings)
        return nn.functional.linear(embeddings, self.weight.to(embeddings), bias)
