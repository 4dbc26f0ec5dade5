"""The prediction of a fitted calibrator as a torch module.

The formula is that of the model itself: a module holds the tensors of the frozen model as buffers, and gives them back
to the model's own formula in ``forward``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields
from operator import is_
from typing import Any, Self

import torch
from torch import nn

from kcal.calibrators.class_scores import network_log_probs
from kcal.calibrators.model_state import LogitModel, StoredModel
from kcal.errors import InvalidInputError
from kcal.validation import unchecked_logits


class PredictionModule(nn.Module, ABC):
    """Calibrated probabilities of embeddings, (n, h), and logits, (n, n_classes); None for what a method does not use.

    The module equals ``predict_proba`` of the calibrator that it was made from, without checks and warnings, and works
    in ``torch.compile``, ``torch.export`` and the ONNX exporter with any number of rows. Inputs of half precision are
    computed in float32, and so is their result. The precision of the module's own tensors is part of the fit:
    ``.half()`` and the like do not change it, ``.to()`` changes the device only. The module stays in evaluation mode.
    Its tensors require no gradient; gradients flow to the inputs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.training = False

    @abstractmethod
    def forward(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated probabilities, (n, n_classes)."""

    def evidence(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return the share of calibration samples with less evidence than each row, (n,)."""
        raise InvalidInputError("module", "is of a method without evidence", remedy="Use KCal or KCalBlend.")

    def with_evidence(
        self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return calibrated probabilities, (n, n_classes), and evidence, (n,)."""
        return self(embeddings, logits), self.evidence(embeddings, logits)

    @property
    def evidence_step(self) -> float:
        """Difference that one calibration sample more or less makes to the evidence, at most; 0 without evidence."""
        return 0.0

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode: nothing here is trained."""
        return super().train(False)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """Move tensors as ``fn`` does, without changing their precision."""

        def move(tensor: torch.Tensor) -> torch.Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(move, recurse)  # type: ignore[no-untyped-call]


class ModelTensors(nn.Module):
    """The tensors of a frozen model as buffers, those of its parts in submodules; :meth:`model` puts them together."""

    def __init__(self, model: StoredModel) -> None:
        super().__init__()
        self._model_class = type(model)
        self._plain: dict[str, Any] = {}  # values of fields that are no tensors
        self._lengths: dict[str, int] = {}  # of fields that are tuples
        self._names = [entry.name for entry in fields(model)]
        self._built: tuple[list[Any], Any] = ([], None)  # the parts of the last model, and it
        for name in self._names:
            value = getattr(model, name)
            if isinstance(value, tuple):
                self._lengths[name] = len(value)
                for place, part in enumerate(value):
                    self._hold(f"{name}_{place}", part)
            else:
                self._hold(name, value)

    def model(self) -> Any:
        """Return the model with the present tensors: the last one, unless a tensor was replaced since."""
        if torch.compiler.is_compiling():
            return self._build()
        models = [part.model() for part in self._modules.values() if isinstance(part, ModelTensors)]
        parts = [*self._buffers.values(), *models]
        known, model = self._built
        if model is None or not all(map(is_, parts, known)):
            model = self._build()
            self._built = (parts, model)
        return model

    def _build(self) -> Any:
        return self._model_class(**{name: self._field(name) for name in self._names})

    def _hold(self, name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self.register_buffer(name, value.detach().clone())
        elif isinstance(value, StoredModel):
            self.add_module(name, ModelTensors(value))
        else:
            self._plain[name] = value

    def _field(self, name: str) -> Any:
        if name in self._lengths:
            return tuple([self._part(f"{name}_{place}") for place in range(self._lengths[name])])
        return self._part(name)

    def _part(self, name: str) -> Any:
        if name in self._plain:
            return self._plain[name]
        part = getattr(self, name)
        return part.model() if isinstance(part, ModelTensors) else part


class LogitModule(PredictionModule):
    """The prediction of a method on logits; embeddings are ignored."""

    def __init__(self, model: LogitModel, representation: str) -> None:
        super().__init__()
        self.tensors, self.representation = ModelTensors(model), representation

    def forward(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated probabilities, (n, n_classes), of logits (n, n_classes)."""
        rows = unchecked_logits(required(logits, "logits"), self.representation)
        log_probs = network_log_probs(rows, self.representation)
        return torch.exp(self.tensors.model().log_probs(log_probs)).to(rows.dtype)


def required(rows: torch.Tensor | None, name: str) -> torch.Tensor:
    """Return an input of a module; raise if it is None."""
    if rows is None:
        raise InvalidInputError(name, "are needed by this module", got="None")
    return rows
