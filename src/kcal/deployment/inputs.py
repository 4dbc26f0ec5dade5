"""What a calibrated classifier is given: inputs of its network, batches, and names of classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from inspect import Parameter, signature
from typing import Any

import numpy as np
import torch
from torch import nn

from kcal.calibrators import Calibrator
from kcal.embeddings import ClassifierOutputs
from kcal.embeddings.batches import count_rows
from kcal.errors import InvalidInputError
from kcal.validation import shown

ARRAYS = (torch.Tensor, np.ndarray)


def network_inputs(network: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the inputs of a call as those of a batch; raise if they are arrays, or without a sample."""
    if positional and named:
        positional, named = (), _by_name(network, positional, named)
    arrays = [part for part in (*positional, *named.values()) if isinstance(part, np.ndarray)]
    if arrays:
        remedy = "Convert it with torch.from_numpy, or call predict_proba."
        raise InvalidInputError("inputs", "must be tensors", got=shown(arrays[0]), remedy=remedy)
    inputs = named or (positional[0] if len(positional) == 1 else positional)
    if not torch.compiler.is_compiling() and count_rows(inputs) == 0:
        raise InvalidInputError("inputs", "must hold at least one sample", got="none")
    return inputs


def _by_name(network: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return all inputs of a call as keyword arguments of a network."""
    parameters = signature(network.forward).parameters.values()
    names = [one.name for one in parameters if one.kind is Parameter.POSITIONAL_OR_KEYWORD][: len(positional)]
    if len(names) < len(positional) or set(names) & set(named):
        got = f"{len(positional)} positional arguments, and {', '.join(named)}"
        raise InvalidInputError("inputs", "must be arguments of the network, each once", got=got)
    return dict(zip(names, positional, strict=True)) | named


def check_widths(calibrator: Calibrator, embeddings: torch.Tensor, logits: torch.Tensor) -> None:
    """Raise if embeddings or logits have not the columns that a calibrator was fitted with."""
    outputs, remedy = ClassifierOutputs(embeddings, logits), "Pass the network, and the head=, of the fit."
    given, expected = outputs.matrix(calibrator.inputs).shape[1], calibrator.n_features_in_
    name = "logits" if calibrator.inputs == "logits" else "embeddings"
    if given == expected and calibrator.inputs == "both" and calibrator.needs_logits_:
        name, given, expected = "logits", logits.shape[1], len(calibrator.classes_)
        expected = given if (given, expected) == (1, 2) else expected
    if given != expected:
        remark = f"must give {name} with the {expected:,} columns of the fit"
        raise InvalidInputError("network", remark, got=f"{given:,}", remedy=remedy)


def with_names(outputs: ClassifierOutputs, classes: Any) -> ClassifierOutputs:
    """Return outputs with names of classes as labels in place of column indices; without ``classes``, as they are."""
    labels = np.asarray(outputs.labels)
    if classes is None or labels.dtype.kind not in "iu":
        return outputs
    names = np.asarray(classes)
    if names.ndim != 1 or (outputs.logits is not None and len(names) != outputs.logits.shape[1]):
        expected = f"must name every column of the logits ({outputs.logits.shape[1]})"
        raise InvalidInputError("classes", expected, got=shown(classes))
    wrong = (labels < 0) | (labels >= len(names))
    if wrong.any():
        expected, row = f"must be from 0 to {len(names) - 1}, columns of the logits", int(np.argmax(wrong))
        raise InvalidInputError("labels", expected, got=f"{labels[row]} at row {row}")
    return replace(outputs, labels=names[labels])


def is_batch(data: Any) -> bool:
    """Return whether data are one batch: a tensor, an array, a mapping, a tuple, or a list of inputs and labels.

    A tuple of batches is no batch.
    """
    if isinstance(data, list) and len(data) == 2 and all(isinstance(part, ARRAYS) for part in data):
        inputs, labels = data
        return labels.ndim == 1 and inputs.ndim > 1 and len(inputs) == len(labels)
    if isinstance(data, tuple):
        return not data or not all(map(_holds_arrays, data))
    return isinstance(data, (*ARRAYS, Mapping))


def _holds_arrays(part: Any) -> bool:
    """Return whether a part of a tuple is a batch itself: a mapping or a sequence of arrays, not an array."""
    parts = part.values() if isinstance(part, Mapping) else part
    return isinstance(part, Mapping | tuple | list) and any(isinstance(value, ARRAYS) for value in parts)
