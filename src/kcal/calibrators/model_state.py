"""Fitted models whose state is their fields: tensors with a declared shape, and plain numbers, words and flags.

>>> @dataclass(frozen=True)
... class TemperatureModel(LogitModel):
...     temperature: float
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import partial
from types import NoneType
from typing import Any, Self

import torch
from torch import nn

from kcal.errors import FileFormatError

NUMBER = (float, int)
PLAIN_TYPES = {"float": NUMBER, "float | None": (*NUMBER, NoneType), "int": (int,), "str": (str,), "bool": (bool,)}
"""Types of the stored values, by the annotation of a field."""

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Stored:
    """Values and tensors that a model is read from; ``sizes`` of named axes are filled as they are met."""

    values: Any
    tensors: Mapping[str, torch.Tensor]
    n_classes: int
    n_features: int
    projection: nn.Module | None = None  # the caller's, of which only the tensors are stored
    sizes: dict[str, int] = field(default_factory=dict)

    def part(self, name: str, values: Any) -> Stored:
        """Return what a part of the model is read from: its values, and the tensors with its name before a dot."""
        start = f"{name}."
        own = {key.removeprefix(start): tensor for key, tensor in self.tensors.items() if key.startswith(start)}
        return Stored(values, own, self.n_classes, self.n_features, self.projection)

    def tensor(self, name: str, shape: tuple[int | str, ...], dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """Return a tensor; raise FileFormatError if its type or shape is not the declared one."""
        tensor, known = self.tensors[name], {"classes": self.n_classes, "classes - 1": self.n_classes - 1}
        known["features"] = self.n_features
        pairs = zip(shape, tensor.shape, strict=False)
        sizes = self.sizes | known
        expected = [size if isinstance(size, int) else sizes.get(size, actual) for size, actual in pairs]
        if tensor.dtype != dtype or tensor.ndim != len(shape) or list(tensor.shape) != expected:
            raise FileFormatError(
                f"the stored {name} do not fit: they are of {tensor.dtype} and shape {tuple(tensor.shape)}; {dtype} "
                f"and {shape} are expected."
            )
        self.sizes.update(zip((str(size) for size in shape), tensor.shape, strict=True))
        return tensor


@dataclass(frozen=True)
class StoredModel:
    """A frozen dataclass of plain values, and of tensors and models declared by the functions below."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, without what is computed from them, for pickle and copies."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    def to_state(self) -> tuple[dict[str, Any], Tensors]:
        """Return the values and the tensors to store."""
        values: dict[str, Any] = {}
        tensors: Tensors = {}
        for entry in fields(self):
            name, value = entry.name, getattr(self, entry.name)
            if "write" in entry.metadata:
                values[name], own = entry.metadata["write"](value)
                tensors |= {f"{name}.{part}": tensor for part, tensor in own.items()}
            elif isinstance(value, tuple):
                tensors |= {name: torch.cat(value), f"{name}.lengths": torch.tensor([len(part) for part in value])}
            elif isinstance(value, torch.Tensor):
                tensors[name] = value
            elif "shape" not in entry.metadata:
                values[name] = value
        return values, tensors

    @classmethod
    def from_state(cls, stored: Stored) -> Self:
        """Return the stored model; raise FileFormatError if a type or shape is not the declared one."""
        try:
            return cls(**{entry.name: _read(entry, stored) for entry in fields(cls)})
        except KeyError as error:
            raise FileFormatError(f"the stored model has no {error.args[0]}.") from error


@dataclass(frozen=True)
class LogitModel(StoredModel, ABC):
    """Base class of the models of logit methods: tensors, numbers, and the formula of the prediction."""

    @abstractmethod
    def log_probs(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return calibrated log probabilities of the network's, both (n, n_classes) in float64.

        A formula without branches that depend on numbers: it is part of a torch module that others compile and export.
        """

    def prepare(self, n_classes: int) -> LogitModel:
        """Return the model of predictions, with everything computed that does not depend on the rows."""
        return self

    @property
    def numbers_per_score(self) -> int:
        """Size of the largest tensor of the formula, per class and row: blocks of predictions bound it."""
        return 1

    def summary(self) -> dict[str, str]:
        """Return the main results for display, label to text."""
        return {}


def tensor(*shape: int | str, dtype: torch.dtype = torch.float64, optional: bool = False) -> Any:
    """Declare a field that is a tensor, or None if it is optional.

    An entry of ``shape`` is a size or its name: "classes", "classes - 1", "features", or any other, which has one size
    throughout the model.
    """
    metadata = {"shape": shape, "dtype": dtype, "optional": optional}
    return field(default=None, repr=False, metadata=metadata) if optional else field(repr=False, metadata=metadata)


def ragged(like: str = "", longer_by: int = 0) -> Any:
    """Declare a field that is a tuple of one-dimensional float64 tensors: one, or one per class.

    With ``like``, their lengths are those of another field plus ``longer_by``.
    """
    return field(repr=False, metadata={"like": like, "longer_by": longer_by})


def nested(*kinds: type[StoredModel], default: Any = MISSING) -> Any:
    """Declare a field that is itself a stored model, of one of several classes, or None if that is the default."""
    return custom(_write_model, partial(_read_model, kinds, optional=default is None), default)


def several(*kinds: type[StoredModel]) -> Any:
    """Declare a field that is a tuple of stored models, each of one of several classes."""

    def write(models: tuple[StoredModel, ...]) -> tuple[list[Any], Tensors]:
        states = [_write_model(model) for model in models]
        tensors = {f"{place}.{name}": tensor for place, (_, own) in enumerate(states) for name, tensor in own.items()}
        return [values for values, _ in states], tensors

    def read(stored: Stored, name: str) -> tuple[StoredModel, ...]:
        values = {str(place): value for place, value in enumerate(stored.values[name])}
        return tuple(_read_model(kinds, stored.part(name, values), place) for place in values)

    return custom(write, read)


def custom(
    write: Callable[[Any], tuple[Any, Tensors]], read: Callable[[Stored, str], Any], default: Any = MISSING
) -> Any:
    """Declare a field by the functions that return its value for JSON and its tensors, and that read it by its name."""
    return field(default=default, metadata={"write": write, "read": read})


def _write_model(model: StoredModel | None) -> tuple[dict[str, Any] | None, Tensors]:
    if model is None:
        return None, {}
    values, tensors = model.to_state()
    return {"model": type(model).__name__, **values}, tensors


def _read_model(kinds: tuple[type[StoredModel], ...], stored: Stored, name: str, *, optional: bool = False) -> Any:
    if optional and stored.values.get(name) is None:
        return None
    value, by_name = stored.values[name], {kind.__name__: kind for kind in kinds}
    kind = by_name.get(str(value.get("model")) if isinstance(value, dict) else "")
    if kind is None:
        raise FileFormatError(f"the stored {name} must be one of {', '.join(by_name)}.")
    return kind.from_state(stored.part(name, value))


def _read(entry: Field[Any], stored: Stored) -> Any:
    """Return the value of a field."""
    name, declared = entry.name, entry.metadata
    if "read" in declared:
        return declared["read"](stored, name)
    if "shape" in declared:
        missing = declared["optional"] and name not in stored.tensors
        return None if missing else stored.tensor(name, declared["shape"], declared["dtype"])
    if "like" in declared:
        return _read_ragged(stored, name, declared["like"], declared["longer_by"])
    value = stored.values[name]
    if type(value) not in PLAIN_TYPES[str(entry.type)]:
        raise FileFormatError(f"the stored {name} must be of type {entry.type}; got {str(value)[:40]!r}.")
    return value


def _read_ragged(stored: Stored, name: str, like: str, longer_by: int) -> tuple[torch.Tensor, ...]:
    flat = stored.tensor(name, (stored.tensors[name].numel(),))
    lengths = stored.tensors[f"{name}.lengths"]
    valid = lengths.dtype == torch.int64 and lengths.shape in ((1,), (stored.n_classes,))
    if valid and like:
        valid = torch.equal(lengths, stored.tensors[f"{like}.lengths"] + longer_by)
    if not valid or lengths.sum() != len(flat) or bool((lengths < 0).any()):
        raise FileFormatError(f"the stored {name} do not fit the classes, or the stored {like}.")
    return torch.split(flat, lengths.tolist())
