"""Which column of the logits is which class, and which class a label means; never guessed from values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.cli.data import Dataset
from kcal.cli.files import shorten
from kcal.errors import InvalidInputError


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
            raise InvalidInputError(
                f"{data.name}: labels",
                f"must be indices of classes, 0 to {len(classes) - 1}",
                got=f"{labels[row]} at row {row}",
            )
        labels = classes[labels]
    return replace(data, outputs=replace(data.outputs, labels=labels), classes=classes)


def share_classes(data: Dataset, training: Dataset) -> tuple[Dataset, Dataset]:
    """Return both with labels that mean the same: classes that one file lists hold for the other."""
    first, second = data.classes, training.classes
    if first is not None and second is not None and first.tolist() != second.tolist():
        raise InvalidInputError(
            f"{data.name} and {training.name}", "must list the same classes in the same order", remedy="Pass --classes."
        )
    shared = first if first is not None else second
    data, training = (name_labels(replace(part, classes=shared)) for part in (data, training))
    if is_text(data.outputs.labels) != is_text(training.outputs.labels):
        raise InvalidInputError(
            f"labels of {data.name} and {training.name}",
            "must be of the same kind; they are text in one file and numbers in the other",
            remedy="Write them alike.",
        )
    return data, training


def classes_to_fit(data: Dataset, inputs: str) -> NDArray[Any] | None:
    """Return the order of the classes to fit with: as the file, the user or the columns of the logits say.

    None leaves it to the method. A method on "both" is fitted in the order of the logits, if there are any.
    """
    ordered = inputs == "logits" or (inputs == "both" and data.outputs.logits is not None)
    if not ordered:
        return data.classes
    columns = data.column_classes
    if data.classes is not None and columns:
        listed = [str(label) for label in data.classes.tolist()]
        if sorted(listed) == sorted(columns) and listed != list(columns):
            raise InvalidInputError(
                f"{data.name}: --classes",
                f"must follow the columns, which are called {shorten(columns)} in this order",
                got=shorten(listed),
                remedy="Leave --classes out.",
            )
    labels = data.outputs.labels
    if data.classes is not None or labels is None or not columns:
        return data.classes
    if not is_text(labels):
        return np.array([int(name) for name in columns]) if all(name.isdecimal() for name in columns) else None
    unknown = sorted(set(labels.tolist()) - set(columns))
    if unknown:
        raise InvalidInputError(
            f"{data.name}: labels",
            f"are text, so the columns of the logits must be named after the classes; there is no column for "
            f"{shorten(unknown)} among {shorten(columns)}",
            remedy="Pass --classes with the class of every column, in order.",
        )
    return np.array(columns)


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
    """Return the index in ``classes`` of every label; raise for labels of another kind or of an unknown class."""
    labels, name = data.outputs.labels, f"{data.name}: labels"
    if is_text(labels) != is_text(classes):
        raise InvalidInputError(
            name,
            f"are {'text' if is_text(labels) else 'numbers'}, such as {labels[0].item()!r}, but the classes are not, "
            f"such as {classes[0].item()!r}",
            remedy="Write the labels as the classes are called, or list the classes in order with --classes.",
        )
    index = {label: place for place, label in enumerate(classes.tolist())}
    codes = np.array([index.get(label, -1) for label in labels.tolist()], dtype=np.int64)
    if (codes < 0).any():
        row = int(np.argmin(codes))
        raise InvalidInputError(
            name,
            f"must be in classes ({len(classes):,} of them)",
            got=f"{labels[row].item()!r} at row {row}",
            remedy="If the class exists, list it in --classes of kcal fit.",
        )
    return codes


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
