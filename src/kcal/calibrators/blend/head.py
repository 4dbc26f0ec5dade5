"""The logits of a blend: given, or computed by the head of the network, a linear layer, from embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from kcal.calibrators.model_state import StoredModel, tensor
from kcal.embeddings.layer_calls import CONVOLUTIONS
from kcal.errors import InvalidInputError
from kcal.validation import (
    LARGEST,
    check_matrix,
    check_scores,
    column_names,
    shown,
    to_numbers,
    warn_of_probabilities,
)

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


def check_logits(
    logits: Any, rows: torch.Tensor, representation: str, head: LinearHead | None, *, n_classes: int | None = None
) -> torch.Tensor | None:
    """Return the checked logits of rows, given or of the head, (n, n_classes); None if there are none."""
    if head is not None:
        if logits is not None:
            raise InvalidInputError("logits", "must be left out: the head computes them")
        logits = head.logits(rows)
    if logits is None:
        return None
    scores = check_scores(logits, check_matrix(logits, "logits", logits=True), representation, "logits")
    if n_classes is not None and scores.shape[1] != n_classes:
        expected = f"must have one column for each of the {n_classes:,} classes of the fit"
        raise InvalidInputError("logits", expected, got=f"{scores.shape[1]:,} columns")
    if len(scores) != len(rows):
        expected = f"must have a row for each row of X, {len(rows):,} of them"
        raise InvalidInputError("logits", expected, got=f"{len(scores):,}")
    warn_of_probabilities(scores, representation, "logits")
    return scores


def check_logit_names(logits: Any, known: list[str]) -> None:
    """Raise if logits are a table with other columns than ``known``, those of the fit, if they had names."""
    names = column_names(logits)
    if names and known and names != known:
        expected = f"must have the columns of the fit, in the same order: {', '.join(known)}"
        raise InvalidInputError("logits", expected, got=", ".join(names))
