"""What ``kcal evaluate`` judges: probabilities by method, with the labels, groups and weights of their rows."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray

from kcal.calibrators import Calibrator, Uncalibrated
from kcal.cli.arrays_in import check_readable
from kcal.cli.arrays_out import PROBABILITY_COLUMN
from kcal.cli.class_order import classes_to_fit, name_labels, order_for
from kcal.cli.model_inputs import predicted, read_for, refuse_overlap, takes_both
from kcal.cli.samples import Samples, Source, read_samples
from kcal.cli.tables_in import TableFile, listed
from kcal.cli.vectors import is_text
from kcal.errors import InvalidInputError, KcalWarning
from kcal.validation import encode_labels

VECTORS = ("labels", "groups", "weights", "ids")


@dataclass(frozen=True, eq=False)
class Judged:
    """Probabilities (n_samples, n_classes) by method, the one that matters last; labels are places in classes."""

    probabilities: dict[str, NDArray[Any]] = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    classes: NDArray[Any]
    groups: NDArray[Any] | None = field(default=None, repr=False)
    weights: NDArray[Any] | None = field(default=None, repr=False)


def judge_model(calibrator: Calibrator, source: Source, *, before: Source | None, allow_overlap: bool) -> Judged:
    """Return a model's probabilities, after those of ``before`` or of the network's logits where there are any."""
    if calibrator.inputs == "logits" and "logits" in source.files:
        raise typer.BadParameter("--logits is of no use here: this model takes logits itself, and DATA holds them.")
    samples = read_for(calibrator, source, vectors=VECTORS, labelled=True, with_logits=before is None)
    if not allow_overlap:
        refuse_overlap(calibrator, samples)
    labels = _codes(samples, calibrator.classes_)
    probabilities: dict[str, NDArray[Any]] = {}
    if before is not None:
        probabilities["before"] = _read_before(before, samples, calibrator.classes_)
    else:
        network = _uncalibrated(samples, calibrator)
        if network is not None:
            probabilities["uncal"] = network
    if calibrator.method not in probabilities:
        probabilities[calibrator.method] = predicted(calibrator, samples)
    return Judged(probabilities, labels, calibrator.classes_, samples.groups, samples.weights)


def judge_probabilities(source: Source, *, before: Source | None) -> Judged:
    """Return probabilities that are already there, after those of ``before``."""
    samples = name_labels(read_samples(source, inputs="probabilities", vectors=VECTORS, labelled=True))
    classes = classes_to_fit(samples, "logits")
    if classes is None:
        classes = np.arange(samples.matrix.shape[1])
    if len(classes) != samples.matrix.shape[1]:
        raise InvalidInputError(
            f"{samples.name} has {samples.matrix.shape[1]:,} columns of probabilities for {len(classes):,} classes."
        )
    labels = _codes(samples, classes)
    probabilities = {} if before is None else {"before": _read_before(before, samples, classes)}
    return Judged(probabilities | {"probabilities": samples.matrix}, labels, classes, samples.groups, samples.weights)


def probability_columns(path: Path) -> str | None:
    """Return the pattern of the columns that kcal predict writes, if the file has any."""
    if check_readable(path) not in (".csv", ".parquet"):
        return None
    named = any(name.startswith(PROBABILITY_COLUMN) for name in TableFile(path).columns)
    return f"{PROBABILITY_COLUMN}*" if named else None


def _read_before(source: Source, after: Samples, classes: NDArray[Any]) -> NDArray[Any]:
    """Return the probabilities of another file for the same rows, their columns in the order of ``classes``."""
    samples = read_samples(source, inputs="probabilities", vectors=("ids", "labels"))
    if len(samples) != len(after):
        raise InvalidInputError(
            f"{samples.name} must hold the same rows as {after.name}; it has {len(samples):,}, not {len(after):,}."
        )
    if samples.ids is not None and after.ids is not None:
        differ = samples.ids.astype(str) != after.ids.astype(str)
        if differ.any():
            row = int(np.argmax(differ))
            raise InvalidInputError(
                f"{samples.name} must hold the rows of {after.name} in the same order; row {row} is "
                f"{samples.ids[row].item()!r}, not {after.ids[row].item()!r}."
            )
    _refuse_other_rows(samples, after)
    _refuse_other_classes(samples, classes)
    order = order_for(samples, classes, samples.matrix.shape[1], known=True)
    if order is None:
        raise InvalidInputError(
            f"{samples.name} has {samples.matrix.shape[1]:,} columns of probabilities for {len(classes):,} classes."
        )
    probabilities: NDArray[Any] = samples.matrix[:, order]
    return probabilities


def _refuse_other_rows(samples: Samples, after: Samples) -> None:
    """Refuse rows whose labels are not those of the rows that they are put beside."""
    if samples.labels is None or after.labels is None:
        return
    mine, theirs = (part.true_labels.astype(str) for part in (name_labels(samples), after))
    differ = mine != theirs
    if differ.any() and set(mine.tolist()) <= set(theirs.tolist()):  # called alike, so that they can be compared
        row = int(np.argmax(differ))
        raise InvalidInputError(
            f"{samples.name} must hold the rows of {after.name} in the same order; row {row} is labelled "
            f"{mine[row].item()!r}, not {theirs[row].item()!r}."
        )


def _refuse_other_classes(samples: Samples, classes: NDArray[Any]) -> None:
    """Refuse columns that are named after other classes, where all are named."""
    names, wanted = samples.logit_columns, [str(label) for label in classes.tolist()]
    if samples.classes is None and names and set(names) != set(wanted) and set(names) & set(wanted):
        raise InvalidInputError(
            f"{samples.name} has columns for {listed(list(names))}, but the classes are {listed(wanted)}. Rename its "
            "columns, or list its classes in their order with --classes."
        )


def _codes(samples: Samples, classes: NDArray[Any]) -> NDArray[np.int64]:
    labels = samples.true_labels
    if is_text(labels) != is_text(classes):
        raise InvalidInputError(
            f"{samples.name}: labels are {'text' if is_text(labels) else 'numbers'}, such as "
            f"{labels[0].item()!r}, but the classes are not, such as {classes[0].item()!r}. Write the labels as the "
            "classes are called, or list the classes in order with --classes."
        )
    return encode_labels(labels, classes, f"{samples.name}: labels")


def _uncalibrated(samples: Samples, calibrator: Calibrator) -> NDArray[Any] | None:
    """Return the network's own probabilities in the order of the model's classes, or None."""
    representation = getattr(calibrator, "representation", "logits")
    if calibrator.inputs == "logits":
        return _softmax(samples.matrix, representation, calibrator.classes_)
    if samples.logits is None:
        return None
    if takes_both(calibrator):
        return _softmax(samples.logits, representation, calibrator.classes_)
    order = order_for(samples, calibrator.classes_, samples.logits.shape[1], known=False)
    if order is None:
        columns, n_classes = samples.logits.shape[1], len(calibrator.classes_)
        why, remedy = f"logits have {columns:,} columns for {n_classes:,} classes", ""
        if columns == n_classes:
            why = "nothing tells which column of the logits is which class"
            remedy = " List the classes in their order with --classes."
        warnings.warn(
            f"{samples.name}: {why}, so the network's own probabilities are left out.{remedy}",
            KcalWarning,
            stacklevel=2,
        )
        return None
    return _softmax(samples.logits[:, order], "logits", calibrator.classes_)


def _softmax(logits: NDArray[Any], representation: str, classes: NDArray[Any]) -> NDArray[Any]:
    any_label = np.repeat(classes[:1], len(logits))
    network = Uncalibrated(representation=representation).fit(logits, any_label, classes=classes)
    probabilities: NDArray[Any] = network.predict_proba(logits)
    return probabilities
