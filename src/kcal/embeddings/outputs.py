"""One record of a classifier's outputs, in memory or in a folder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from kcal.errors import InvalidInputError

MATRICES = ("embeddings", "logits")
VECTORS = ("labels", "groups", "weights", "ids")
PARTS = (*MATRICES, *VECTORS)


@dataclass(frozen=True)
class ClassifierOutputs:
    """Outputs of a trained classifier for some samples; parts that a method does not take may be missing.

    ``classes`` are those of the columns of the logits and ``columns`` the names of columns by part, such as
    ``{"embeddings": ("e_0", "e_1")}``, if they are known. :func:`fit_on` keeps them, and :func:`predict_on` puts
    columns in the order of the fit.
    """

    embeddings: Any = field(default=None, repr=False)  # (n, h)
    logits: Any = field(default=None, repr=False)  # (n, n_classes)
    labels: Any = field(default=None, repr=False)  # (n,)
    groups: Any = field(default=None, repr=False)  # (n,)
    weights: Any = field(default=None, repr=False)  # (n,)
    ids: Any = field(default=None, repr=False)  # (n,)
    classes: Any = field(default=None, repr=False)  # (n_classes,)
    columns: Any = field(default_factory=dict, repr=False)  # names by part

    def matrix(self, inputs: str) -> Any:
        """Return what a method with such ``inputs`` takes as ``X``: the logits, or else the embeddings."""
        name = "logits" if inputs == "logits" else "embeddings"
        values = getattr(self, name)
        if values is None:
            raise InvalidInputError(name, f"must be given for a method that takes {name}", got="None")
        return values

    def parts(self) -> dict[str, Any]:
        """Return the arrays that are there, by name."""
        return {name: values for name in PARTS if (values := getattr(self, name)) is not None}

    def names(self, part: str) -> tuple[str, ...]:
        """Return the name of every column of the embeddings or logits; none if they are not known."""
        names: tuple[str, ...] = self.columns.get(part, ())
        matrix = getattr(self, part)
        return names if names and np.shape(matrix)[1:] == (len(names),) else ()

    def select(self, rows: Any) -> Self:
        """Return some of the samples, by their indices or a boolean for each."""
        return replace(self, **{name: np.asarray(values)[rows] for name, values in self.parts().items()})

    def __repr__(self) -> str:
        parts = self.parts().items()
        sizes = (f"{name} {tuple(getattr(values, 'shape', (len(values),)))}" for name, values in parts)
        return f"{type(self).__name__}({', '.join(sizes)})"
