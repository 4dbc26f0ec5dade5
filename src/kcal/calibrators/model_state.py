"""Fitted models whose fields declare how they are stored and what a stored value must satisfy.

>>> @dataclass(frozen=True)
... class TemperatureModel(LogitModel):
...     temperature: float = number(0.01, 100.0)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any, Self

import torch

from kcal.errors import FileFormatError

LARGEST_STORED = 1e100
"""Entries of stored tensors are at most this large: products with log probabilities stay finite."""
SMALLEST_POSITIVE = torch.finfo(torch.float64).tiny
LARGEST_BELOW_ONE = 1.0 - torch.finfo(torch.float64).eps / 2


@dataclass(frozen=True)
class StoredModel:
    """A frozen dataclass whose fields are declared by the functions below."""

    def is_consistent(self, n_classes: int) -> bool:
        """Return whether fields, each of which passed its own check, fit together."""
        return True

    def to_state(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return the values and the tensors to store."""
        values: dict[str, Any] = {}
        tensors: dict[str, torch.Tensor] = {}
        for name, value in ((entry.name, getattr(self, entry.name)) for entry in fields(self)):
            if isinstance(value, torch.Tensor):
                tensors[name] = value
            elif isinstance(value, tuple):
                tensors |= {name: torch.cat(value), f"{name}.lengths": torch.tensor([len(part) for part in value])}
            elif isinstance(value, StoredModel):
                own_values, own_tensors = value.to_state()
                values[name] = {"model": type(value).__name__, **own_values}
                tensors |= {f"{name}.{part}": tensor for part, tensor in own_tensors.items()}
            else:
                values[name] = value
        return values, tensors

    @classmethod
    def from_state(cls, values: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], n_classes: int) -> Self:
        """Return the stored model; raise FileFormatError unless every field satisfies what it declares."""
        stored = _Stored(values, tensors, {"classes": n_classes, "classes - 1": n_classes - 1})
        try:
            parts = {entry.name: entry.metadata["check"].read(entry.name, stored) for entry in fields(cls)}
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


def number(lowest: float, highest: float, *, whole: bool = False) -> Any:
    """Declare a field that is a finite float, or an int."""
    kinds = (int,) if whole else (int, float)

    def is_valid(value: Any) -> bool:
        return type(value) in kinds and lowest <= value <= highest and isfinite(value)

    return field(metadata={"check": _Value(f"a number from {lowest:g} to {highest:g}", is_valid)})


def choice(*options: Any) -> Any:
    """Declare a field that is one of several words or flags."""

    def is_valid(value: Any) -> bool:
        return any(type(value) is type(option) and value == option for option in options)

    return field(metadata={"check": _Value(f"one of {options}", is_valid)})


def tensor(*shape: int | str, lowest: float = -LARGEST_STORED, highest: float = LARGEST_STORED) -> Any:
    """Declare a field that is a float64 tensor.

    An entry of ``shape`` is a size or its name: "classes", "classes - 1", or any other, which has one size throughout
    the model.
    """
    return field(repr=False, metadata={"check": _Tensor(shape, lowest, highest)})


def ragged(
    lowest: float = -LARGEST_STORED,
    highest: float = LARGEST_STORED,
    *,
    ascending: bool = False,
    like: str = "",
    longer_by: int = 0,
) -> Any:
    """Declare a field that is a tuple of one-dimensional float64 tensors: one, or one per class.

    With ``like``, their lengths are those of another field plus ``longer_by``, and at least 1.
    """
    return field(repr=False, metadata={"check": _Ragged(lowest, highest, ascending, like, longer_by)})


def nested(*kinds: type[StoredModel]) -> Any:
    """Declare a field that is itself a stored model, of one of several classes."""
    return field(metadata={"check": _Nested({kind.__name__: kind for kind in kinds})})


@dataclass(frozen=True)
class _Stored:
    values: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    sizes: dict[str, int]  # of named axes, filled as they are met

    def entries(self, name: str, lowest: float, highest: float) -> torch.Tensor:
        """Return a float64 tensor whose entries are within bounds."""
        stored = self.tensors[name]
        if stored.dtype != torch.float64:
            raise FileFormatError(f"the stored {name} are of {stored.dtype}; torch.float64 is expected.")
        if not bool(((stored >= lowest) & (stored <= highest)).all()):  # False for NaN
            raise FileFormatError(f"the stored {name} are out of bounds, or not finite.")
        return stored


@dataclass(frozen=True)
class _Value:
    expected: str
    is_valid: Callable[[Any], bool]

    def read(self, name: str, stored: _Stored) -> Any:
        value = stored.values[name]
        if not self.is_valid(value):
            raise FileFormatError(
                f"the stored {name} is out of bounds: {self.expected} is expected; got {str(value)[:40]!r}."
            )
        return value


@dataclass(frozen=True)
class _Tensor:
    shape: tuple[int | str, ...]
    lowest: float
    highest: float

    def read(self, name: str, stored: _Stored) -> torch.Tensor:
        entries = stored.entries(name, self.lowest, self.highest)
        shape = tuple(entries.shape)
        pairs = zip(self.shape, shape, strict=False)
        expected = [size if isinstance(size, int) else stored.sizes.setdefault(size, actual) for size, actual in pairs]
        if len(shape) != len(self.shape) or shape != tuple(expected) or len(entries) == 0:
            raise FileFormatError(f"the stored {name} have shape {shape}; {self.shape} is expected.")
        return entries


@dataclass(frozen=True)
class _Ragged:
    lowest: float
    highest: float
    ascending: bool
    like: str
    longer_by: int

    def read(self, name: str, stored: _Stored) -> tuple[torch.Tensor, ...]:
        flat, lengths = stored.entries(name, self.lowest, self.highest), stored.tensors[f"{name}.lengths"]
        valid = lengths.dtype == torch.int64 and lengths.ndim == 1 and bool((lengths >= 0).all()) and flat.ndim == 1
        if not valid or len(lengths) not in (1, stored.sizes["classes"]) or lengths.sum() != len(flat):
            raise FileFormatError(f"the stored {name} do not fit the classes.")
        if self.like:
            expected = stored.tensors[f"{self.like}.lengths"] + self.longer_by
            if not torch.equal(lengths, expected) or not bool((lengths > 0).all()):
                raise FileFormatError(f"the stored {name} do not fit the stored {self.like}.")
        parts = tuple(torch.split(flat, lengths.tolist()))
        if self.ascending and not all(bool((part.diff() >= 0).all()) for part in parts):
            raise FileFormatError(f"the stored {name} do not ascend.")
        return parts


@dataclass(frozen=True)
class _Nested:
    kinds: Mapping[str, type[StoredModel]]

    def read(self, name: str, stored: _Stored) -> StoredModel:
        own = stored.values[name]
        kind = own.get("model") if isinstance(own, dict) else None
        if not isinstance(kind, str) or kind not in self.kinds:
            raise FileFormatError(f"the stored {name} must be one of {', '.join(self.kinds)}; got {str(kind)[:40]!r}.")
        prefix = f"{name}."
        parts = {part.removeprefix(prefix): entry for part, entry in stored.tensors.items() if part.startswith(prefix)}
        return self.kinds[kind].from_state(own, parts, stored.sizes["classes"])
