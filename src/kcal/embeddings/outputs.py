"""One record of a classifier's outputs, in memory or in a folder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from kcal.errors import InvalidInputError


@dataclass(frozen=True)
class ClassifierOutputs:
    """Outputs of a trained classifier for some samples; parts that a method does not take may be missing."""

    embeddings: Any = field(default=None, repr=False)  # (n, h)
    logits: Any = field(default=None, repr=False)  # (n, n_classes)
    labels: Any = field(default=None, repr=False)  # (n,)
    groups: Any = field(default=None, repr=False)  # (n,)
    weights: Any = field(default=None, repr=False)  # (n,)
    ids: Any = field(default=None, repr=False)  # (n,)

    def matrix(self, inputs: str) -> Any:
        """Return what a method with such ``inputs`` takes as ``X``: the logits, or else the embeddings."""
        name = "logits" if inputs == "logits" else "embeddings"
        values = getattr(self, name)
        if values is None:
            raise InvalidInputError(name, f"must be given for a method that takes {name}", got="None")
        return values

    def select(self, rows: Any) -> Self:
        """Return some of the samples, by their indices or a boolean for each."""
        given = {name: getattr(self, name) for name in ClassifierOutputs.__dataclass_fields__}
        return replace(self, **{name: np.asarray(part)[rows] for name, part in given.items() if part is not None})

    def __repr__(self) -> str:
        given = {name: value for name, value in vars(self).items() if value is not None}
        sizes = (f"{name} {tuple(getattr(value, 'shape', (len(value),)))}" for name, value in given.items())
        return f"ClassifierOutputs({', '.join(sizes)})"
