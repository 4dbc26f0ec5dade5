"""Checks of what goes with the rows: labels, classes, groups, weights and ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.errors import InvalidInputError, warn
from kcal.validation.arrays import refuse_where, require_vector, to_array, to_numbers
from kcal.validation.scalars import shown

LARGEST_WEIGHT_RATIO = 1e9
"""A positive weight may differ from their mean by this factor; beyond it, sums lose their precision."""


def check_labels(labels: Any, n_samples: int, name: str = "y") -> NDArray[Any]:
    """Return ``labels`` as a one-dimensional numpy array of ``n_samples`` class labels: text or numbers."""
    if labels is None:
        raise InvalidInputError(name, "is required: kcal requires y to be passed, but the target y is None")
    array = to_array(labels, name)
    if array.dtype.kind != "O":
        _require_storable(array, name)
    if array.ndim == 2 and array.shape[1] == 1:
        array = _column_as_vector(array, name)
    one_hot = f"Pass one label per sample; {name}.argmax(axis=1) converts one-hot rows."
    require_vector(array, n_samples, name, remedy=one_hot if array.ndim == 2 else "Pass one label per sample.")
    _refuse_missing_and_mixed(array, name, "Remove unlabelled samples.")
    _require_storable(array, name)
    if array.dtype.kind == "f":
        refuse_where(array % 1 != 0, array, name, "must be class labels", "Unknown label type: continuous.")
    return array


def check_columns(labels: Any, n_samples: int, n_classes: int) -> NDArray[np.intp]:
    """Return labels that are indices of the columns, 0 to n_classes − 1, or truth values of two, one per sample."""
    array = to_array(labels, "labels")
    remedy = "Pass one label per sample."
    if array.ndim == 2:
        remedy = "Pass labels.ravel()." if array.shape[1] == 1 else "Pass labels.argmax(axis=1) of one-hot rows."
    require_vector(array, n_samples, "labels", remedy=remedy)
    if array.dtype.kind == "f":
        refuse_where(~np.isfinite(array), array, "labels", "must be integers", "Leave unlabelled rows out.")
    if array.dtype.kind == "b":
        require_two_columns(n_classes, "labels")
    elif array.dtype.kind not in "iu":
        expected, got = "must be integers, the column indices of probs", f"dtype {array.dtype}"
        remedy = "Pass the column index of each label; evaluate and class_errors also take classes=."
        if array.dtype.kind == "f" and (array % 1 == 0).all():
            remedy = "Pass labels.astype(int)."
        raise InvalidInputError("labels", expected, got=got, remedy=remedy)
    expected = f"must be column indices of probs, 0 to {n_classes - 1}"
    remedy = "Subtract 1 from labels that count from 1; evaluate and class_errors also take classes=."
    refuse_where((array < 0) | (array >= n_classes), array, "labels", expected, remedy)
    return array.astype(np.intp, copy=False)


def require_two_columns(n_columns: int, name: str) -> None:
    """Raise if labels that are truth values, False for the first column and True for the second, have more columns."""
    if n_columns != 2:
        raise InvalidInputError(
            name,
            f"must be column indices, 0 to {n_columns - 1}",
            got="truth values, which are labels of two classes",
            remedy=f"Pass {name}.astype(int) if they are columns 0 and 1.",
        )


def check_groups(groups: Any, n_samples: int, name: str = "groups") -> NDArray[np.int64]:
    """Return one integer code per sample, equal where ``groups`` (patients, speakers, sites) are equal."""
    array = to_array(groups, name)
    require_vector(array, n_samples, name)
    _refuse_missing_and_mixed(array, name, "Give that sample a group of its own.")
    try:
        return np.unique(array, return_inverse=True)[1].reshape(-1).astype(np.int64)
    except TypeError as error:
        raise InvalidInputError(name, "must be text or numbers", got=f"{shown(array[0])} at row 0") from error


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
    extreme = positive & ((relative < 1 / LARGEST_WEIGHT_RATIO) | (relative > LARGEST_WEIGHT_RATIO))
    expected = f"must be 0 or within a factor of {LARGEST_WEIGHT_RATIO:g} of the mean of the positive weights"
    refuse_where(extreme, array, name, expected, "Set negligible weights to 0.")
    return relative


def check_nonnegative(weights: Any, n_samples: int, name: str) -> NDArray[np.float64]:
    """Return weights as they are given, finite and not negative, one per sample."""
    array = to_numbers(weights, name).astype(np.float64)
    require_vector(array, n_samples, name, remedy="Pass one weight per sample.")
    refuse_where(~(np.isfinite(array) & (array >= 0)), array, name, "must be finite and not negative")
    return array


def check_ids(ids: Any, n_samples: int) -> NDArray[Any]:
    """Return one unique identifier per sample."""
    array = to_array(ids, "ids")
    require_vector(array, n_samples, "ids")
    _require_storable(array, "ids")
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise InvalidInputError("ids", "must not be NaN")
    unique, counts = np.unique(array, return_counts=True)
    if len(unique) < n_samples:
        repeated = unique[counts > 1].tolist()[0]
        raise InvalidInputError("ids", "must be unique", got=f"{repeated!r} {counts[counts > 1][0]} times")
    return array


def collect_classes(label_sets: Sequence[NDArray[Any]], classes: Any = None) -> NDArray[Any]:
    """Return the sorted union of all labels, or ``classes`` in the caller's order; truth values are two classes."""
    if classes is None:
        if len({labels.dtype.kind in "US" for labels in label_sets}) > 1:
            got = "text in one set, numbers in another"
            raise InvalidInputError("labels", "must be all text or all numbers", got=got)
        if all(labels.dtype.kind == "b" for labels in label_sets):
            return np.array([False, True])
        return np.unique(np.concatenate(of_one_type([np.unique(labels) for labels in label_sets])))
    array = to_array(classes, "classes")
    if array.ndim == 1:
        _refuse_missing_and_mixed(array, "classes", "Name every class.")
        _require_storable(array, "classes")
    if array.ndim != 1 or len(array) == 0 or len(np.unique(array)) != len(array):
        raise InvalidInputError("classes", "must list every class once", got=shown(classes))
    return array


def of_one_type(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return signed and unsigned integers in a type that holds all of them; numpy's would be float64, with 53 bits."""
    if {array.dtype.kind for array in arrays} != {"i", "u"}:
        return arrays
    if all(int(array.max(initial=0)) < 2**63 for array in arrays):
        return [array.astype(np.int64) for array in arrays]
    if any(int(array.min(initial=0)) < 0 for array in arrays):
        raise InvalidInputError("labels", "must not have negative numbers beside numbers of 2⁶³ or more")
    return [array.astype(np.uint64) for array in arrays]


def column_names(table: Any) -> list[str]:
    """Return the names of the columns of a table; nothing for an array."""
    names = getattr(table, "column_names", None)  # of pyarrow, whose columns are arrays
    return [str(name) for name in (getattr(table, "columns", []) if names is None else names)]


def table_classes(table: Any, labels: NDArray[Any], name: str = "y") -> NDArray[Any] | None:
    """Return the classes of the columns of a table, which are their names, if the labels are text; otherwise None.

    A table of one column has the logit or probability of the second of two classes: its name is not that of a class.
    """
    names = column_names(table)
    if labels.dtype.kind != "U" or len(names) < 2:
        return None
    unknown = ~np.isin(labels, names)
    columns = f"{', '.join(names[:5])}{', …' if len(names) > 5 else ''}"
    remedy = "Pass classes= with the label of every column, in order."
    refuse_where(unknown, labels, name, f"must be names of the columns ({columns}) if classes are not given", remedy)
    return np.array(names)


def encode_labels(labels: NDArray[Any], classes: NDArray[Any], name: str = "labels") -> NDArray[np.int64]:
    """Return the position of every label in ``classes``."""
    order = np.argsort(classes, kind="stable")
    if (labels.dtype.kind in "US") != (classes.dtype.kind in "US"):
        raise _unknown_label(labels[0], 0, classes, name)
    classes, labels = of_one_type([classes, labels])
    position = np.minimum(np.searchsorted(classes[order], labels), len(classes) - 1)
    codes = order[position]
    wrong = np.flatnonzero(classes[codes] != labels)
    if len(wrong):
        raise _unknown_label(labels[wrong[0]], int(wrong[0]), classes, name)
    return codes.astype(np.int64)


def _column_as_vector(array: NDArray[Any], name: str) -> NDArray[Any]:
    from sklearn.exceptions import DataConversionWarning

    message = (
        f"A column-vector {name} was passed when a 1d array was expected. "
        f"Please change the shape of {name} to (n_samples, ), for example using ravel()."
    )
    warn(message, DataConversionWarning)
    return array.ravel()


def _require_storable(array: NDArray[Any], name: str) -> None:
    """Raise for labels, classes and ids that could not be saved: times, complex numbers, bytes, Python objects."""
    if array.dtype.kind in "biuU" or (array.dtype.kind == "f" and array.dtype.itemsize <= 8):
        return
    got = str(array.dtype)
    if array.dtype.kind == "O":
        unusual = next((entry for entry in array.flat if not isinstance(entry, int) or entry.bit_length() > 63), None)
        got = f"{str(unusual)[:60]!r}, a Python object of type {type(unusual).__name__}"
    expected = "must be text, truth values or numbers of up to 64 bits"
    remedy = f"Unknown label type: convert it with np.array({name}).astype(str), or astype(int) for integers."
    raise InvalidInputError(name, expected, got=got, remedy=remedy)


def _refuse_missing_and_mixed(array: NDArray[Any], name: str, remedy: str) -> None:
    """Raise for None, NaN, NA and infinity, and for text beside numbers in an array of objects."""
    if array.dtype.kind == "f":
        words = np.where(np.isnan(array), "NaN", "infinity")
        refuse_where(~np.isfinite(array), words, name, "must have no missing entries", remedy)
    if array.dtype.kind != "O":
        return
    for row, value in enumerate(array):
        if _is_missing(value):
            raise InvalidInputError(name, "must have no missing entries", got=f"{value!r} at row {row}", remedy=remedy)
        if isinstance(value, str) != isinstance(array[0], str):
            got = f"{array[0]!r} at row 0 and {value!r} at row {row}"
            raise InvalidInputError(name, "must be all text or all numbers", got=got)


def _is_missing(value: Any) -> bool:
    """Return whether an entry of an array of objects is None, NaN, NA or NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.datetime64 | np.timedelta64) and bool(value != value)


def _unknown_label(label: Any, row: int, classes: NDArray[Any], name: str) -> InvalidInputError:
    value = label.item() if hasattr(label, "item") else label
    expected, got = f"must be in classes ({len(classes)} of them)", f"{value!r} at row {row}"
    return InvalidInputError(name, expected, got=got, remedy=f"Pass classes=[..., {value!r}] if the class exists.")
