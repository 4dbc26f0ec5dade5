"""Which column of the logits is which class, and which class a label means; never guessed from values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators import Calibrator
from kcal.cli.data import Dataset
from kcal.cli.files import shorten
from kcal.cli.messages import errors_about
from kcal.errors import InvalidInputError
from kcal.validation import encode_labels


def is_text(values: NDArray[Any]) -> bool:
    """Return whether labels or classes are text; otherwise they are numbers."""
    return values.dtype.kind == "U"


def name_labels(data: Dataset) -> Dataset:
    """Return the data with labels that are among their ``classes``: an integer becomes the class at that place."""
    classes, labels = data.classes, data.outputs.labels
    if classes is None or labels is None or labels.dtype.kind not in "iu":
        return data
    classes = _as_numbers(classes)
    if is_text(classes):
        outside = (labels < 0) | (labels >= len(classes))
        if outside.any():
            row = int(np.argmax(outside))
            expected = f"must be indices of classes, 0 to {len(classes) - 1}"
            raise InvalidInputError(f"{data.name}: labels", expected, got=f"{labels[row]} at row {row}")
        labels = classes[labels]
    return replace(data, outputs=replace(data.outputs, labels=labels), classes=classes)


def share_classes(data: Dataset, training: Dataset) -> tuple[Dataset, Dataset]:
    """Return both with labels that mean the same: classes that one file lists hold for the other."""
    first, second = data.classes, training.classes
    if first is not None and second is not None and first.tolist() != second.tolist():
        raise InvalidInputError(f"{data.name} and {training.name}", "must list the same classes in the same order")
    shared = first if first is not None else second
    return name_labels(replace(data, classes=shared)), name_labels(replace(training, classes=shared))


def classes_to_fit(data: Dataset, inputs: str) -> NDArray[Any] | None:
    """Return the order of the classes to fit with: as the file, the user or the columns of the logits say.

    None leaves it to the method. A method on "both" is fitted in the order of the logits, if there are any.
    """
    ordered = inputs == "logits" or (inputs == "both" and data.outputs.logits is not None)
    if not ordered:
        return data.classes
    columns, labels = data.column_classes, data.outputs.labels
    listed = [] if data.classes is None else [str(label) for label in data.classes.tolist()]
    if sorted(listed) == sorted(columns) and listed != list(columns):
        expected = f"must follow the columns, which are called {shorten(columns)} in this order"
        raise InvalidInputError(f"{data.name}: --classes", expected, got=shorten(listed))
    if data.classes is not None or labels is None or not columns:
        return data.classes
    if not is_text(labels):
        return np.array([int(name) for name in columns]) if all(name.isdecimal() for name in columns) else None
    unknown = sorted(set(labels.tolist()) - set(columns))
    if unknown:
        problem = f"are text, but no column of the logits is named {shorten(unknown)}; there are {shorten(columns)}"
        remedy = "Pass --classes with the class of every column, in order."
        raise InvalidInputError(f"{data.name}: labels", problem, remedy=remedy)
    return np.array(columns)


def classes_or_indices(data: Dataset) -> NDArray[Any]:
    """Return the class of every column of the logits or probabilities: its index, if it has no name."""
    classes = classes_to_fit(data, "logits")
    return np.arange(data.outputs.logits.shape[1]) if classes is None else classes


def use_numbered_prior(calibrator: Calibrator, data: Dataset) -> None:
    """Let the classes of a prior that was typed be numbers if the labels are."""
    shares = calibrator.get_params().get("prior")
    if isinstance(shares, dict) and not is_text(data.outputs.labels):
        calibrator.set_params(prior={int(name) if name.isdecimal() else name: share for name, share in shares.items()})


def match_labels(data: Dataset, classes: NDArray[Any]) -> Dataset:
    """Return the data with labels and classes of the same kind as a model's ``classes``.

    A model of numbered classes takes numbered labels as they are; their names are ignored.
    """
    if data.classes is None:
        return data
    if is_text(classes):
        return name_labels(data)
    numbers = _as_numbers(data.classes)
    return replace(data, classes=None if is_text(numbers) else numbers)


def encode(data: Dataset, classes: NDArray[Any]) -> NDArray[np.int64]:
    """Return the index in ``classes`` of every label; raise for a label that is not among them."""
    with errors_about(data.name):
        return encode_labels(data.outputs.labels, classes, "y")


def column_order(data: Dataset, classes: NDArray[Any], *, assume_same: bool) -> NDArray[np.int64] | None:
    """Return the columns of the logits in the order of a model's classes, or None if the order is unknown.

    With ``assume_same``, columns without names are taken to be in the model's order, as those of its fit were.
    """
    n_columns, expected = data.outputs.logits.shape[1], [str(label) for label in classes.tolist()]
    names = list(data.column_classes)
    if data.classes is not None:
        names = [str(label) for label in data.classes.tolist()]
        if sorted(names) != sorted(expected):
            raise InvalidInputError(
                f"{data.name}: classes", f"must be those of the model, {shorten(expected)}", got=shorten(names)
            )
    if n_columns != len(expected):
        return None
    if sorted(names) == sorted(expected):
        return np.array([names.index(label) for label in expected])
    is_counted = classes.dtype.kind in "iu" and classes.tolist() == list(range(len(expected)))
    return np.arange(n_columns) if assume_same or is_counted else None


def _as_numbers(classes: NDArray[Any]) -> NDArray[Any]:
    """Return classes that were typed or stored as text as integers, if all of them are."""
    if is_text(classes) and all(name.isdecimal() for name in classes.tolist()):
        return classes.astype(np.int64)
    return classes
