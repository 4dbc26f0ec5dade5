"""Batches of a loader: the inputs of the network and the labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kcal.errors import InvalidInputError
from kcal.validation import shown

SplitBatch = Callable[[Any], tuple[Any, Any]]
"""Returns the inputs of the network and the labels (or None) of a batch."""

LABEL_KEYS = ("labels", "label", "targets", "target")
"""Names of the labels in a batch that is a mapping."""
BATCH_REMEDY = "Pass batch=, a function that returns (inputs, labels) of a batch."


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Return the inputs and the labels of a batch; the labels are None if it has none.

    A batch is (inputs, labels), inputs alone, or a mapping in which the labels have one of the names ``LABEL_KEYS``.
    """
    if isinstance(batch, Mapping):
        keys = [key for key in LABEL_KEYS if key in batch]
        if len(keys) > 1:
            got = f"both {keys[0]!r} and {keys[1]!r}"
            raise InvalidInputError("batches", "must hold their labels under one name", got=got, remedy=BATCH_REMEDY)
        inputs = {key: value for key, value in batch.items() if key not in keys}
        return inputs, batch[keys[0]] if keys else None
    if not isinstance(batch, tuple | list):
        return batch, None
    if len(batch) not in (1, 2):
        expected, got = "must be (inputs, labels), inputs alone, or a mapping", f"{len(batch)} parts"
        raise InvalidInputError("batches", expected, got=got, remedy=BATCH_REMEDY)
    return batch[0], batch[1] if len(batch) == 2 else None


def run_network(network: nn.Module, inputs: Any) -> Any:
    """Return the output of a network; a mapping holds its keyword arguments, a tuple or list its positional ones."""
    if not isinstance(inputs, Mapping):
        return network(*inputs) if isinstance(inputs, tuple | list) else network(inputs)
    try:
        return network(**inputs)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        expected = "must hold the keyword arguments of the network"
        raise InvalidInputError("batches", expected, got=f"this error: {error}", remedy=BATCH_REMEDY) from error


def count_rows(inputs: Any) -> int | None:
    """Return the number of samples in the inputs of a batch, by the first tensor in them; None if there is none."""
    if isinstance(inputs, torch.Tensor | np.ndarray):
        return inputs.shape[0] if inputs.ndim else None
    parts: Iterable[Any] = ()
    if isinstance(inputs, Mapping):
        parts = inputs.values()
    elif isinstance(inputs, tuple | list):
        parts = inputs
    return next((count for count in map(count_rows, parts) if count is not None), None)


def to_device(inputs: Any, device: torch.device) -> Any:
    """Return the inputs with all tensors in them on a device; numpy arrays become tensors."""
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "biuf":
        inputs = torch.from_numpy(inputs)
    if isinstance(inputs, torch.Tensor):
        return inputs.to(device, non_blocking=True)
    if isinstance(inputs, Mapping):
        return {key: to_device(value, device) for key, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(to_device(value, device) for value in inputs)
    return inputs


def check_batch_labels(labels: Any, index: int, n_samples: int, n_classes: int) -> NDArray[np.int64]:
    """Return the labels of a batch, (n_samples,); raise if they are not columns of the logits."""
    where = f"in batch {index}"
    values = labels if isinstance(labels, torch.Tensor) else _tensor(labels, where)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or len(values) != n_samples:
        expected = f"must be one class index for each of the {n_samples} samples of a batch"
        remedy = "One-hot labels become class indices by labels.argmax(dim=1)."
        raise InvalidInputError("labels", expected, got=f"shape {tuple(values.shape)} {where}", remedy=remedy)
    if has_fractions(values):
        raise InvalidInputError("labels", "must be class indices", got=f"fractions {where}")
    codes: NDArray[np.int64] = values.detach().cpu().to(torch.int64).numpy()
    wrong = np.flatnonzero((codes < 0) | (codes >= n_classes))
    if len(wrong):
        expected = f"must be from 0 to {n_classes - 1}, columns of the logits"
        raise InvalidInputError("labels", expected, got=f"{codes[wrong[0]]} {where}")
    return codes


def has_fractions(values: Any) -> bool:
    """Return whether a tensor holds numbers that are not whole."""
    return isinstance(values, torch.Tensor) and values.is_floating_point() and bool((values != values.round()).any())


def _tensor(labels: Any, where: str) -> torch.Tensor:
    try:
        return torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        remedy = "Give the columns of the logits as labels, and their names as classes= of fit."
        raise InvalidInputError(
            "labels", "must be class indices", got=f"{shown(labels)} {where}", remedy=remedy
        ) from error
