"""Which column of the logits is which class, and which class a label means; never guessed from values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.cli.samples import Samples
from kcal.cli.tables_in import listed
from kcal.errors import InvalidInputError
from kcal.validation import collect_classes


def name_labels(samples: Samples) -> Samples:
    """Return samples whose labels are among their ``classes``: whole numbers become the names at those places."""
    classes, labels = samples.classes, samples.labels
    if classes is None or labels is None:
        return samples
    if labels.dtype.kind not in "iu":
        return samples
    classes = _numbers(classes)
    if classes.dtype.kind == "U":
        outside = (labels < 0) | (labels >= len(classes))
        if outside.any():
            row = int(np.argmax(outside))
            raise InvalidInputError(
                f"{samples.name}: labels must be places in classes, 0 to {len(classes) - 1}; got {labels[row]} at "
                f"row {row}."
            )
        labels = classes[labels]
    return replace(samples, labels=labels, classes=classes)


def classes_to_fit(samples: Samples, inputs: str) -> NDArray[Any] | None:
    """Return the order of classes to fit with: as the file or the user says, or as the logits' columns are called.

    A method on "both" is fitted in the order of the logits, where there are any.
    """
    ordered = inputs == "logits" or (inputs == "both" and samples.logits is not None)
    if samples.classes is not None and samples.logit_columns and ordered:
        typed = [str(label) for label in samples.classes.tolist()]
        if sorted(typed) == sorted(samples.logit_columns) and typed != list(samples.logit_columns):
            raise InvalidInputError(
                f"{samples.name}: --classes says {listed(typed)}, but the columns are called "
                f"{listed(list(samples.logit_columns))}, in this order. Leave --classes out."
            )
    if inputs == "both" and samples.logits is not None:
        _check_columns(samples, samples.logits)
    if samples.classes is not None or samples.labels is None or not ordered or samples.logit_columns is None:
        return samples.classes
    names, labels = samples.logit_columns, samples.labels
    if labels.dtype.kind != "U":
        return np.array([int(name) for name in names]) if all(name.isdecimal() for name in names) else None
    unknown = sorted(set(labels.tolist()) - set(names))
    if unknown:
        raise InvalidInputError(
            f"{samples.name}: labels are text, so the logits' columns must be called by class; there is no column for "
            f"{listed(unknown)} among {listed(names)}. Pass --classes with the class of every column, in order."
        )
    return np.array(names)


def known_classes(samples: Samples, train: Samples | None, order: NDArray[Any] | None, inputs: str) -> NDArray[Any]:
    """Return all classes that a method will know once it is fitted in such an order."""
    if order is None and inputs == "both" and samples.logits is not None:
        order = np.arange(samples.logits.shape[1])
    return collect_classes([part.true_labels for part in (samples, train) if part is not None], order)


def _check_columns(samples: Samples, logits: NDArray[Any]) -> None:
    """Refuse logits of other columns than there are classes, or labels."""
    columns, classes, labels = logits.shape[1], samples.classes, samples.true_labels
    if classes is not None and len(classes) != columns:
        raise InvalidInputError(
            f"{samples.name}: logits must have a column for each of the {len(classes):,} classes "
            f"({listed([str(label) for label in classes.tolist()])}); got {columns:,}."
        )
    if classes is None and labels.dtype.kind in "iu" and labels.max() >= columns and samples.logit_columns is None:
        row = int(np.argmax(labels >= columns))
        raise InvalidInputError(
            f"{samples.name}: labels must be columns of the logits, 0 to {columns - 1}; got {labels[row]} at row {row}."
            " Add the missing columns, or list the class of every column, in order, with --classes."
        )


def labels_for(samples: Samples, classes: NDArray[Any]) -> Samples:
    """Return samples whose labels and classes are in the kind of a model's ``classes``.

    A model of numbered classes takes numbered labels as they are; names of theirs are then of no use.
    """
    if samples.classes is None:
        return samples
    if classes.dtype.kind == "U":
        return name_labels(samples)
    numbers = _numbers(samples.classes)
    return replace(samples, classes=None if numbers.dtype.kind == "U" else numbers)


def order_for(samples: Samples, classes: NDArray[Any], n_columns: int, *, known: bool) -> NDArray[np.int64] | None:
    """Return the columns of the logits in the order of a model's classes, or None where nothing tells it.

    ``known`` says that columns without names come in the model's order, as those that it was fitted on did.
    """
    wanted = [str(label) for label in classes.tolist()]
    names: Sequence[str] = samples.logit_columns or ()
    if samples.classes is not None:
        names = [str(label) for label in samples.classes.tolist()]
        if sorted(names) != sorted(wanted):
            raise InvalidInputError(
                f"{samples.name}: its classes are {listed(names)}, but the model's are {listed(wanted)}."
            )
    if n_columns != len(wanted):
        return None
    if sorted(names) == sorted(wanted):
        return np.array([list(names).index(label) for label in wanted])
    counted = classes.dtype.kind in "iu" and classes.tolist() == list(range(len(wanted)))
    return np.arange(n_columns) if known or counted else None


def _numbers(classes: NDArray[Any]) -> NDArray[Any]:
    """Return classes that were typed or stored as text as whole numbers, where all of them are."""
    if classes.dtype.kind == "U" and all(name.isdecimal() for name in classes.tolist()):
        return classes.astype(np.int64)
    return classes
