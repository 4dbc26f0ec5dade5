"""The head of a network: the linear layer that computes logits from embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kcal.calibrators.model_state import StoredModel, tensor
from kcal.embeddings.heads import CONVOLUTIONS
from kcal.errors import InvalidInputError
from kcal.validation import LARGEST, shown, to_numbers

EXPECTED = "must be an nn.Linear, a 1×1 convolution or a pair (weight, bias) of arrays"
FORWARDS = [layer.forward for layer in (nn.Linear, *CONVOLUTIONS)]
"""A subclass with another ``forward`` need not be linear."""


@dataclass(frozen=True, eq=False)
class LinearHead(StoredModel):
    """Logits as a linear function of embeddings: z = W·x + b."""

    weight: torch.Tensor = tensor("classes", "features")
    bias: torch.Tensor | None = tensor("classes", optional=True)

    @classmethod
    def of(cls, head: Any) -> Self:
        """Return a copy of a layer or of a pair of arrays, in float64; raise if it is not linear.

        One output, the log-odds of the second of two classes, becomes two.
        """
        is_layer = getattr(type(head), "forward", None) in FORWARDS
        if not is_layer and not (isinstance(head, tuple | list) and len(head) == 2):
            raise InvalidInputError("head", EXPECTED, got=shown(head))
        weight, bias = (head.weight, head.bias) if is_layer else head
        parts = [to_numbers(part, "head").astype(np.float64) for part in (weight, bias)[: 1 if bias is None else 2]]
        if is_layer and parts[0].ndim > 2 and parts[0].size == np.prod(parts[0].shape[:2]):
            parts[0] = parts[0].reshape(parts[0].shape[:2])
        shapes = [part.shape for part in parts]
        if len(shapes[0]) != 2 or 0 in shapes[0] or shapes[1:] not in ([], [shapes[0][:1]]):
            expected = f"{EXPECTED}, of shapes (n_classes, n_features) and (n_classes,)"
            raise InvalidInputError("head", expected, got=f"shapes {' and '.join(map(str, shapes))}")
        if not all((np.abs(part) <= LARGEST).all() for part in parts):  # False for NaN
            expected = f"must have finite entries of at most {LARGEST:g}"
            raise InvalidInputError("head", expected, got="NaN, infinity or larger ones")
        if len(parts[0]) == 1:
            parts = [np.concatenate([np.zeros_like(part), part]) for part in parts]
        return cls(*map(torch.from_numpy, parts))

    def logits(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return logits, (n, n_classes), in the precision of the embeddings, (n, h), as the network does."""
        bias = None if self.bias is None else self.bias.to(embeddings)
        return nn.functional.linear(embeddings, self.weight.to(embeddings), bias)

    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """Return copies of the weight and the bias."""
        return self.weight.numpy().copy(), None if self.bias is None else self.bias.numpy().copy()
