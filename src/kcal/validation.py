"""The border: arrays, labels, groups, weights and options, checked once for calibrators, metrics and the command line.

Embeddings and logits become tensors (:func:`check_matrix`); probabilities, labels, weights and ids numpy arrays. torch
and scikit-learn are loaded only where they are needed: ``import kcal.metrics`` is quick.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from hashlib import blake2b
from math import inf, isfinite
from numbers import Integral, Real
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from kcal.errors import InvalidInputError, RepresentationWarning, warn

if TYPE_CHECKING:
    import torch

ALMOST_ZERO = 1e-12
"""Probabilities are never smaller than this inside a logarithm."""
MAX_MAGNITUDE = 1e18
"""Larger magnitudes are errors: their squares, and sums of these, must stay far from overflow in float32."""
MAX_LOGIT = 1e15
"""Logits are clipped to this magnitude: masks such as ``finfo(float32).min`` are common, and change nothing more."""
MAX_EXACT_INTEGER = 2**53
"""Whole numbers up to this are exact as floats of double precision."""
MAX_WEIGHT_RATIO = 1e9
"""A positive weight may differ from their mean by this factor; beyond it, sums lose their precision."""
SUM_TOLERANCE = 1e-3
"""By how much the sum of probabilities may differ from 1."""
HALF_PRECISION_SUM_TOLERANCE = 1e-2
"""The same in half precision, which rounds every entry by up to 1 part in 500 (bfloat16)."""
MIN_ROWS_TO_WARN = 10
"""Fewer rows of logits that look like probabilities may do so by chance."""
MAX_SHOWN = 80
"""Characters of a value in an error message."""

NOT_NUMBERS = (str, bytes, np.datetime64, np.timedelta64)
_CONVERSION_ERRORS = (ValueError, TypeError, RuntimeError, OverflowError, AttributeError)

_EMBEDDINGS = "Extract the embeddings first: pass the output of the penultimate layer for each sample, an (n, h) array."
_LOGITS = "Run the network first: pass its logits, (n, n_classes)."
MULTI_LABEL = (
    "Several labels per sample (multi-label) are not supported: evaluate each label on its own column, and fit one "
    "calibrator per label."
)
NAME_COLUMNS = "Pass classes= with the label of every column, in order, where it is an argument."
MAX_ROUNDED_SUM = 0.1
"""Sums of probabilities that differ from 1 by more are not rounded ones."""
_NOT_FINITE = "Remove such rows, or correct what computed them."


class NotNumbersError(InvalidInputError, TypeError):
    """Raise for entries that are not numbers: a TypeError too, which scikit-learn's own checks look for."""


# ---------------------------------------------------------------- conversion to numpy


def is_tensor(values: Any) -> TypeGuard[torch.Tensor]:
    """Return whether ``values`` is a torch tensor, without importing torch."""
    torch_module = sys.modules.get("torch")
    return torch_module is not None and isinstance(values, torch_module.Tensor)


def plain_tensor(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return a detached tensor whose memory holds its values; raise unless it is dense and of real numbers."""
    has_no_values = tensor.is_meta or sys.modules["torch"].nn.parameter.is_lazy(tensor)
    if has_no_values or tensor.is_complex() or str(tensor.layout) != "torch.strided":
        got = f"{tensor.dtype}, {tensor.layout} on {tensor.device}"
        raise InvalidInputError(name, "must be a dense tensor of real numbers", got=got)
    return tensor.detach().resolve_neg()


def _as_numpy(values: Any, name: str, convert: Callable[[Any], Any]) -> NDArray[Any]:
    """Return a sequence, array, tensor or table as a numpy array; ``convert`` is for all but arrays of real numbers.

    bfloat16 becomes float32. Masked entries raise: numpy and scikit-learn would take what is below the mask.
    """
    parts = values if isinstance(values, list | tuple) else (values,)
    if any(isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part) for part in parts):
        remedy = "Fill them or remove their samples."
        raise InvalidInputError(name, "must not have masked entries", got="a masked array", remedy=remedy)
    if is_tensor(values):
        values, convert = plain_tensor(values, name).cpu(), methodcaller("numpy")
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    try:
        is_plain = isinstance(values, np.ndarray) and values.dtype.kind != "c"
        array = np.asarray(values if is_plain else convert(values))
    except _CONVERSION_ERRORS as error:
        raise NotNumbersError(name, "must be an array, a tensor or a list", remedy=_sentence(error)) from error
    if array.ndim == 0 and array.dtype.kind == "O":
        raise InvalidInputError(name, "must be an array, a tensor or a list", got=shown(values))
    return array


def to_array(values: Any, name: str) -> NDArray[Any]:
    """Return labels, groups or ids as a numpy array: text as such, and every integer exactly."""
    array = _as_numpy(values, name, np.asarray)
    if not hasattr(values, "dtype"):  # numpy may have rounded large integers, or made text of numbers
        is_large = array.dtype.kind == "f" and bool((np.abs(array) >= np.float64(MAX_EXACT_INTEGER)).any())
        array = np.array(values, dtype=object) if is_large or array.dtype.kind == "U" else array
    if array.dtype.kind not in "OT" or array.size == 0:
        return array
    entries = array.ravel().tolist()
    if all(isinstance(entry, str) for entry in entries):
        return array.astype(object).astype(str)  # T are numpy's strings of variable length
    if all(isinstance(entry, Real) for entry in entries):
        return _exact_numbers(entries, name).reshape(array.shape)
    return array


def _exact_numbers(numbers: list[Any], name: str) -> NDArray[Any]:
    """Return numbers in a type that holds all of them exactly; numpy's would be float64, with 53 bits.

    Whole numbers that are floats become integers beside integers.
    """
    integers = [int(number) for number in numbers if isinstance(number, Integral)]
    others = np.array([number for number in numbers if not isinstance(number, Integral)], dtype=np.float64)
    if not integers or not np.isfinite(others).all() or all(isinstance(number, bool | np.bool_) for number in numbers):
        return np.array(numbers, dtype=None if integers and not others.size else np.float64)
    if others.size and ((others % 1 != 0).any() or np.abs(others).max() > MAX_EXACT_INTEGER):
        if max(map(abs, integers)) > MAX_EXACT_INTEGER:
            raise InvalidInputError(name, "must be integers if some are above 2**53, which floats round")
        return np.array(numbers, dtype=np.float64)
    whole = [int(number) for number in numbers]
    for dtype in (np.int64, np.uint64):
        if np.iinfo(dtype).min <= min(whole) and max(whole) <= np.iinfo(dtype).max:
            return np.array(whole, dtype=dtype)
    expected = "must be numbers of up to 64 bits, not negative beside 2**63 or more"
    raise InvalidInputError(name, expected, got=shown(numbers), remedy="Pass them as text.")


def to_numbers(values: Any, name: str) -> NDArray[np.floating[Any]]:
    """Return an array of real numbers in float32 or float64; half precision becomes float32, integers float64."""

    def convert(given: Any) -> Any:
        if isinstance(given, list | tuple):
            return np.asarray(given)
        from sklearn.utils import check_array

        options = {"allow_nd": True, "ensure_all_finite": False, "ensure_min_samples": 0, "ensure_min_features": 0}
        return check_array(given, dtype=None, ensure_2d=False, input_name=name, **options)

    array = _as_numpy(values, name, convert)
    dtype = np.float32 if array.dtype in (np.float16, np.float32) else np.float64
    if array.dtype.kind in "biuf":
        return array.astype(dtype, copy=False)
    # Of text, bytes and dates float() would make numbers, though they are not meant as such.
    wrong = next((entry for entry in array.flat if isinstance(entry, NOT_NUMBERS)), None)
    if array.dtype.kind != "O" or wrong is not None:
        got = f"text, {str(wrong)[:60]!r}" if isinstance(wrong, str) else str(array.dtype)
        remedy = f"Convert it with {name}.astype(float), or leave such columns out."
        raise InvalidInputError(name, "must be real numbers", got=got, remedy=remedy)
    try:
        return array.astype(dtype)
    except _CONVERSION_ERRORS as error:
        raise NotNumbersError(name, "must be an array of numbers", remedy=_sentence(error)) from error


def _sentence(error: Exception) -> str:
    """Return the message of a foreign error, shortened to one sentence."""
    return f"{' '.join(str(error).split())[:200].rstrip('.')}."


# ---------------------------------------------------------------- matrices


@dataclass(frozen=True)
class ArrayKind:
    """The kind of array that a caller passed, so that the result can be of the same kind."""

    is_torch: bool
    device: torch.device
    dtype: torch.dtype

    def restore(self, tensor: torch.Tensor) -> Any:
        """Return ``tensor`` as the kind of array that came in (numpy or torch, same device, same precision)."""
        tensor = tensor.detach().to(dtype=self.dtype)
        return tensor.to(self.device) if self.is_torch else tensor.cpu().numpy()


def kind_of(values: Any, checked: torch.Tensor) -> ArrayKind:
    """Return the kind of array of ``values``; ``checked`` is what :func:`check_matrix` made of them."""
    return ArrayKind(is_tensor(values), checked.device, checked.dtype)


def computing_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision to compute in: half precision computes in float32, integers in float64."""
    import torch

    return torch.float32 if dtype in (torch.float16, torch.bfloat16, torch.float32) else torch.float64


def check_matrix(
    values: Any, name: str = "X", *, columns: int | None = None, owner: str = "", logits: bool = False
) -> torch.Tensor:
    """Return ``values`` (n, h) as a finite float tensor, without a copy where none is needed.

    ``columns`` is the number of columns that ``owner``, a calibrator, expects. Finite logits of any size are accepted,
    and clipped to ±1e15; one-dimensional ones, of a classifier with two classes, become a column (see
    :func:`check_scores`) unless more columns are expected.
    """
    tensor = plain_tensor(values, name) if is_tensor(values) else shared_tensor(to_numbers(values, name))
    if tensor.ndim == 1 and logits and columns in (None, 1):
        tensor = tensor[:, None]
    if tensor.ndim != 2:
        expected, got = "must have two dimensions (samples, features)", f"shape {tuple(tensor.shape)}"
        reshape = f"Reshape your data: {name}.reshape(1, -1) is one sample, {name}.reshape(-1, 1) one feature."
        remedy = reshape if tensor.ndim < 2 else _LOGITS if logits else _EMBEDDINGS
        raise InvalidInputError(name, expected, got=got, remedy=remedy)
    for count, noun in zip(tensor.shape, ("sample", "feature"), strict=True):
        if count == 0:
            got = f"0 {noun}(s) (shape={tuple(tensor.shape)}) while a minimum of 1 is required"
            raise InvalidInputError(name, "must not be empty", got=got)
    if columns is not None and tensor.shape[1] != columns:
        expected = f"has {tensor.shape[1]} features, but {owner or 'this'} is expecting {columns} features as input"
        raise InvalidInputError(name, expected)
    return _bounded(tensor.to(computing_dtype(tensor.dtype)), name, logits=logits)


def shared_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return an array as a tensor that shares its memory, or a copy where torch cannot."""
    import torch

    if not array.flags.writeable or any(stride < 0 for stride in array.strides) or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))  # torch can only share writable memory in native order
    return torch.from_numpy(array)


def _bounded(tensor: torch.Tensor, name: str, *, logits: bool) -> torch.Tensor:
    """Return the tensor, clipped if it holds logits; raise if an entry is not finite or too large."""
    import torch

    lowest, highest = (float(end) for end in torch.aminmax(tensor))  # NaN if there is any
    bound = MAX_LOGIT if logits else MAX_MAGNITUDE
    if -bound <= lowest <= highest <= bound:
        return tensor
    valid = torch.isfinite(tensor)
    if logits:  # −∞ masks a class out, but not all classes of a row
        valid |= (tensor == -inf) & valid.any(dim=1, keepdim=True)
    if not valid.all():
        row = int((~valid).any(dim=1).nonzero()[0])
        got = f"{'NaN' if bool(torch.isnan(tensor[row]).any()) else 'infinity'} at row {row}"
        raise InvalidInputError(name, "must be finite, without NaN or inf", got=got, remedy=_NOT_FINITE)
    if logits:
        return tensor.clamp(-bound, bound)
    got = f"a magnitude of {max(-lowest, highest):.3g}"
    raise InvalidInputError(name, f"must have no numbers beyond {MAX_MAGNITUDE:g}", got=got, remedy="Scale it down.")


def check_scores(values: Any, checked: torch.Tensor, representation: str, name: str = "X") -> torch.Tensor:
    """Return logits or probabilities with one column per class, (n, n_classes); raise if probabilities are invalid.

    Of the second of two classes one column suffices: a logit z is its log-odds, [0, z], a probability p is [1 − p, p].
    ``checked`` is what :func:`check_matrix` made of ``values``.
    """
    if representation == "probabilities":
        remedy = 'If these are logits, set the representation to "logits".'
        _check_distributions(checked.cpu().numpy(), name, _sum_tolerance(values), remedy)
    return _with_both_classes(checked, representation)


def unchecked_logits(logits: torch.Tensor, representation: str) -> torch.Tensor:
    """Return logits, (n, n_columns) or (n,), as :func:`check_matrix` and :func:`check_scores`, without their checks."""
    import torch

    # Not clamp: of two of them in double precision the ONNX exporter makes a graph that cannot be loaded.
    rows = torch.nn.functional.hardtanh(logits.to(computing_dtype(logits.dtype)), -MAX_LOGIT, MAX_LOGIT)
    return _with_both_classes(rows[:, None] if rows.ndim == 1 else rows, representation)


def _with_both_classes(rows: torch.Tensor, representation: str) -> torch.Tensor:
    import torch

    if rows.shape[1] != 1:
        return rows
    return torch.cat([torch.zeros_like(rows) if representation == "logits" else 1 - rows, rows], dim=1)


def check_probs(probs: Any, name: str = "probs", *, n_classes: int | None = None) -> NDArray[np.floating[Any]]:
    """Return probabilities (n_samples, n_classes), whose rows sum to 1, as float32 or float64.

    One-dimensional ones, or a single column, are those of the second of two classes: p becomes [1 − p, p]. Where the
    classes are known to be more, this is an error.
    """
    array = to_numbers(probs, name)
    if array.ndim not in (1, 2) or (array.ndim == 1 and n_classes not in (None, 2)):
        expected = f"must be a matrix (n_samples, {n_classes or 'n_classes'})"
        expected += ", or (n_samples,) for the second of two classes" if n_classes in (None, 2) else ""
        raise InvalidInputError(name, expected, got=f"shape {array.shape}", remedy="One row is [[…]].")
    if 0 in array.shape:
        raise InvalidInputError(name, "must have a row for each sample, a column for each class", got=str(array.shape))
    rows = array[:, None] if array.ndim == 1 else array
    _check_distributions(rows, name, _sum_tolerance(probs), "If these are logits, pass their softmax.")
    return np.hstack([1 - rows, rows]) if rows.shape[1] == 1 else rows


def _check_distributions(probs: NDArray[np.floating[Any]], name: str, tolerance: float, remedy: str) -> None:
    """Raise on the first row that is not a probability vector, or not a probability if there is one column."""
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.einsum("ij->i", probs, dtype=np.float64)  # (n_samples,), NaN or infinite where an entry is
        proper = (sums <= 1) if probs.shape[1] == 1 else np.abs(sums - 1) <= tolerance
        if proper.all() and probs.min() >= 0:
            return
        row = int(np.argmin(proper & (probs.min(axis=1) >= 0)))
    wrong = ~np.isfinite(probs[row]) | (probs[row] < 0)
    column = int(np.argmax(wrong))
    got = f"{probs[row, column]:.6g} at row {row}, column {column}"
    if not np.isfinite(probs[row, column]):
        raise InvalidInputError(name, "must be finite", got=got, remedy=_NOT_FINITE)
    if probs.shape[1] == 1:
        expected = "must be probabilities of the second class, from 0 to 1"
        raise InvalidInputError(name, expected, got=got, remedy=remedy.replace("softmax", "sigmoid"))
    if wrong.any():
        raise InvalidInputError(name, "must not be negative", got=got, remedy=remedy)
    if probs.max() <= 1:  # otherwise these are logits, as the remedy says
        are_rounded = (np.abs(sums - 1) <= MAX_ROUNDED_SUM).all()
        remedy = f"{remedy} {'Otherwise divide each row by its sum.' if are_rounded else MULTI_LABEL}"
    expected = f"must hold probabilities that sum to 1 within {tolerance:g}"
    raise InvalidInputError(name, expected, got=f"a sum of {sums[row]:.6g} at row {row}", remedy=remedy)


def _sum_tolerance(values: Any) -> float:
    is_half = str(getattr(values, "dtype", "")).endswith("float16")
    return HALF_PRECISION_SUM_TOLERANCE if is_half else SUM_TOLERANCE


def look_like_probabilities(rows: torch.Tensor) -> bool:
    """Return whether rows, (n, n_classes), are numbers from 0 to 1 that sum to 1: only ever a reason to warn."""
    if rows.min() < 0 or rows.max() > 1:
        return False
    return bool(((rows.double().sum(dim=1) - 1).abs() <= SUM_TOLERANCE).all())


def warn_probabilities(
    rows: torch.Tensor,
    representation: str,
    name: str = "logits",
    remedy: str = 'Pass representation="probabilities" if they are.',
) -> None:
    """Warn if what was passed as logits, (n, n_classes), looks like the output of a softmax or a sigmoid."""
    if representation != "logits" or len(rows) < MIN_ROWS_TO_WARN:
        return
    is_column = rows.shape[1] == 2 and not bool(rows[:, 0].any()) and rows.min() >= 0 and rows.max() <= 1
    if is_column or look_like_probabilities(rows):  # one column of logits was completed by zeros
        what = "" if is_column else ", and their rows sum to 1"
        message = f"All {name} lie between 0 and 1{what}: they look like probabilities."
        warn(message, RepresentationWarning, remedy=remedy)


def row_fingerprints(matrix: torch.Tensor) -> NDArray[np.uint64]:
    """Return a 64-bit fingerprint per row; rows that are equal in single precision agree, others practically never."""
    rows = np.ascontiguousarray(matrix.detach().cpu().float().numpy() + np.float32(0.0))  # −0.0 becomes 0.0
    return np.frombuffer(b"".join(blake2b(row, digest_size=8).digest() for row in rows), dtype="<u8").astype(np.uint64)


# ---------------------------------------------------------------- labels, groups, weights, ids


def raise_where(condition: NDArray[np.bool_], array: NDArray[Any], name: str, expected: str, remedy: str = "") -> None:
    """Raise if a condition holds for any entry of a vector; the message shows the first of them."""
    if condition.any():
        row = int(np.argmax(condition))
        raise InvalidInputError(name, expected, got=f"{array[row]} at row {row}", remedy=remedy)


def check_labels(labels: Any, n_samples: int, name: str = "y") -> NDArray[Any]:
    """Return ``labels`` as a one-dimensional numpy array of ``n_samples`` class labels: text or numbers."""
    if labels is None:
        raise InvalidInputError(name, "is required: kcal requires y to be passed, but the target y is None")
    array = _check_storable(check_vector(labels, n_samples, name), name)
    if array.dtype.kind == "f":
        raise_where(array % 1 != 0, array, name, "must be class labels", "Unknown label type: continuous.")
    return array


def check_columns(labels: Any, n_samples: int, n_columns: int, name: str = "labels", remedy: str = "") -> NDArray[Any]:
    """Return labels that are indices of the columns, 0 to n_columns − 1, or booleans of two, one per sample."""
    array = check_labels(labels, n_samples, name)
    if array.dtype.kind == "U" or (array.dtype.kind == "b" and n_columns != 2):
        expected = f"must be column indices, 0 to {n_columns - 1}"
        remedy = NAME_COLUMNS if array.dtype.kind == "U" else f"Pass {name}.astype(int) if they are columns 0 and 1."
        raise InvalidInputError(name, expected, got=f"labels of dtype {array.dtype}", remedy=remedy)
    expected = f"must be column indices from 0 to {n_columns - 1}"
    remedy = remedy or f"Subtract 1 from labels that count from 1. {NAME_COLUMNS}"
    raise_where((array < 0) | (array >= n_columns), array, name, expected, remedy)
    return array


def check_groups(groups: Any, n_samples: int, name: str = "groups", *, minimum: int = 1) -> NDArray[np.int64]:
    """Return one integer code per sample, equal where ``groups`` (patients, speakers, sites) are equal."""
    array = check_vector(groups, n_samples, name)
    try:
        found, codes = np.unique(array, return_inverse=True)
    except TypeError as error:
        raise InvalidInputError(name, "must be text or numbers", got=f"{shown(array[0])} at row 0") from error
    if len(found) < minimum:
        raise InvalidInputError(name, f"must have at least {minimum} groups for an interval", got=str(len(found)))
    return codes.reshape(-1).astype(np.int64)


def check_group_names(groups: Any, n_samples: int, name: str = "groups") -> NDArray[Any]:
    """Return the name of the group of each sample: text, numbers or booleans; times and the like become text."""
    array = check_vector(groups, n_samples, name)
    if array.dtype.kind in "biufU":
        return array
    check_groups(array, n_samples, name)
    try:
        return array.astype(str)
    except ValueError as error:  # of tuples
        raise InvalidInputError(name, "must be text or numbers", got=f"{shown(array[0])} at row 0") from error


def check_ids(ids: Any, n_samples: int) -> NDArray[Any]:
    """Return one unique identifier per sample."""
    array = _check_storable(check_vector(ids, n_samples, "ids"), "ids")
    unique, counts = np.unique(array, return_counts=True)
    if len(unique) < n_samples:
        repeated = unique[counts > 1].tolist()[0]
        raise InvalidInputError("ids", "must be unique", got=f"{repeated!r} {counts[counts > 1][0]} times")
    return array


def check_weights(weights: Any, n_samples: int, name: str = "sample_weight") -> NDArray[np.float64]:
    """Return the relative importance of each sample: weights divided by the mean of the positive ones.

    Weights have no unit: c times the weights are the same weights, and equal weights are exactly 1. A sample of
    weight 0 counts as absent.
    """
    array = check_nonnegative(weights, n_samples, name)
    positive = array > 0
    if not positive.any():
        raise InvalidInputError(name, "must not be zero for every sample")
    if (array[positive] == array[positive][0]).all():
        return np.asarray(positive, dtype=np.float64)
    # A power of two, so that the sum cannot overflow and nothing is rounded.
    scaled: NDArray[np.float64] = np.ldexp(array, -int(np.frexp(array.max())[1]))
    relative: NDArray[np.float64] = scaled / scaled[positive].mean()
    extreme = positive & ((relative < 1 / MAX_WEIGHT_RATIO) | (relative > MAX_WEIGHT_RATIO))
    expected = f"must be 0 or within a factor of {MAX_WEIGHT_RATIO:g} of the mean of the positive weights"
    raise_where(extreme, array, name, expected, "Set negligible weights to 0.")
    return relative


def check_nonnegative(weights: Any, n_samples: int, name: str) -> NDArray[np.float64]:
    """Return weights as they are given, finite and not negative, one per sample."""
    array = _check_shape(to_numbers(weights, name), n_samples, name).astype(np.float64)
    raise_where(~(np.isfinite(array) & (array >= 0)), array, name, "must be finite and not negative")
    return array


def check_vector(values: Any, n_samples: int, name: str) -> NDArray[Any]:
    """Return one entry per sample; raise for None, NaN, NA, NaT and infinity, and for text beside numbers."""
    array = _check_shape(to_array(values, name), n_samples, name)
    missing = np.zeros(n_samples, dtype=np.bool_)
    if array.dtype.kind in "fMm":
        missing = ~np.isfinite(array)
    elif array.dtype.kind == "O":
        import pandas

        missing = np.asarray(pandas.isna(array))
    raise_where(missing, array, name, "must have no missing entries", "Leave such samples out.")
    if array.dtype.kind == "O":
        is_text = np.array([isinstance(value, str) for value in array])
        raise_where(is_text != is_text[:1], array, name, "must be all text or all numbers")
    return array


def check_frequencies(values: Any, n_classes: int, name: str, remedy: str = "") -> NDArray[np.float64]:
    """Return class frequencies, (n_classes,), that sum to 1."""
    array = to_numbers(values, name).astype(np.float64)
    if array.shape != (n_classes,):
        expected = f"must have one number per class ({n_classes})"
        raise InvalidInputError(name, expected, got=shown(values), remedy=remedy)
    if not (np.isfinite(array).all() and array.min() >= 0 and abs(array.sum() - 1) < SUM_TOLERANCE):
        raise InvalidInputError(name, "must be frequencies that sum to 1", got=shown(array.tolist()), remedy=remedy)
    return np.asarray(array / array.sum())


def _check_shape(array: NDArray[Any], n_samples: int, name: str) -> NDArray[Any]:
    """Return a vector of ``n_samples`` entries; a single column is taken with the warning of scikit-learn."""
    if array.shape[1:] == (1,):
        from sklearn.utils import column_or_1d

        array = column_or_1d(array, warn=True)
    if array.ndim != 1:
        is_label = array.ndim == 2 and (name == "y" or "labels" in name)
        remedy = f"Pass {name}.argmax(axis=1) of one-hot rows. {MULTI_LABEL}" if is_label else ""
        raise InvalidInputError(name, "must be one-dimensional", got=f"shape {array.shape}", remedy=remedy)
    if len(array) != n_samples:
        got = f"{len(array)} entries for {n_samples} samples (inconsistent numbers of samples)"
        raise InvalidInputError(name, "must have one entry per sample", got=got)
    return array


def _check_storable(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Return labels, classes or ids; raise for what cannot be saved: times, complex numbers, bytes, Python objects."""
    if array.dtype.kind in "biuU" or (array.dtype.kind == "f" and array.dtype.itemsize <= 8) or array.size == 0:
        return array
    got = str(array.dtype)
    if array.dtype.kind == "O":
        unusual = next((entry for entry in array if not isinstance(entry, Real)), None)
        got = f"{str(unusual)[:60]!r}, a Python object of type {type(unusual).__name__}"
    remedy = f"Unknown label type: convert it with np.array({name}).astype(str), or astype(int) for integers."
    raise InvalidInputError(name, "must be text, booleans or numbers of up to 64 bits", got=got, remedy=remedy)


# ---------------------------------------------------------------- classes


def collect_classes(label_sets: Sequence[NDArray[Any]], classes: Any = None, name: str = "labels") -> NDArray[Any]:
    """Return the sorted union of all labels, or ``classes`` in the caller's order; booleans are two classes."""
    if classes is None:
        if len({labels.dtype.kind in "US" for labels in label_sets}) > 1:
            got = "text in one set, numbers in another"
            raise InvalidInputError(name, "must be all text or all numbers", got=got)
        if all(labels.dtype.kind == "b" for labels in label_sets):
            return np.array([False, True])
        return np.unique(np.concatenate(of_one_type([np.unique(labels) for labels in label_sets], name)))
    array = to_array(classes, "classes")
    if array.ndim == 1 and len(array):
        array = _check_storable(check_vector(array, len(array), "classes"), "classes")
    if array.ndim != 1 or len(array) == 0 or len(np.unique(array)) != len(array):
        raise InvalidInputError("classes", "must list every class once", got=shown(classes))
    return array


def of_one_type(arrays: list[NDArray[Any]], name: str = "labels") -> list[NDArray[Any]]:
    """Return numbers in a type that holds all of them exactly; whole floats become integers beside integers."""
    kinds = {array.dtype.kind for array in arrays} - {"b"}
    if len(kinds) < 2 or not kinds <= set("iuf"):
        return arrays
    merged = _exact_numbers([number for array in arrays for number in array.tolist()], name)
    return np.split(merged, np.cumsum([len(array) for array in arrays])[:-1])


def encode_labels(labels: NDArray[Any], classes: NDArray[Any], name: str = "labels") -> NDArray[np.int64]:
    """Return the position of every label in ``classes``."""
    positions = {label: position for position, label in enumerate(classes.tolist())}  # equal numbers of any type agree
    codes = np.array([positions.get(label, -1) for label in labels.tolist()], dtype=np.int64)
    if (codes < 0).any():
        row = int(np.argmin(codes))
        value = labels[row].item()
        known = f"{', '.join(map(repr, classes[:5].tolist()))}{', …' if len(classes) > 5 else ''}"
        expected, got = f"must be one of the {len(classes)} classes {known}", f"{value!r} at row {row}"
        raise InvalidInputError(name, expected, got=got, remedy="If the class exists, name it in classes, too.")
    return codes


def column_names(table: Any) -> list[str]:
    """Return the names of the columns of a table; nothing for an array."""
    names = getattr(table, "column_names", None)  # of pyarrow, whose columns are arrays
    return [str(name) for name in (getattr(table, "columns", []) if names is None else names)]


def column_classes(
    table: Any, labels: NDArray[Any], n_columns: int, classes: Any, name: str, remedy: str = ""
) -> NDArray[Any] | None:
    """Return the class of every column: ``classes``, or the names of the columns of a table if the labels are text.

    Otherwise None. A table of one column has the logit or probability of the second of two classes: its name is not
    that of a class.
    """
    names = column_names(table)
    if classes is None:
        if labels.dtype.kind != "U" or len(names) < 2:
            return None
        expected = f"must be names of the columns ({shorten(names)}) if classes are not given"
        raise_where(~np.isin(labels, names), labels, name, expected, NAME_COLUMNS)
    known = collect_classes([], names if classes is None else classes)
    if len(known) != n_columns:
        expected = f"must name all {n_columns} columns, in their order"
        raise InvalidInputError("classes", expected, got=f"{len(known)} classes", remedy=remedy)
    texts = [str(label) for label in known.tolist()]
    if names != texts and sorted(names) == sorted(texts):
        expected = f"must follow the columns of the table, {shorten(names)}"
        raise InvalidInputError("classes", expected, got=shorten(texts))
    return known


# ---------------------------------------------------------------- single options


def check_seed(seed: Any) -> int:
    """Return the seed; raise if it is not an integer from 0 to 2⁶⁴ − 1, the range of torch and numpy."""
    return check_integer(seed, "seed", minimum=0, maximum=2**64 - 1)


def check_integer(value: Any, name: str, *, minimum: int, maximum: int, expected: str = "") -> int:
    """Return an integer; raise if ``value`` is not one or is out of bounds, which ``expected`` can put in words."""
    if isinstance(value, Integral) and not isinstance(value, bool | np.bool_) and minimum <= int(value) <= maximum:
        return int(value)
    expected = expected or f"must be an integer from {minimum:,} to {maximum:,}"
    raise InvalidInputError(name, expected, got=shown(value))


def check_number(
    value: Any, name: str, *, minimum: float, maximum: float = inf, exclusive: bool = False, expected: str = ""
) -> float:
    """Return a finite number; raise if ``value`` is not one or is out of bounds (which ``exclusive`` excludes)."""
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = inf
        if isfinite(number) and (minimum < number < maximum if exclusive else minimum <= number <= maximum):
            return number
    if maximum == inf:
        bounds = f"greater than {minimum:g}" if exclusive else f"of at least {minimum:g}"
    else:
        bounds = f"{'strictly ' if exclusive else ''}between {minimum:g} and {maximum:g}"
    raise InvalidInputError(name, expected or f"must be a number {bounds}", got=shown(value))


def check_choice(value: Any, name: str, choices: Sequence[str]) -> str:
    """Return one of several words; raise if ``value`` is none of them."""
    if isinstance(value, str) and value in choices:
        return value
    raise InvalidInputError(name, f"must be one of {', '.join(map(repr, choices))}", got=shown(value))


def check_flag(value: Any, name: str) -> bool:
    """Return a boolean; raise if ``value`` is anything but True or False."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise InvalidInputError(name, "must be True or False", got=shown(value))


def check_device(device: Any) -> torch.device:
    """Return a device of torch; raise if there is none of this name, or if it cannot hold numbers."""
    import torch

    try:
        place = torch.device(device)
        torch.zeros(1, device=place).cpu()
    except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError, ImportError) as error:
        expected = 'must be a device of this machine, such as "cpu" or "cuda:0"'
        raise InvalidInputError("device", expected, got=shown(device)) from error
    return place


def parameter(default: Any, check: Callable[..., Any], **bounds: Any) -> Any:
    """Declare a field of a dataclass, with the function that checks its value by name and ``bounds``.

    >>> from dataclasses import dataclass
    >>> from kcal.validation import check_integer, parameter
    >>> @dataclass
    ... class Training:
    ...     steps: int = parameter(400, check_integer, minimum=1, maximum=1000)
    """
    return field(default=default, metadata={"check": partial(check, **bounds)})


def checked_parameters(owner: Any) -> dict[str, Any]:
    """Return the checked values of the declared fields, by name; raise if one is invalid.

    The default, such as "auto" or None, needs no check.
    """
    values = {}
    for declared in fields(owner):
        if "check" in declared.metadata:
            value = getattr(owner, declared.name)
            is_default = type(value) is type(declared.default) and value == declared.default
            values[declared.name] = value if is_default else declared.metadata["check"](value, declared.name)
    return values


def shown(value: Any) -> str:
    """Return a short description of a value for an error message."""
    try:
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple):
            return f"{type(value).__name__} of shape {tuple(shape)}"
        if isinstance(value, str | int | float | list | tuple | dict | np.generic | None):
            text = repr(value)
            return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
    except (RuntimeError, ValueError):  # a nested tensor, an integer of too many digits
        pass
    return f"an object of type {type(value).__name__}"


def shorten(names: Sequence[Any], limit: int = 8) -> str:
    """Return the first few names, for a message."""
    more = f", … ({len(names):,} in all)" if len(names) > limit else ""
    return ", ".join(str(name) for name in names[:limit]) + more
