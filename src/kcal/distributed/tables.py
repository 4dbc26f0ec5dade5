"""Tables: the columns that a model takes, and those that its predictions are written in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.errors import InvalidInputError

PROBABILITY_COLUMN = "p_"
"""Precedes the name of a class, so that no class can be mistaken for another column."""
NOT_FEATURES = ("label", "group", "weight", "id")
"""Columns that are never taken as features by default."""


@dataclass(frozen=True)
class Columns:
    """Columns of a table that a model takes.

    ``features`` are embeddings, logits or inputs of a network, by the model: a column per number, or one column of
    lists or tensors. ``logits`` stand beside embeddings. ``ids`` are copied to the predictions as ``id_name``.
    """

    features: tuple[str, ...]
    logits: tuple[str, ...] = ()
    ids: str | None = None
    id_name: str = "id"

    @property
    def names(self) -> list[str]:
        """All columns that are read."""
        return [*dict.fromkeys([*self.features, *self.logits, *([] if self.ids is None else [self.ids])])]

    def check(self, names: Sequence[str], table: str) -> None:
        """Raise if a table of these names lacks a column."""
        missing = [name for name in self.names if name not in names]
        if missing:
            problem = f"has no column {missing[0]!r}" + (f" and {len(missing) - 1:,} others" if missing[1:] else "")
            raise InvalidInputError(table, problem, remedy="All files must have the columns that the model takes.")


def default_columns(names: Sequence[str], fitted: Sequence[str], logits: Sequence[str]) -> Columns:
    """Return the columns of a table: those that a model was ``fitted`` on, or all that may be features."""
    reserved = {*NOT_FEATURES, *logits}
    features = tuple(fitted) or tuple(name for name in names if name not in reserved)
    if not features:
        raise InvalidInputError("data", "must have columns of features", got=f"only {', '.join(names) or 'no columns'}")
    return Columns(features, tuple(logits), "id" if "id" in names and "id" not in features else None)


def matrix_of(table: Any, names: Sequence[str]) -> NDArray[Any]:
    """Return columns of numbers side by side, (n, len(names)), or the lists or tensors of one column, (n, …).

    float32 if all numbers are at most that, else float64.
    """
    from pyarrow import types

    kinds = [table.schema.field(name).type for name in names]
    if len(names) == 1 and not types.is_primitive(kinds[0]):
        return _nested(table.column(names[0]), names[0])
    for name, kind in zip(names, kinds, strict=True):
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            raise InvalidInputError(f"column {name!r}", "must be numbers to be a feature", got=str(kind))
    columns = [table.column(name).to_numpy() for name in names]
    is_narrow = all(column.dtype in (np.float16, np.float32) for column in columns)
    return np.stack(columns, axis=1).astype(np.float32 if is_narrow else np.float64)


def _nested(values: Any, name: str) -> NDArray[Any]:
    """Return a column of lists or tensors of one shape as an array, (n, …)."""
    from pyarrow import compute, types

    chunks = []
    for chunk in values.chunks:
        if types.is_list(chunk.type) or types.is_large_list(chunk.type) or types.is_fixed_size_list(chunk.type):
            lengths = compute.min_max(compute.list_value_length(chunk)).as_py()
            if lengths["min"] != lengths["max"] or chunk.null_count:
                got = f"{lengths['min']} to {lengths['max']} numbers"
                got = f"{chunk.null_count:,} rows without a list" if chunk.null_count else got
                raise InvalidInputError(f"column {name!r}", "must have lists of one length in all rows", got=got)
            chunks.append(chunk.flatten().to_numpy(zero_copy_only=False).reshape(len(chunk), -1))
        elif hasattr(chunk, "to_numpy_ndarray"):  # tensors of pyarrow
            chunks.append(chunk.to_numpy_ndarray())
        else:  # tensors of Ray
            chunks.append(np.stack(list(chunk.to_numpy(zero_copy_only=False))))
    array = np.concatenate(chunks)
    if array.dtype.kind not in "biuf":
        expected = "must be numbers, lists of them or tensors to be a feature"
        raise InvalidInputError(f"column {name!r}", expected, got=str(values.type))
    return array


def prediction_columns(
    probs: NDArray[Any],
    classes: NDArray[Any],
    *,
    ids: Any = None,
    id_column: str = "id",
    evidence: NDArray[Any] | None = None,
) -> dict[str, Any]:
    """Return the columns of predictions by name: ids, the most probable class, a column per class, the evidence."""
    named = {f"{PROBABILITY_COLUMN}{label}": probs[:, index] for index, label in enumerate(classes.tolist())}
    columns = {"prediction": classes[probs.argmax(axis=1)]} | named
    columns |= {} if evidence is None else {"evidence": evidence}
    return ({} if ids is None else {"id" if id_column in columns else id_column: ids}) | columns
