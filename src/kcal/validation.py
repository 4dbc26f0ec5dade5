"""What an embedding, a logit, a label, a group or a weight may look like; checked once, at the border."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AnySet
from dataclasses import dataclass
from math import inf, isfinite
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d

from kcal.errors import InvalidInputError

ALMOST_ZERO = 1e-12
"""Probabilities are never smaller than this inside a logarithm."""
LARGEST = 1e150
"""Larger numbers are refused: sums of their squares overflow."""

_FINGERPRINT_SEED = 0x6B63616C


SEED_LIMIT = 2**64
"""What torch's generators take."""


def check_seed(seed: Any) -> int:
    """Return the seed; raise if it is not an integer from 0 to 2⁶⁴ − 1."""
    return check_integer(seed, "seed", minimum=0, maximum=SEED_LIMIT - 1)


def check_integer(value: Any, name: str, *, minimum: int, maximum: int) -> int:
    """Return an integer; raise if ``value`` is none, or out of bounds."""
    if isinstance(value, Integral) and not isinstance(value, bool | np.bool_) and minimum <= int(value) <= maximum:
        return int(value)
    raise InvalidInputError(name, f"must be an integer from {minimum:,} to {maximum:,}", got=shown(value))


def check_number(value: Any, name: str, *, minimum: float, maximum: float, exclusive: bool = False) -> float:
    """Return a finite real number; raise if ``value`` is none, or out of bounds (excluded themselves if so asked)."""
    if isinstance(value, Real) and not isinstance(value, bool | np.bool_):
        try:
            number = float(value)
        except OverflowError:
            number = inf
        if isfinite(number) and (minimum < number < maximum if exclusive else minimum <= number <= maximum):
            return number
    bounds = "strictly between" if exclusive else "between"
    raise InvalidInputError(name, f"must be a number {bounds} {minimum:g} and {maximum:g}", got=shown(value))


def check_choice(value: Any, name: str, choices: Sequence[str]) -> str:
    """Return one of several words; raise if ``value`` is none of them."""
    if isinstance(value, str) and value in choices:
        return value
    raise InvalidInputError(name, f"must be one of {', '.join(map(repr, choices))}", got=shown(value))


def shown(value: Any, length: int = 80) -> str:
    """Return a short description of a value for an error message."""
    if hasattr(value, "shape"):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    text = repr(value) if isinstance(value, str | int | float | bool | list | tuple | dict | type(None)) else ""
    if not text:
        return f"an object of type {type(value).__name__}"
    return text if len(text) <= length else f"{text[:length]}…"


class _NotNumbersError(InvalidInputError, TypeError):
    """An entry of a matrix is no number: a TypeError too, which is what scikit-learn's own checks look for."""


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
    if isinstance(values, torch.Tensor):
        _refuse_unreadable_tensor(values, name, "a dense real matrix")
        tensor = values.detach()
    else:
        tensor = _tensor_from_array_like(values, name)
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
    array: NDArray[Any] = _to_numpy(labels, name)
    if array.dtype.kind != "O":
        _refuse_what_no_file_holds(array, name)
    try:
        array = column_or_1d(array, warn=True)
    except ValueError as error:
        raise InvalidInputError(
            f"{name}: {error} Pass one label a sample; {name}.argmax(axis=1) makes them of one-hot rows."
        ) from error
    _check_length(array, n_samples, name)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array))[0])
        raise InvalidInputError(f"{name} contains NaN or infinity at row {row}; remove unlabelled samples.")
    _refuse_gaps_and_mixtures(array, name, "remove unlabelled samples")
    _refuse_what_no_file_holds(array, name)
    try:
        check_classification_targets(array)
    except ValueError as error:
        raise InvalidInputError(f"{name}: {error}") from error
    return array


def check_groups(groups: Any, n_samples: int, name: str = "groups") -> NDArray[np.int64]:
    """Return one integer code a sample, equal where ``groups`` (patients, speakers, sites) are equal."""
    array = _to_numpy(groups, name)
    if array.ndim != 1:
        raise InvalidInputError(f"{name} must be one-dimensional; got shape {array.shape}.")
    _check_length(array, n_samples, name)
    if array.dtype.kind == "f" and np.isnan(array).any():
        row = int(np.flatnonzero(np.isnan(array))[0])
        raise InvalidInputError(f"{name} contains NaN at row {row}; give that sample a group of its own.")
    _refuse_gaps_and_mixtures(array, name, "give that sample a group of its own")
    try:
        return np.unique(array, return_inverse=True)[1].reshape(-1).astype(np.int64)
    except TypeError as error:
        raise InvalidInputError(f"{name} must be text or numbers; got {array[0]!r} at row 0.") from error


def check_weights(weights: Any, n_samples: int, name: str = "sample_weight") -> NDArray[np.float64]:
    """Return non-negative finite weights, one a sample, not all of them zero."""
    given = _to_numpy(weights, name)
    if given.dtype.kind in "cMm":
        raise InvalidInputError(f"{name} must be real numbers; got {given.dtype}. Pass how much each sample counts.")
    try:
        array = np.asarray(given, dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
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
    array = _to_numpy(ids, "ids")
    if array.ndim != 1:
        raise InvalidInputError(f"ids must be one-dimensional; got shape {array.shape}.")
    _check_length(array, n_samples, "ids")
    _refuse_what_no_file_holds(array, "ids")
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
    array = _to_numpy(classes, "classes")
    if array.ndim != 1 or len(array) == 0:
        raise InvalidInputError(f"classes must list every class once; got {classes!r}.")
    _refuse_gaps_and_mixtures(array, "classes", "name every class")
    _refuse_what_no_file_holds(array, "classes")
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
    exact = matrix.detach().cpu()
    values = exact.to(torch.float32).numpy() + np.float32(0.0)  # −0.0 becomes 0.0
    bits = np.ascontiguousarray(values).view(np.uint32).astype(np.uint64)
    if exact.dtype == torch.float64:  # numbers that single precision cannot hold at all go by their own bits
        wide = np.ascontiguousarray(exact.numpy())
        beyond = np.isinf(values) | ((values == 0) & (wide != 0))
        bits[beyond] = wide[beyond].view(np.uint64)
    generator = np.random.default_rng([_FINGERPRINT_SEED, matrix.shape[1]])
    multipliers = generator.integers(1, 2**63, size=matrix.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    mixed = (bits + np.uint64(0x9E3779B97F4A7C15)) * multipliers
    mixed ^= mixed >> np.uint64(29)
    result: NDArray[np.uint64] = (mixed * np.uint64(0xBF58476D1CE4E5B9)).sum(axis=1, dtype=np.uint64)
    return result


def _tensor_from_array_like(values: Any, name: str) -> torch.Tensor:
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise InvalidInputError(f"{name} has masked entries; fill or remove them.")
    _refuse_without_order(values, name)
    if getattr(values, "dtype", None) == np.float16:
        values = np.asarray(values, dtype=np.float32)
    try:
        _refuse_text_and_times(np.asarray(values), name)
        array = check_array(
            values,
            dtype=[np.float64, np.float32],
            ensure_all_finite=False,
            ensure_min_samples=0,
            ensure_min_features=0,
            input_name=name,
        )
    except InvalidInputError:
        raise
    except TypeError as error:
        raise _NotNumbersError(f"{name} must be a dense array of numbers, one row a sample: {error}") from error
    except (ValueError, OverflowError, RuntimeError) as error:
        raise InvalidInputError(f"{name}: {error}") from error
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def _to_numpy(values: Any, name: str) -> NDArray[Any]:
    _refuse_without_order(values, name)
    if isinstance(values, torch.Tensor):
        _refuse_unreadable_tensor(values, name, "a dense real tensor")
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    if isinstance(values, list | tuple) and any(isinstance(value, str) for value in values):
        values = np.array(values, dtype=object)  # or numpy would make text of everything
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidInputError(f"{name} must be a list of text or numbers, one a sample: {error}") from error
    if array.dtype.kind in "Mm" and np.isnat(array).any():
        raise InvalidInputError(f"a time is missing (NaT) at row {int(np.flatnonzero(np.isnat(array))[0])}.")
    if array.dtype.kind == "T":  # numpy's strings of variable length
        array = array.astype(object)
    if array.dtype.kind == "O" and array.size and all(isinstance(value, str) for value in array.ravel()):
        array = array.astype(str)
    return array


def _refuse_without_order(values: Any, name: str) -> None:
    """Refuse what can be read once only, what has no order, and nothing at all."""
    if hasattr(values, "shape"):  # some sparse matrices are mappings too
        return
    if values is None or isinstance(values, Iterator | AnySet | Mapping):
        found = "None" if values is None else f"an object of type {type(values).__name__}"
        entries = f"{name}.values()" if isinstance(values, Mapping) else name
        remedy = "" if values is None else f" Pass np.array(list({entries}))."
        raise InvalidInputError(f"{name} must be an array, a tensor or a list; got {found}.{remedy}")


def _refuse_unreadable_tensor(tensor: torch.Tensor, name: str, wanted: str) -> None:
    """Refuse tensors that hold no plain numbers at every place."""
    troubles = (
        (tensor.is_nested, "a nested tensor", "Give every row the same length and stack them"),
        (tensor.is_meta, "a tensor on the meta device, which holds no numbers", "Compute it on a real device"),
        (tensor.layout != torch.strided, f"a sparse tensor ({tensor.layout})", f"Pass {name}.to_dense()"),
        (tensor.is_quantized, f"a quantized tensor ({tensor.dtype})", f"Pass {name}.dequantize()"),
        (tensor.is_complex(), f"a complex tensor ({tensor.dtype})", f"Pass {name}.real"),
    )
    for found, what, remedy in troubles:
        if found:
            raise InvalidInputError(f"{name} must be {wanted}; got {what}. {remedy}.")


def _refuse_text_and_times(array: NDArray[Any], name: str) -> None:
    """Refuse a matrix of anything but real numbers, even of text that reads as numbers."""
    kind = array.dtype.kind
    if kind == "c":
        raise InvalidInputError(
            f"Complex data not supported: {name} must be real numbers; got {array.dtype}. Pass {name}.real, or real "
            "and imaginary parts as columns side by side."
        )
    if kind in "MmV":
        raise InvalidInputError(f"{name} must be numbers; got {array.dtype}. Convert it to numbers, or leave it out.")
    texts = (value for value in array.flat if isinstance(value, str | bytes)) if kind in "USTO" else iter(())
    for text in texts:
        raise InvalidInputError(
            f"{name} must be numbers; got text, {str(text)!r}. Convert it with {name}.astype(float), or leave such "
            "columns out."
        )


def _refuse_what_no_file_holds(array: NDArray[Any], name: str) -> None:
    """Refuse labels, classes and ids that could not be saved: times, complex numbers, bytes, Python objects."""
    if array.dtype.kind in "biuU" or (array.dtype.kind == "f" and array.dtype.itemsize <= 8):
        return
    what = str(array.dtype)
    if array.dtype.kind == "O":
        odd = next((value for value in array.flat if not isinstance(value, int) or value.bit_length() > 63), array[0])
        what = f"{str(odd)[:60]!r} as a Python object of type {type(odd).__name__}"
    raise InvalidInputError(
        f"{name} must be text, truth values or numbers of up to 64 bits; got {what}. Unknown label types are to be "
        f"converted: np.array({name}).astype(str), or astype(int) for whole numbers."
    )


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
    lowest, highest = (float(end) for end in torch.aminmax(tensor))  # NaN if there is any
    if -LARGEST < lowest <= highest < LARGEST:
        return
    if -inf < lowest <= highest < inf:
        raise InvalidInputError(
            f"{name} holds numbers up to {max(-lowest, highest):.3g}, whose squares overflow; scale it down."
        )
    row = int((~torch.isfinite(tensor)).any(dim=1).nonzero()[0])
    what = "NaN" if bool(torch.isnan(tensor[row]).any()) else "infinity"
    raise InvalidInputError(f"{name} contains {what} at row {row}; remove such rows or repair the network (NaN, inf).")


def _unknown_label(label: Any, row: int, classes: NDArray[Any], name: str) -> InvalidInputError:
    shown = label.item() if hasattr(label, "item") else label
    return InvalidInputError(
        f"{name} must be in classes ({len(classes)} of them); got {shown!r} at row {row}. "
        f"Pass classes=[..., {shown!r}] to fit if the class exists."
    )
