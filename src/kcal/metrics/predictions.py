"""Checked probabilities and labels that every metric reads, and the checks of the options that metrics share."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.errors import InvalidInputError
from kcal.validation import (
    check_columns,
    check_flag,
    check_groups,
    check_integer,
    check_labels,
    check_number,
    check_probs,
    check_weights,
    column_classes,
    encode_labels,
    to_array,
)

Floats = NDArray[np.floating[Any]]
Event = Literal["confidence"] | int
"""The event that is predicted: the top class is right ("confidence"), or the label is the class of this index."""
Threshold = float | Literal["max", "min"]

MAX_BINS = 100_000
BLOCK_ENTRIES = 1_000_000  # of a matrix that is processed block by block, so that memory stays bounded


class Binning(NamedTuple):
    """The number of bins, whether they hold equal counts (or have equal widths), and the least prediction binned."""

    bins: int
    adaptive: bool
    threshold: float = 0.0


@dataclass(frozen=True, eq=False)
class Predictions:
    """Checked probabilities and labels, and the quantities that metrics read from them."""

    probs: Floats  # (n_samples, n_classes), float32 or float64
    labels: NDArray[np.intp]  # (n_samples,), column indices of probs
    weights: NDArray[np.float64] | None = None  # (n_samples,), relative importance, above 0; None if all are equal
    groups: NDArray[np.int64] | None = None  # (n_samples,), codes from 0 without gaps

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
        return self.probs[np.arange(self.n_samples), self.top_classes]

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the top class is the label."""
        return np.equal(self.top_classes, self.labels)

    @cached_property
    def label_probs(self) -> Floats:
        """The probability that each row gives to its label."""
        return self.probs[np.arange(self.n_samples), self.labels]

    @cached_property
    def row_weights(self) -> NDArray[np.float64]:
        """The weight of each row, (n_samples,); ones without ``sample_weight``."""
        return np.ones(self.n_samples) if self.weights is None else self.weights

    def mean(self, values: NDArray[Any]) -> float:
        """Return the (weighted) mean over the rows of one value per row."""
        return float(np.mean(values) if self.weights is None else np.average(values, weights=self.weights))

    def event(self, of: Event) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the prediction of an event and whether it occurred, per row."""
        if of == "confidence":
            return self.confidences, self.correct
        return self.probs[:, of], self.labels == of

    def residuals(self, rows: slice) -> NDArray[np.float64]:
        """Return one-hot labels minus probabilities of some rows, (rows, n_classes)."""
        residuals = -self.probs[rows].astype(np.float64)
        labels = self.labels[rows]
        residuals[np.arange(len(labels)), labels] += 1
        return residuals

    @property
    def n_units(self) -> int:
        """Number of groups, or of rows without groups: what is resampled."""
        return self.n_samples if self.groups is None else int(self.groups.max()) + 1

    def rows(self, chosen: NDArray[Any]) -> "Predictions":
        """Return some of the rows: a mask, or indices in any order."""
        weights = None if self.weights is None else self.weights[chosen]
        groups = None if self.groups is None else check_groups(self.groups[chosen], len(self.groups[chosen]))
        return Predictions(self.probs[chosen], self.labels[chosen], weights, groups)


def check_predictions(
    probs: ArrayLike,
    labels: ArrayLike,
    sample_weight: ArrayLike | None = None,
    classes: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> Predictions:
    """Check probabilities, labels, weights and groups; rows of weight 0 are left out.

    Labels are column indices, booleans of two columns, members of ``classes``, or names of the columns of a table.
    Integers are column indices where ``classes`` are text.
    """
    known = to_array(labels, "labels")
    if known.ndim == 2 and known.shape[1] > 1:
        if to_array(probs, "probs").ndim == 1:
            remedy = "The order of arguments is (probs, labels): these look swapped."
            raise InvalidInputError("labels", "must have one class per sample", got="a matrix", remedy=remedy)
        check_labels(known, len(known), "labels")  # raises for several labels per sample, whatever probs are
    checked = check_probs(probs)
    n_samples, n_classes = checked.shape
    known = check_labels(known, n_samples, "labels")
    names = column_classes(probs, known, n_classes, classes, "labels")
    if names is None or (names.dtype.kind == "U" and known.dtype.kind in "biu"):  # columns, as in fits
        columns = check_columns(known, n_samples, n_classes)
    else:
        columns = encode_labels(known, names)
    codes = None if groups is None else check_groups(groups, n_samples)
    weights = None if sample_weight is None else check_weights(sample_weight, n_samples)
    predictions = Predictions(checked, columns.astype(np.intp, copy=False), weights, codes)
    if weights is not None and not weights.all():
        predictions = predictions.rows(weights > 0)
    if predictions.weights is not None and (predictions.weights == 1).all():
        predictions = replace(predictions, weights=None)  # equal weights are exactly no weights
    return predictions


def blocks(length: int, entries: int) -> Iterator[slice]:
    """Yield slices that cover 0 to length − 1, of about BLOCK_ENTRIES entries each if every index has ``entries``."""
    size = max(1, BLOCK_ENTRIES // entries)
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def check_binned(
    probs: ArrayLike,
    labels: ArrayLike,
    sample_weight: ArrayLike | None,
    *,
    bins: int,
    adaptive: bool = True,
    threshold: Threshold = 0.0,
    classes: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> tuple[Predictions, Binning]:
    """Check predictions and the options of their bins."""
    predictions = check_predictions(probs, labels, sample_weight, classes, groups)
    lowest = resolve_threshold(threshold, predictions.n_classes)
    return predictions, Binning(check_bins(bins), check_flag(adaptive, "adaptive"), lowest)


def check_bins(bins: Any) -> int:
    """Return a number of bins."""
    return check_integer(bins, "bins", minimum=1, maximum=MAX_BINS)


def resolve_threshold(threshold: Any, n_classes: int) -> float:
    """Return max(0.01, 1/K) for "max", min(0.01, 1/K) for "min", or a number from 0 to 1."""
    if isinstance(threshold, str) and threshold in ("max", "min"):
        return max(0.01, 1 / n_classes) if threshold == "max" else min(0.01, 1 / n_classes)
    expected = 'must be "max", "min" or a number from 0 to 1'
    return check_number(threshold, "threshold", minimum=0, maximum=1, expected=expected)


def check_event(of: Any, n_classes: int) -> Event:
    """Return the event that a metric is about: "confidence" or the index of a class."""
    if isinstance(of, str) and of == "confidence":
        return "confidence"
    expected = f'must be "confidence" or the index of a class, 0 to {n_classes - 1}'
    return check_integer(of, "of", minimum=0, maximum=n_classes - 1, expected=expected)
