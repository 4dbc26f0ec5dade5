"""Fitted models whose fields declare how they are stored, and what a stored value must satisfy.

>>> @dataclass(frozen=True)
... class TemperatureModel(LogitModel):
...     temperature: float = number(0.01, 100.0)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any, Protocol, Self

import torch

from kcal.errors import FileFormatError

LARGEST_STORED = 1e100
"""Entries of stored tensors are at most this large: products with log probabilities stay finite."""
SMALLEST_POSITIVE = torch.finfo(torch.float64).tiny
LARGEST_BELOW_ONE = 1.0 - torch.finfo(torch.float64).eps / 2

Values = dict[str, Any]
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class StoredModel:
    """A frozen dataclass whose fields are declared by the functions below."""

    def is_consistent(self, n_classes: int) -> bool:
        """Return whether fields, each of which passed its own check, fit together."""
        return True

    def to_state(self) -> tuple[Values, Tensors]:
        """Return the values and the tensors to store."""
        values: Values = {}
        tensors: Tensors = {}
        for entry in fields(self):
            entry.metadata["stored"].write(entry.name, getattr(self, entry.name), values, tensors)
        return values, tensors

    @classmethod
    def from_state(cls, values: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], n_classes: int) -> Self:
        """Return the stored model; raise FileFormatError unless every field satisfies what it declares."""
        sizes = {"classes": n_classes, "classes - 1": n_classes - 1}
        try:
            parts = {
                entry.name: entry.metadata["stored"].read(entry.name, values, tensors, sizes) for entry in fields(cls)
            }
        except KeyError as error:
            raise FileFormatError(f"the stored model has no {error.args[0]}.") from error
        model = cls(**parts)
        if not model.is_consistent(n_classes):
            raise FileFormatError(f"the stored {', '.join(parts)} do not fit together.")
        return model


@dataclass(frozen=True)
class LogitModel(StoredModel, ABC):
    """Base class of the models of logit methods: tensors, numbers, and the formula of the prediction."""

    @abstractmethod
    def log_probs(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return calibrated log probabilities of the network's, both (n, n_classes) in float64."""

    def summary(self) -> dict[str, str]:
        """Return the main results for display, label to text."""
        return {}


class Stored(Protocol):
    """Writing and checked reading of one field."""

    def write(self, name: str, value: Any, values: Values, tensors: Tensors) -> None:
        """Add the field to what is stored."""

    def read(self, name: str, values: Mapping[str, Any], tensors: Mapping[str, Any], sizes: dict[str, int]) -> Any:
        """Return the field, or raise FileFormatError."""


def number(lowest: float, highest: float) -> Any:
    """Declare a field that is a finite float."""
    return field(metadata={"stored": _Number(lowest, highest)})


def integer(lowest: int, highest: int) -> Any:
    """Declare a field that is an int."""
    return field(metadata={"stored": _Number(lowest, highest, whole=True)})


def choice(*options: Any) -> Any:
    """Declare a field that is one of several values of JSON: words, True, False."""
    return field(metadata={"stored": _Choice(options)})


def tensor(*shape: int | str, lowest: float = -LARGEST_STORED, highest: float = LARGEST_STORED) -> Any:
    """Declare a field that is a float64 tensor.

    An entry of ``shape`` is a size or its name: "classes", "classes - 1", or any other, which has one size throughout
    the model.
    """
    return field(repr=False, metadata={"stored": _Tensor(shape, lowest, highest)})


def ragged(lowest: float = -LARGEST_STORED, highest: float = LARGEST_STORED, *, ascending: bool = False) -> Any:
    """Declare a field that is a tuple of one-dimensional float64 tensors: one, or one per class."""
    return field(repr=False, metadata={"stored": _Ragged(lowest, highest, ascending)})


def nested(*kinds: type[StoredModel]) -> Any:
    """Declare a field that is itself a stored model, of one of several classes."""
    return field(metadata={"stored": _Nested({kind.__name__: kind for kind in kinds})})


@dataclass(frozen=True)
class _Number:
    lowest: float
    highest: float
    whole: bool = False

    def write(self, name: str, value: Any, values: Values, tensors: Tensors) -> None:
        values[name] = int(value) if self.whole else float(value)

    def read(self, name: str, values: Mapping[str, Any], tensors: Mapping[str, Any], sizes: dict[str, int]) -> Any:
        value = values[name]
        kinds = (int,) if self.whole else (int, float)
        if type(value) not in kinds or not isfinite(value) or not self.lowest <= value <= self.highest:
            raise FileFormatError(f"the stored {name} is out of bounds: {str(value)[:40]}.")
        return value if self.whole else float(value)


@dataclass(frozen=True)
class _Choice:
    options: Sequence[Any]

    def write(self, name: str, value: Any, values: Values, tensors: Tensors) -> None:
        values[name] = value

    def read(self, name: str, values: Mapping[str, Any], tensors: Mapping[str, Any], sizes: dict[str, int]) -> Any:
        value = values[name]
        if not any(type(value) is type(option) and value == option for option in self.options):
            raise FileFormatError(f"the stored {name} must be one of {self.options}; got {str(value)[:40]!r}.")
        return value


@dataclass(frozen=True)
class _Tensor:
    shape: tuple[int | str, ...]
    lowest: float
    highest: float

    def write(self, name: str, value: Any, values: Values, tensors: Tensors) -> None:
        tensors[name] = value

    def read(self, name: str, values: Mapping[str, Any], tensors: Mapping[str, Any], sizes: dict[str, int]) -> Any:
        stored = _check_entries(name, tensors[name], self.lowest, self.highest)
        expected = tuple(
            size if isinstance(size, int) else sizes.setdefault(size, actual)
            for size, actual in zip(self.shape, stored.shape, strict=False)
        )
        if len(stored.shape) != len(self.shape) or tuple(stored.shape) != expected or 0 in expected[:1]:
            raise FileFormatError(f"the stored {name} have shape {tuple(stored.shape)}; {self.shape} is expected.")
        return stored


@dataclass(frozen=True)
class _Ragged:
    lowest: float
    highest: float
    ascending: bool

    def write(self, name: str, value: Any, values: Values, tensors: Tensors) -> None:
        tensors[name] = torch.cat(value)
        tensors[f"{name}.lengths"] = torch.tensor([len(part) for part in value])

    def read(self, name: str, values: Mapping[str, Any], tensors: Mapping[str, Any], sizes: dict[str, int]) -> Any:
        flat, lengths = _check_entries(name, tensors[name], self.lowest, self.highest), tensors[f"{name}.lengths"]
        counts = lengths.dtype == torch.int64 and lengths.ndim == 1 and bool((lengths >= 0).all())
        if not counts or flat.ndim != 1 or len(lengths) not in (1, sizes["classes"]) or lengths.sum() != len(flat):
            raise FileFormatError(f"the stored {name} do not fit the classes.")
        parts = tuple(torch.split(flat, lengths.tolist()))
        if self.ascending and not all(bool((part.diff() >= 0).all()) for part in parts):
            raise FileFormatError(f"the stored {name} do not ascend.")
        return parts


@dataclass(frozen=True)
class _Nested:
    kinds: Mapping[str, type[StoredModel]]

    def write(self, name: str, value: Any, values: Values, tensors: Tensors) -> None:
        own_values, own_tensors = value.to_state()
        values[name] = {"model": type(value).__name__, **own_values}
        tensors |= {f"{name}.{part}": entry for part, entry in own_tensors.items()}

    def read(self, name: str, values: Mapping[str, Any], tensors: Mapping[str, Any], sizes: dict[str, int]) -> Any:
        own = values[name]
        kind = own.get("model") if isinstance(own, dict) else None
        if not isinstance(kind, str) or kind not in self.kinds:
            raise FileFormatError(f"the stored {name} must be one of {', '.join(self.kinds)}; got {str(kind)[:40]!r}.")
        prefix = f"{name}."
        parts = {part.removeprefix(prefix): entry for part, entry in tensors.items() if part.startswith(prefix)}
        return self.kinds[kind].from_state(own, parts, sizes["classes"])


def _check_entries(name: str, stored: torch.Tensor, lowest: float, highest: float) -> torch.Tensor:
    if stored.dtype != torch.float64:
        raise FileFormatError(f"the stored {name} are of {stored.dtype}; torch.float64 is expected.")
    if not bool(((stored >= lowest) & (stored <= highest)).all()):  # False for NaN
        raise FileFormatError(f"the stored {name} are out of bounds, or not finite.")
    return stored
