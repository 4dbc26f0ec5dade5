"""What an embedding, a logit, a label, a group or a weight may look like; checked once, at the border."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d

from kcal.errors import InvalidInputError

ALMOST_ZERO = 1e-12
"""Probabilities are never smaller than this inside a logarithm."""

_FINGERPRINT_SEED = 0x6B63616C


@dataclass(frozen=True)
class ArrayKind:
    """How a caller's array was given, so that the answer can be given in the same way."""

    is_torch: bool
    device: torch.device
    dtype: torch.dtype

    def give_back(self, tensor: torch.Tensor) -> Any:
        """Return ``tensor`` as the kind of array that came in (numpy or torch, same device, same precision)."""
        tensor = tensor.detach().to(dtype=self.dtype)
        return tensor.to(self.device) if self.is_torch else tensor.cpu().numpy()


def computing_dtype(dtype: torch.dtype) -> torch.dtype:
    """Half precision computes in float32, float64 stays float64, integers become float64."""
    if dtype in (torch.float16, torch.bfloat16, torch.float32):
        return torch.float32
    return torch.float64


def check_matrix(values: Any, name: str = "X", *, columns: int | None = None, owner: str = "") -> torch.Tensor:
    """Return ``values`` (n, h) as a finite float tensor, without a copy where none is needed.

    Parameters
    ----------
    values : array-like or tensor
        Rows are samples.
    name : str
        What to call it in a message.
    columns : int, optional
        The number of columns it must have.
    owner : str
        Who expects that number, for the message.
    """
    tensor = values.detach() if isinstance(values, torch.Tensor) else _tensor_from_array_like(values, name)
    if tensor.layout != torch.strided or tensor.is_complex():
        raise InvalidInputError(f"{name} must be a dense real matrix; got a sparse or complex tensor.")
    if tensor.ndim != 2:
        raise InvalidInputError(
            f"{name} must have two dimensions (samples, features); got shape {tuple(tensor.shape)}. "
            "Reshape your data: X.reshape(len(X), -1) keeps one row a sample."
        )
    for count, what in zip(tensor.shape, ("sample", "feature"), strict=True):
        if count == 0:
            raise InvalidInputError(
                f"{name} is empty: found 0 {what}(s) (shape={tuple(tensor.shape)}) while a minimum of 1 is required."
            )
    if columns is not None and tensor.shape[1] != columns:
        raise InvalidInputError(
            f"{name} has {tensor.shape[1]} features, but {owner or 'this'} is expecting {columns} features as input"
        )
    tensor = tensor.to(computing_dtype(tensor.dtype))
    _refuse_non_finite(tensor, name)
    return tensor


def kind_of(values: Any, checked: torch.Tensor) -> ArrayKind:
    """Say how ``values`` were given; ``checked`` is what :func:`check_matrix` made of them."""
    return ArrayKind(isinstance(values, torch.Tensor), checked.device, checked.dtype)


def check_labels(labels: Any, n_samples: int, name: str = "y") -> NDArray[Any]:
    """Return ``labels`` as a one-dimensional numpy array of ``n_samples`` class labels."""
    if labels is None:
        raise InvalidInputError(f"{name} is required: kcal requires y to be passed, but the target y is None.")
    array: NDArray[Any] = column_or_1d(_to_numpy(labels), warn=True)
    _check_length(array, n_samples, name)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array))[0])
        raise InvalidInputError(f"{name} contains NaN or infinity at row {row}; remove unlabelled samples.")
    _refuse_gaps_and_mixtures(array, name, "remove unlabelled samples")
    try:
        check_classification_targets(array)
    except ValueError as error:
        raise InvalidInputError(f"{name}: {error}") from error
    return array


def check_groups(groups: Any, n_samples: int, name: str = "groups") -> NDArray[np.int64]:
    """Return one integer code a sample, equal where ``groups`` (patients, speakers, sites) are equal."""
    array = _to_numpy(groups)
    if array.ndim != 1:
        raise InvalidInputError(f"{name} must be one-dimensional; got shape {array.shape}.")
    _check_length(array, n_samples, name)
    if array.dtype.kind == "f" and np.isnan(array).any():
        row = int(np.flatnonzero(np.isnan(array))[0])
        raise InvalidInputError(f"{name} contains NaN at row {row}; give that sample a group of its own.")
    _refuse_gaps_and_mixtures(array, name, "give that sample a group of its own")
    return np.unique(array, return_inverse=True)[1].reshape(-1).astype(np.int64)


def check_weights(weights: Any, n_samples: int, name: str = "sample_weight") -> NDArray[np.float64]:
    """Return non-negative finite weights, one a sample, not all of them zero."""
    try:
        array = np.asarray(_to_numpy(weights), dtype=np.float64)
    except ValueError as error:
        raise InvalidInputError(f"{name} must be numbers: {error}.") from error
    if array.ndim != 1:
        raise InvalidInputError(f"{name} must be one-dimensional; got shape {array.shape}. Pass one weight a sample.")
    _check_length(array, n_samples, name)
    bad = ~(np.isfinite(array) & (array >= 0))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InvalidInputError(f"{name} must be finite and not negative; got {array[row]} at row {row}.")
    if not array.any():
        raise InvalidInputError(f"{name} must not be zero for every sample.")
    return array


def check_ids(ids: Any, n_samples: int) -> NDArray[Any]:
    """Return one unique identifier a sample."""
    array = _to_numpy(ids)
    if array.ndim != 1:
        raise InvalidInputError(f"ids must be one-dimensional; got shape {array.shape}.")
    _check_length(array, n_samples, "ids")
    unique, counts = np.unique(array, return_counts=True)
    if len(unique) < n_samples:
        raise InvalidInputError(
            f"ids must be unique; {unique[counts > 1].tolist()[0]!r} occurs {counts[counts > 1][0]} times."
        )
    return array


def collect_classes(label_sets: Sequence[NDArray[Any]], classes: Any = None) -> NDArray[Any]:
    """Return the sorted union of all labels, or ``classes`` as the caller ordered them."""
    if classes is None:
        if len({labels.dtype.kind in "US" for labels in label_sets}) > 1:
            raise InvalidInputError("labels are text in one set and numbers in another; write them alike.")
        return np.unique(np.concatenate([np.unique(labels) for labels in label_sets]))
    array = _to_numpy(classes)
    if array.ndim != 1 or len(array) == 0:
        raise InvalidInputError(f"classes must list every class once; got {classes!r}.")
    _refuse_gaps_and_mixtures(array, "classes", "name every class")
    if (array.dtype.kind == "f" and np.isnan(array).any()) or len(np.unique(array)) != len(array):
        raise InvalidInputError(f"classes must list every class once; got {classes!r}.")
    return array


def encode_labels(labels: NDArray[Any], classes: NDArray[Any], name: str = "labels") -> NDArray[np.int64]:
    """Return the position of every label in ``classes``."""
    order = np.argsort(classes, kind="stable")
    if (labels.dtype.kind in "US") != (classes.dtype.kind in "US"):
        raise _unknown_label(labels[0], 0, classes, name)
    position = np.minimum(np.searchsorted(classes[order], labels), len(classes) - 1)
    codes = order[position]
    wrong = np.flatnonzero(classes[codes] != labels)
    if len(wrong):
        raise _unknown_label(labels[wrong[0]], int(wrong[0]), classes, name)
    return codes.astype(np.int64)


def row_fingerprints(matrix: torch.Tensor) -> NDArray[np.uint64]:
    """Return a 64-bit fingerprint a row; equal rows agree whatever their precision, others practically never."""
    values = matrix.detach().cpu().to(torch.float32).numpy() + np.float32(0.0)  # −0.0 becomes 0.0
    bits = np.ascontiguousarray(values).view(np.uint32).astype(np.uint64)
    generator = np.random.default_rng([_FINGERPRINT_SEED, matrix.shape[1]])
    multipliers = generator.integers(1, 2**63, size=matrix.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    mixed = (bits + np.uint64(0x9E3779B97F4A7C15)) * multipliers
    mixed ^= mixed >> np.uint64(29)
    result: NDArray[np.uint64] = (mixed * np.uint64(0xBF58476D1CE4E5B9)).sum(axis=1, dtype=np.uint64)
    return result


def _tensor_from_array_like(values: Any, name: str) -> torch.Tensor:
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise InvalidInputError(f"{name} has masked entries; fill or remove them.")
    if getattr(values, "dtype", None) == np.float16:
        values = np.asarray(values, dtype=np.float32)
    try:
        array = check_array(
            values,
            dtype=[np.float64, np.float32],
            ensure_all_finite=False,
            ensure_min_samples=0,
            ensure_min_features=0,
            input_name=name,
        )
    except ValueError as error:
        raise InvalidInputError(f"{name}: {error}") from error
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def _to_numpy(values: Any) -> NDArray[Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    if isinstance(values, list | tuple) and any(isinstance(value, str) for value in values):
        values = np.array(values, dtype=object)  # or numpy would make text of everything
    array = np.asarray(values)
    if array.dtype.kind in "Mm" and np.isnat(array).any():
        raise InvalidInputError(f"a time is missing (NaT) at row {int(np.flatnonzero(np.isnat(array))[0])}.")
    if array.dtype.kind == "O" and array.size and all(isinstance(value, str) for value in array.ravel()):
        array = array.astype(str)
    return array


def _refuse_gaps_and_mixtures(array: NDArray[Any], name: str, remedy: str) -> None:
    """Refuse None, NaN, NA, and text beside numbers, in an array of objects."""
    if array.dtype.kind != "O":
        return
    for row, value in enumerate(array):
        if value is None or type(value).__name__ == "NAType" or value != value:
            raise InvalidInputError(f"{name} is missing at row {row} ({value!r}); {remedy}.")
        if isinstance(value, str) != isinstance(array[0], str):
            raise InvalidInputError(
                f"{name} mixes text and numbers; got {array[0]!r} at row 0 and {value!r} at row {row}."
            )


def _check_length(array: NDArray[Any], n_samples: int, name: str) -> None:
    if len(array) != n_samples:
        raise InvalidInputError(
            f"{name} must have one entry a sample; got {len(array)} entries for {n_samples} samples "
            "(inconsistent numbers of samples)."
        )


def _refuse_non_finite(tensor: torch.Tensor, name: str) -> None:
    if bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all()):
        return
    row = int((~torch.isfinite(tensor)).any(dim=1).nonzero()[0])
    what = "NaN" if bool(torch.isnan(tensor[row]).any()) else "infinity"
    raise InvalidInputError(f"{name} contains {what} at row {row}; remove such rows or repair the network (NaN, inf).")


def _unknown_label(label: Any, row: int, classes: NDArray[Any], name: str) -> InvalidInputError:
    shown = label.item() if hasattr(label, "item") else label
    return InvalidInputError(
        f"{name} must be in classes ({len(classes)} of them); got {shown!r} at row {row}. "
        f"Pass classes=[..., {shown!r}] to fit if the class exists."
    )
