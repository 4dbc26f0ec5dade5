"""Fitted models whose state is their fields: tensors with a declared shape, and plain numbers, words and flags.

>>> @dataclass(frozen=True)
... class TemperatureModel(LogitModel):
...     temperature: float
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Self

import torch

from kcal.errors import FileFormatError

PLAIN_TYPES = {"float": (float, int), "int": (int,), "str": (str,), "bool": (bool,)}
"""Types of the stored values, by the annotation of a field."""


@dataclass(frozen=True)
class StoredModel:
    """A frozen dataclass of plain values, and of tensors and models declared by the functions below."""

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
        """Return the stored model; raise FileFormatError if a type or shape is not the declared one."""
        sizes = {"classes": n_classes, "classes - 1": n_classes - 1}
        try:
            return cls(**{entry.name: _read(entry, values, tensors, sizes) for entry in fields(cls)})
        except KeyError as error:
            raise FileFormatError(f"the stored model has no {error.args[0]}.") from error


@dataclass(frozen=True)
class LogitModel(StoredModel, ABC):
    """Base class of the models of logit methods: tensors, numbers, and the formula of the prediction."""

    @abstractmethod
    def log_probs(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return calibrated log probabilities of the network's, both (n, n_classes) in float64."""

    def summary(self) -> dict[str, str]:
        """Return the main results for display, label to text."""
        return {}


def tensor(*shape: int | str) -> Any:
    """Declare a field that is a float64 tensor.

    An entry of ``shape`` is a size or its name: "classes", "classes - 1", or any other, which has one size throughout
    the model.
    """
    return field(repr=False, metadata={"shape": shape})


def ragged(like: str = "", longer_by: int = 0) -> Any:
    """Declare a field that is a tuple of one-dimensional float64 tensors: one, or one per class.

    With ``like``, their lengths are those of another field plus ``longer_by``.
    """
    return field(repr=False, metadata={"like": like, "longer_by": longer_by})


def nested(*kinds: type[StoredModel]) -> Any:
    """Declare a field that is itself a stored model, of one of several classes."""
    return field(metadata={"kinds": {kind.__name__: kind for kind in kinds}})


def _read(
    entry: Field[Any], values: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], sizes: dict[str, int]
) -> Any:
    """Return the value of a field; ``sizes`` of named axes are filled as they are met."""
    name, declared = entry.name, entry.metadata
    if "shape" in declared:
        return _read_tensor(name, tensors[name], declared["shape"], sizes)
    if "like" in declared:
        flat = _read_tensor(name, tensors[name], (tensors[name].numel(),), sizes)
        lengths = tensors[f"{name}.lengths"]
        valid = lengths.dtype == torch.int64 and lengths.shape in ((1,), (sizes["classes"],))
        if valid and declared["like"]:
            valid = torch.equal(lengths, tensors[f"{declared['like']}.lengths"] + declared["longer_by"])
        if not valid or lengths.sum() != len(flat) or bool((lengths < 0).any()):
            raise FileFormatError(f"the stored {name} do not fit the classes, or the stored {declared['like']}.")
        return torch.split(flat, lengths.tolist())
    value = values[name]
    if "kinds" in declared:
        kind = declared["kinds"].get(str(value.get("model")) if isinstance(value, dict) else "")
        if kind is None:
            raise FileFormatError(f"the stored {name} must be one of {', '.join(declared['kinds'])}.")
        own = {part.removeprefix(f"{name}."): tensors[part] for part in tensors if part.startswith(f"{name}.")}
        return kind.from_state(value, own, sizes["classes"])
    if type(value) not in PLAIN_TYPES[str(entry.type)]:
        raise FileFormatError(f"the stored {name} must be of type {entry.type}; got {str(value)[:40]!r}.")
    return value


def _read_tensor(name: str, stored: torch.Tensor, shape: tuple[int | str, ...], sizes: dict[str, int]) -> torch.Tensor:
    pairs = zip(shape, stored.shape, strict=False)
    expected = [size if isinstance(size, int) else sizes.setdefault(size, actual) for size, actual in pairs]
    if stored.dtype != torch.float64 or stored.ndim != len(shape) or list(stored.shape) != expected:
        raise FileFormatError(
            f"the stored {name} are of {stored.dtype} and shape {tuple(stored.shape)}; torch.float64 and {shape} are "
            "expected."
        )
    return stored
