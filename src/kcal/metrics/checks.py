"""What probabilities, labels and bins may look like; checked once, at the border of the metrics."""

import math
import operator
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.errors import InvalidInputError

Floats = NDArray[np.floating[Any]]
Threshold = float | Literal["max", "min"]

# Half precision rounds every entry by up to 1 part in 500 (bfloat16), so that its rows miss 1 by more.
SUM_TOLERANCE = 1e-3
HALF_PRECISION_SUM_TOLERANCE = 1e-2

SMALLEST_WEIGHT, LARGEST_WEIGHT = 1e-100, 1e100


@dataclass(frozen=True, eq=False)
class Predictions:
    """Checked probabilities and labels, and what every metric reads from them."""

    probs: Floats  # (n_samples, n_classes), float32 or float64
    labels: NDArray[np.intp]  # (n_samples,), column indices of probs
    weights: NDArray[np.float64] | None = None  # (n_samples,), how much each row counts

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return int(self.probs.shape[0])

    @property
    def n_classes(self) -> int:
        """Number of columns."""
        return int(self.probs.shape[1])

    @cached_property
    def top_classes(self) -> NDArray[np.intp]:
        """Column of each row's largest probability; the first of them where several are equal."""
        return np.asarray(np.argmax(self.probs, axis=1))  # (n_samples,)

    @cached_property
    def confidences(self) -> Floats:
        """Each row's largest probability."""
        return self._at(self.top_classes)

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the top class is the label."""
        return np.equal(self.top_classes, self.labels)

    @cached_property
    def label_probs(self) -> Floats:
        """The probability that each row gives to its label."""
        return self._at(self.labels)

    @property
    def total_weight(self) -> float:
        """Sum of the weights; the number of rows without any."""
        return float(self.n_samples if self.weights is None else self.weights.sum())

    def mean(self, values: NDArray[Any]) -> float:
        """Return the (weighted) mean over the rows of one value a row."""
        return float(np.mean(values) if self.weights is None else np.average(values, weights=self.weights))

    def event(self, of: Literal["confidence"] | int) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the predictions of an event and whether it occurred, a row each."""
        if of == "confidence":
            return self.confidences, self.correct
        return self.probs[:, of], self.labels == of

    def rows(self, chosen: NDArray[Any]) -> "Predictions":
        """Return some of the rows: a mask, or indices in any order."""
        weights = None if self.weights is None else self.weights[chosen]
        return Predictions(self.probs[chosen], self.labels[chosen], weights)

    def _at(self, columns: NDArray[np.intp]) -> Floats:
        return self.probs[np.arange(self.n_samples), columns]


def check_predictions(probs: ArrayLike, labels: ArrayLike, sample_weight: ArrayLike | None = None) -> Predictions:
    """Check probabilities, labels and weights, and raise on the first row that is not what it must be."""
    checked = _check_probs(probs)
    n_samples, n_classes = checked.shape
    columns = _check_labels(labels, n_samples=n_samples, n_classes=n_classes)
    return Predictions(checked, columns, _check_weights(sample_weight, n_samples))


def check_bins(bins: int) -> int:
    """Check a number of bins."""
    try:
        number = 0 if isinstance(bins, bool) else operator.index(bins)
    except TypeError:
        number = 0
    if number < 1:
        raise InvalidInputError(f"bins must be a whole number, at least 1; got {bins!r}.")
    return number


def resolve_threshold(threshold: Threshold, n_classes: int) -> float:
    """Turn "max" into max(0.01, 1/K) and "min" into min(0.01, 1/K), and check a number."""
    if isinstance(threshold, str):
        if threshold == "max":
            return max(0.01, 1 / n_classes)
        if threshold == "min":
            return min(0.01, 1 / n_classes)
    elif isinstance(threshold, Real) and 0 <= threshold <= 1:
        return float(threshold)
    raise InvalidInputError(f'threshold must be "max", "min" or a number from 0 to 1; got {threshold!r}.')


def check_class_index(index: int, n_classes: int) -> int:
    """Check the index of a column of the probabilities."""
    try:
        column = -1 if isinstance(index, bool) else operator.index(index)
    except TypeError:
        raise InvalidInputError(
            f'of must be "confidence" or the index of a class, 0 to {n_classes - 1}; got {index!r}.'
        ) from None
    if not 0 <= column < n_classes:
        raise InvalidInputError(f'of must be "confidence" or the index of a class, 0 to {n_classes - 1}; got {column}.')
    return column


def _as_array(values: Any, name: str) -> tuple[NDArray[Any], bool]:
    """Return a numpy array (torch tensors come from any device), and whether it was in half precision."""
    half = False
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        half = values.is_floating_point() and values.element_size() < 4
        if half:
            values = values.float()  # numpy has no bfloat16
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O" and hasattr(values, "to_numpy"):  # pandas' own kinds of numbers
            array = _numbers_of(values, array)
    except ValueError as error:
        raise InvalidInputError(f"{name} must be an array; its rows differ in length or kind ({error}).") from error
    return array, half or array.dtype == np.float16


def _numbers_of(values: Any, otherwise: NDArray[Any]) -> NDArray[Any]:
    """Return what pandas holds as numbers, if it does."""
    kinds = np.ravel(np.asarray(getattr(values, "dtypes", getattr(values, "dtype", None)), dtype=object))
    if not all(getattr(kind, "kind", "O") in "iuf" for kind in kinds):
        return otherwise
    whole = all(kind.kind in "iu" for kind in kinds)
    return np.asarray(values.to_numpy(dtype=np.int64 if whole else np.float64, na_value=None if whole else np.nan))


def _check_probs(probs: ArrayLike) -> Floats:
    array, half = _as_array(probs, "probs")
    if array.ndim != 2:
        remedy = " For two classes, pass np.column_stack([1 - p, p])." if array.ndim == 1 else ""
        raise InvalidInputError(f"probs must be a matrix (n_samples, n_classes); got shape {array.shape}.{remedy}")
    if array.dtype.kind not in "fiu":
        raise InvalidInputError(
            f"probs must be real numbers; got dtype {array.dtype}. Pass one float column per class."
        )
    if array.shape[0] == 0:
        raise InvalidInputError("probs must have at least one row; got none. Nothing can be measured on no samples.")
    if array.shape[1] < 2:
        raise InvalidInputError(
            f"probs must have a column for each of at least 2 classes; got {array.shape[1]}. "
            "For two classes, pass np.column_stack([1 - p, p])."
        )
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32 if half else np.float64)
    _check_rows(array, HALF_PRECISION_SUM_TOLERANCE if half else SUM_TOLERANCE)
    return array


def _check_rows(probs: Floats, tolerance: float) -> None:
    """Raise on the first row that is no probability vector; nan and infinities show in a row's sum."""
    with np.errstate(invalid="ignore", over="ignore"):
        sums = probs.sum(axis=1, dtype=np.float64)  # (n_samples,)
        smallest = probs.min(axis=1)  # (n_samples,)
        good = (smallest >= 0) & (np.abs(sums - 1) <= tolerance)
    if good.all():
        return
    row = int(np.argmin(good))
    column = int(np.argmax(~np.isfinite(probs[row])))
    if not np.isfinite(probs[row, column]):
        raise InvalidInputError(
            f"probs must be finite; got {probs[row, column]} at row {row}, column {column}. "
            "Leave such rows out, or mend what made them."
        )
    if smallest[row] < 0:
        column = int(np.argmin(probs[row]))
        raise InvalidInputError(
            f"probs must not be negative; got {probs[row, column]:.6g} at row {row}, column {column}. "
            "If these are logits, pass their softmax."
        )
    raise InvalidInputError(
        f"each row of probs must sum to 1 within {tolerance:g}; row {row} sums to {sums[row]:.6g}. "
        "If these are logits, pass their softmax; if they were rounded or columns are missing, "
        "pass all classes and divide each row by its sum."
    )


def _check_labels(labels: ArrayLike, *, n_samples: int, n_classes: int) -> NDArray[np.intp]:
    array, _ = _as_array(labels, "labels")
    if array.ndim != 1:
        remedy = ""
        if array.shape == (n_samples, n_classes):
            remedy = " If they are one-hot, pass labels.argmax(axis=1)."
        elif array.shape == (n_samples, 1):
            remedy = " Pass labels.ravel()."
        raise InvalidInputError(f"labels must have one dimension; got shape {array.shape}.{remedy}")
    if array.shape[0] != n_samples:
        raise InvalidInputError(
            f"probs and labels must have one row for each sample; got {n_samples} rows of probs "
            f"and {array.shape[0]} labels."
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.argmin(np.isfinite(array)))
        raise InvalidInputError(f"labels must be integers; got {array[row]} at row {row}. Leave unlabelled rows out.")
    if array.dtype.kind not in "iu":
        remedy = (
            "Pass labels.astype(int)."
            if array.dtype.kind == "b" or (array.dtype.kind == "f" and (array % 1 == 0).all())
            else "Pass each label's position among the columns of probs; evaluate and class_errors also take classes=."
        )
        raise InvalidInputError(f"labels must be integers, column indices of probs; got dtype {array.dtype}. {remedy}")
    outside = (array < 0) | (array >= n_classes)
    if outside.any():
        row = int(np.argmax(outside))
        raise InvalidInputError(
            f"labels must be column indices of probs, 0 to {n_classes - 1}; got {array[row]} at row {row}. "
            "Labels that count from 1 must be mapped to columns first; evaluate and class_errors also take classes=."
        )
    return array.astype(np.intp, copy=False)


def _check_weights(sample_weight: ArrayLike | None, n_samples: int) -> NDArray[np.float64] | None:
    if sample_weight is None:
        return None
    array, _ = _as_array(sample_weight, "sample_weight")
    if array.shape != (n_samples,) or array.dtype.kind not in "fiub":
        raise InvalidInputError(
            f"sample_weight must be one number a row, {n_samples} of them; "
            f"got shape {array.shape}, dtype {array.dtype}."
        )
    weights = array.astype(np.float64)
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InvalidInputError(f"sample_weight must be finite and not negative; got {weights[row]} at row {row}.")
    if not weights.any():
        raise InvalidInputError("sample_weight must not be 0 for every row: nothing would count.")
    if not SMALLEST_WEIGHT <= weights.max() <= LARGEST_WEIGHT:
        raise InvalidInputError(
            f"the largest sample_weight must lie between {SMALLEST_WEIGHT:g} and {LARGEST_WEIGHT:g}, so that squares "
            f"and sums stay numbers; got {weights.max():g}. Divide the weights by their mean."
        )
    return weights


def check_event(of: Literal["confidence"] | int, n_classes: int) -> Literal["confidence"] | int:
    """Check the event that a metric is about: "confidence" or the index of a class."""
    return "confidence" if isinstance(of, str) and of == "confidence" else check_class_index(of, n_classes)


def check_bandwidth(bandwidth: float) -> float:
    """Check the width of a kernel."""
    if isinstance(bandwidth, Real) and 0 < bandwidth < math.inf:
        return float(bandwidth)
    raise InvalidInputError(f"bandwidth must be a positive number, or None for the default; got {bandwidth!r}.")


def check_group_codes(groups: ArrayLike, n_samples: int) -> NDArray[np.intp]:
    """Return a number from 0 on for each row's group."""
    array, _ = _as_array(groups, "groups")
    if array.shape != (n_samples,):
        raise InvalidInputError(f"groups must be one label a row, {n_samples} of them; got shape {array.shape}.")
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise InvalidInputError(f"groups must be known for every row; row {int(np.argmax(np.isnan(array)))} has none.")
    try:
        return np.unique(array, return_inverse=True)[1].astype(np.intp, copy=False)
    except TypeError as error:
        raise InvalidInputError(f"groups must be all numbers or all text; they cannot be compared ({error}).") from None


def columns_of(labels: ArrayLike, classes: ArrayLike, probs: ArrayLike) -> NDArray[np.intp]:
    """Return the column of every label, given the label of every column of the probabilities."""
    names, values = _as_names(classes, "classes"), _as_names(labels, "labels")
    n_columns = np.shape(probs)[1] if np.ndim(probs) == 2 else len(names)
    if names.ndim != 1 or len(names) != n_columns:
        raise InvalidInputError(
            f"classes must name all {n_columns} columns of probs, in their order; got shape {names.shape}."
        )
    if len(np.unique(names)) != len(names):
        raise InvalidInputError("classes must name every column by a label of its own; some are equal.")
    if (names.dtype.kind in "US") != (values.dtype.kind in "US"):
        raise InvalidInputError(
            f"classes and labels must be of one kind; got {names.dtype} and {values.dtype}. "
            "Pass both as text or both as numbers."
        )
    order = np.argsort(names, kind="stable")
    columns = order[np.minimum(np.searchsorted(names[order], values), len(names) - 1)]
    wrong = np.flatnonzero(names[columns] != values)
    if len(wrong):
        label = values.ravel()[wrong[0] : wrong[0] + 1].tolist()[0]
        raise InvalidInputError(f"labels must be in classes ({len(names)} of them); got {label!r} at row {wrong[0]}.")
    return columns


def _as_names(values: Any, name: str) -> NDArray[Any]:
    """Return labels as an array of numbers or of text; pandas gives text as objects."""
    array, _ = _as_array(values, name)
    if array.dtype.kind == "O":
        if all(isinstance(value, str) for value in array.ravel()):
            return array.astype(str)
        row = next(i for i, value in enumerate(array.ravel()) if not isinstance(value, str))
        raise InvalidInputError(f"{name} must be text or numbers, all alike; got {array.ravel()[row]!r} at row {row}.")
    return array


def check_seed(seed: int) -> int:
    """Check the seed of a random generator."""
    if isinstance(seed, int | np.integer) and not isinstance(seed, bool) and seed >= 0:
        return int(seed)
    raise InvalidInputError(f"seed must be a whole number, at least 0; got {seed!r}.")
