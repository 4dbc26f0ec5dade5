"""The head of the network, a linear layer: it computes the logits of a blend from embeddings."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import nn

from kcal.calibrators.base import CalibrationModel
from kcal.embeddings.layer_calls import CONVOLUTIONS
from kcal.errors import InvalidInputError
from kcal.validation import LARGEST, shown, to_numbers

EXPECTED = "must be an nn.Linear, a 1×1 convolution or a pair of arrays, weight (n_classes, h) and bias (n_classes,)"
FORWARDS = [layer.forward for layer in (nn.Linear, *CONVOLUTIONS)]  # a subclass with its own need not be linear


class LinearHead(CalibrationModel):
    """Logits as a linear function of embeddings: z = W·x + b."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, *, n_features: int, n_classes: int, has_bias: bool) -> None:
        super().__init__(n_features=n_features, n_classes=n_classes, has_bias=has_bias)
        self.declare(weight=(n_classes, n_features))
        self.declare_if(has_bias, bias=(n_classes,))

    def forward(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return logits, (n, n_classes), in the precision and on the device of the embeddings, (n, h)."""
        assert embeddings is not None
        bias = None if self.bias is None else self.bias.to(embeddings)
        return nn.functional.linear(embeddings, self.weight.to(embeddings), bias)

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
        made = cls(n_classes=len(parts[0]), n_features=n_features, has_bias=len(parts) == 2)
        return made.fill(**dict(zip(("weight", "bias"), parts, strict=False)))
