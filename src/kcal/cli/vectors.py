"""What belongs to each sample, a label, a group, a weight, an id, in a form that kcal takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.errors import InvalidInputError


def check_vector(values: NDArray[Any], key: str, n_samples: int | None, name: str) -> NDArray[Any]:
    """Return labels, groups, weights, ids or classes as whole numbers, numbers or text; ``name`` is for messages."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        remedy = " If they are one-hot, store labels.argmax(axis=1)." if key == "labels" else ""
        raise InvalidInputError(f"{name} must be a single column; got shape {values.shape}.{remedy}")
    if n_samples is not None and len(values) != n_samples:
        raise InvalidInputError(f"{name} must have one entry a sample; got {len(values):,} for {n_samples:,} samples.")
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind not in "fiubU":
        raise InvalidInputError(f"{name} must be numbers or text; got {values.dtype}.")
    if key == "weights":
        return _weights(values, name)
    if values.dtype.kind == "U" and (values == "").any():
        raise InvalidInputError(f"{name} is blank at row {int(np.argmax(values == ''))}. Leave such rows out.")
    return _whole_numbers(values, key, name) if values.dtype.kind == "f" else values


def is_text(values: NDArray[Any]) -> bool:
    """Say whether labels or classes are text; otherwise they are numbers."""
    return values.dtype.kind == "U"


def _weights(values: NDArray[Any], name: str) -> NDArray[Any]:
    if values.dtype.kind == "U":
        raise InvalidInputError(f"{name} must be numbers; got text, {str(values[0])!r}.")
    return values.astype(np.float64)


def _whole_numbers(values: NDArray[Any], key: str, name: str) -> NDArray[Any]:
    """Return 3 for 3.0, which many programs write for it."""
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise InvalidInputError(f"{name} is {values[row]} at row {row}. Leave such rows out.")
    whole = values == np.floor(values)
    if not whole.all():
        row = int(np.argmin(whole))
        raise InvalidInputError(f"{name} must be whole numbers or text; got {values[row]} at row {row}.")
    return values.astype(np.int64)
