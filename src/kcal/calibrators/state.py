"""What a file has of a fitted calibrator: values that JSON can represent, and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.online import BandwidthRecord, Counters, Updates
from kcal.errors import FileFormatError, InvalidInputError
from kcal.kernels import BandwidthCurve
from kcal.projection import FastRecipe, PaperRecipe, TrainingCurve

MAX_LABEL_BYTES, MAX_BYTES_PER_CHARACTER = 2**26, 256
"""Bound on the memory of decoded labels: a constant plus a multiple of their length as text."""
RECORDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (BandwidthCurve, BandwidthRecord, Counters, FastRecipe, PaperRecipe, TrainingCurve, Updates)
}
"""Dataclasses that files may have, as objects of JSON with the name of the class."""


@dataclass(frozen=True)
class CalibratorState:
    """The content of a fitted calibrator: parameters and values that JSON can represent, and tensors."""

    method: str
    parameters: dict[str, Any]
    values: dict[str, Any]
    tensors: dict[str, torch.Tensor] = field(repr=False)


class LoadArgumentError(InvalidInputError):
    """Raise for an argument of :func:`kcal.load` beside the path that is wrong or missing; the file is sound."""


def below(tensors: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the entries whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def to_json(value: Any) -> Any:
    """Return ``value`` as JSON can represent it: a record as an object with its name, arrays and tuples as lists."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if is_dataclass(value):
        return {"record": type(value).__name__, **to_json(vars(value))}
    if isinstance(value, dict):
        return {name: to_json(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    return value


def from_json(value: Any) -> Any:
    """Return the value that :func:`to_json` was given; lists are tuples."""
    if isinstance(value, dict):
        entries = {name: from_json(entry) for name, entry in value.items()}
        return RECORDS[entries.pop("record")](**entries) if "record" in entries else entries
    return tuple(map(from_json, value)) if isinstance(value, list) else value


def encode_classes(classes: NDArray[Any]) -> dict[str, Any]:
    """Return class labels in a form that JSON can represent."""
    if classes.dtype.kind not in "biufU":
        raise InvalidInputError(
            "classes", "must be integers, floats, booleans or strings to be saved", got=f"dtype {classes.dtype}"
        )
    return {"dtype": classes.dtype.str, "labels": classes.tolist()}


def decode_classes(stored: dict[str, Any]) -> NDArray[Any]:
    """Return the class labels that :func:`encode_classes` wrote."""
    dtype, labels = np.dtype(stored["dtype"]), stored["labels"]
    if dtype.kind not in "biufU" or not isinstance(labels, list):
        raise FileFormatError(f"the stored labels are of dtype {dtype}, which kcal does not write.")
    limit = MAX_LABEL_BYTES + MAX_BYTES_PER_CHARACTER * sum(len(str(label)) for label in labels)
    if len(labels) * dtype.itemsize > limit:
        raise FileFormatError(f"the stored labels would need more than {limit:,} bytes of memory.")
    classes = np.array(labels, dtype=dtype)
    if classes.ndim != 1 or (dtype.kind == "f" and not np.isfinite(classes).all()):
        raise FileFormatError("the stored labels are damaged: one finite value per class is expected.")
    return classes
