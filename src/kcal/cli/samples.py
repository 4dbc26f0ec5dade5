"""Load what a method is fitted on, what a fitted model needs to predict, and the parts of a benchmark task.

Which column of the logits is which class, and which class a label means, is never guessed from values.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators import Calibrator, Explanation, fit_on, predict_on
from kcal.cli.data import COLUMNS, Dataset, Request, Source, check_positions_among, load
from kcal.cli.files import ArrayFile, open_file, shorten
from kcal.cli.messages import OverlapError, check_options, errors_about, remedies_for
from kcal.errors import InvalidInputError
from kcal.validation import encode_labels, refuse_where


def load_to_fit(
    calibrator: Calibrator, source: Source, train: Path | None, train_labels: Path | None
) -> tuple[Dataset, Dataset | None]:
    """Load the calibration set and, if the method learns from one and there is one, the training set."""
    takes = f"method {calibrator.method} takes {calibrator.inputs}, from DATA"
    learns = f"method {calibrator.method} learns no projection with these options"
    check_options(
        (train_labels and not train, "--train-labels needs --train, the file that the labels belong to."),
        (train and not calibrator.uses_training_set, f"--train has no effect here: {learns}."),
        ("logits" in source.files and calibrator.inputs != "both", f"--logits has no effect here: {takes}."),
    )
    matrix = "logits" if calibrator.inputs == "logits" else "embeddings"
    keys = [key for key in COLUMNS if key in ("labels", "weights") or key in calibrator.fit_options]
    data = load(source, Request(matrix, logits=calibrator.inputs == "both", keys=keys, labelled=True))
    origin = _training_source(source, train, train_labels, matrix) if calibrator.uses_training_set else None
    if origin is None:
        return name_labels(data), None
    names = data.feature_columns
    if names:  # in a table, the columns of the calibration set
        origin = replace(origin, columns={key: name for key, name in origin.columns.items() if key in COLUMNS})
    training = load(origin, Request(matrix, keys=("labels", "groups"), labelled=True, feature_names=names))
    return share_classes(data, training)


def fit_dataset(
    calibrator: Calibrator, data: Dataset, training: Dataset | None, parameters: Collection[str] = ()
) -> Calibrator:
    """Fit a calibrator, on tables where the columns have names; errors name ``parameters`` by option."""
    shares = calibrator.get_params().get("prior")
    if isinstance(shares, dict) and not is_text(data.labels):  # as typed, the classes are text
        calibrator.set_params(prior={int(name) if name.isdecimal() else name: share for name, share in shares.items()})
    classes = classes_to_fit(data, calibrator.inputs)
    accepted = {*calibrator.get_params(), *calibrator.fit_options}
    with errors_about(data.name, parameters), remedies_for(accepted):
        return fit_on(calibrator, data.with_names(calibrator.inputs), training, classes=classes)


def load_to_predict(calibrator: Calibrator, source: Source, **request: Any) -> Dataset:
    """Load data for a fitted model: its columns by name, the logits in the order of its classes."""
    matrix = "logits" if calibrator.inputs == "logits" else "embeddings"
    needs_both = calibrator.inputs == "both" and calibrator.needs_logits_
    feature_names, logit_names = (
        [str(name) for name in vars(calibrator).get(attribute, ())]  # none if the model was fitted on arrays
        for attribute in ("feature_names_in_", "logit_names_in_")
    )
    request["logits"] = request.get("logits", False) or needs_both
    data = load(source, Request(matrix, feature_names=feature_names, logit_names=logit_names, **request))
    known = [str(label) for label in calibrator.classes_.tolist()]
    if source.classes is not None and sorted(source.classes) != sorted(known):
        expected = f"must be those of the model, {shorten(known)}"
        raise InvalidInputError("--classes", expected, got=shorten(source.classes))
    if source.labels_are_positions:
        check_positions_among(known)
    data = match_labels(data, calibrator.classes_)
    n_columns = data.matrix(calibrator.inputs).shape[1]
    if n_columns != calibrator.n_features_in_:
        problem = f"have {n_columns:,} columns, but the model was fitted on {calibrator.n_features_in_:,}"
        remedy = "In a table, choose them with --feature-columns."
        raise InvalidInputError(f"{data.name}: {matrix}", problem, remedy=remedy)
    if needs_both and data.logits is None:
        problem = f"has no logits, but method {calibrator.method} was fitted with logits and needs them for every row"
        remedy = "Store them in the npz file, name their columns with --logit-columns, or pass --logits FILE."
        raise InvalidInputError(data.name, problem, remedy=remedy)
    order = column_order(data, calibrator.classes_, assume_same=True) if calibrator.needs_logits_ else None
    if order is None:  # none to put in order, or too many or too few columns, which the prediction reports
        return data
    names = "feature_columns" if calibrator.inputs == "logits" else "logit_columns"
    ordered: dict[str, Any] = (
        {names: tuple(np.array(getattr(data, names))[order].tolist())} if getattr(data, names) else {}
    )
    return replace(data, logits=data.logits[:, order], classes=None, column_classes=(), **ordered)


def check_overlap(calibrator: Calibrator, data: Dataset) -> None:
    """Raise if data contain rows that the calibrator was fitted on."""
    with errors_about(data.name):
        known = int(calibrator.was_fitted_on(data.matrix(calibrator.inputs)).sum())
    if known:
        raise OverlapError(
            f"{known:,} of the {len(data):,} rows of {data.name} are in the calibration set of this model: it would "
            "look better than it is. Evaluate on other data, or pass --allow-overlap."
        )


def predict_dataset(calibrator: Calibrator, data: Dataset) -> Any:
    """Return the probabilities of a fitted model."""
    with errors_about(data.name):
        return predict_on(calibrator, data)


def explain_dataset(calibrator: Calibrator, data: Dataset, rows: NDArray[np.int64], k: int) -> Explanation:
    """Return the explanation of some rows by a fitted model."""
    logits = {"logits": data.logits[rows]} if calibrator.inputs == "both" and calibrator.needs_logits_ else {}
    with errors_about(data.name):
        explanation: Explanation = calibrator.explain(data.matrix(calibrator.inputs)[rows], k, **logits)
    return explanation


def load_task_parts(*sources: Source) -> tuple[list[Dataset], list[str]]:
    """Return the parts of a benchmark task with labels that are indices of columns, and the class of every column."""
    parts = [name_labels(load_task_part(source, keys=("labels", "groups"), labelled=True)) for source in sources]
    first, second = (classes_or_indices(data) for data in parts)
    if first.tolist() != second.tolist():
        names = f"{parts[0].name} and {parts[1].name}"
        raise InvalidInputError(names, "must list the same classes in the same order", remedy="Pass --classes.")
    return [replace(part, labels=encode(part, first)) for part in parts], [str(name) for name in first.tolist()]


def load_task_part(source: Source, **request: Any) -> Dataset:
    """Load embeddings and logits; raise if there are no logits."""
    data = load(source, Request("embeddings", logits=True, **request))
    if data.logits is None:
        remedy = "In a table, name their columns with --logit-columns."
        raise InvalidInputError(data.name, "has no logits; a task needs them", remedy=remedy)
    return data


def _training_source(source: Source, train: Path | None, labels: Path | None, matrix: str) -> Source | None:
    """Return where the training set is; its columns have the names of the calibration set's."""
    keys = [key for key in source.columns if key not in ("weights", "ids") and not (key == "labels" and labels)]
    columns = {key: source.columns[key] for key in keys}
    if train is not None:
        files = {} if labels is None else {"labels": labels}
        return replace(source, path=train, columns=columns, files=files, prefixes=("", "train_"))
    file = open_file(source.path)
    has_training = isinstance(file, ArrayFile) and f"train_{source.matrix_array(matrix)[1]}" in file.names
    return replace(source, columns=columns, files={}, prefixes=("train_",)) if has_training else None


def is_text(values: NDArray[Any]) -> bool:
    """Return whether labels or classes are text; otherwise they are numbers."""
    return values.dtype.kind == "U"


def name_labels(data: Dataset) -> Dataset:
    """Return the data with labels that are among their ``classes``: an integer becomes the class at that position.

    Raise if the classes have names and nothing says that the integers are positions among them.
    """
    classes, labels = data.classes, data.labels
    if classes is None and data.column_classes:
        named = np.array(data.column_classes)
        classes = None if not is_text(_as_numbers(named)) else named
    if classes is None or labels is None or labels.dtype.kind not in "iu":
        return data
    classes = _as_numbers(classes)
    if is_text(classes):
        if not data.labels_are_positions:
            problem = f"are integers, but the classes have names: {shorten(classes.tolist())}"
            remedy = "Give the labels by name, or pass --labels-are-positions if 0 is the first of these classes."
            raise InvalidInputError(f"{data.name}: labels", problem, remedy=remedy)
        expected = f"must be indices of classes, 0 to {len(classes) - 1}"
        refuse_where((labels < 0) | (labels >= len(classes)), labels, f"{data.name}: labels", expected)
        labels = classes[labels]
    return replace(data, labels=labels, classes=classes)


def share_classes(data: Dataset, training: Dataset) -> tuple[Dataset, Dataset]:
    """Return both with labels that mean the same: classes that one file lists hold for the other."""
    first, second = data.classes, training.classes
    if first is not None and second is not None and first.tolist() != second.tolist():
        raise InvalidInputError(f"{data.name} and {training.name}", "must list the same classes in the same order")
    shared = first if first is not None else second
    positions = data.labels_are_positions or training.labels_are_positions
    data, training = (replace(part, labels_are_positions=positions) for part in (data, training))
    return name_labels(replace(data, classes=shared)), name_labels(replace(training, classes=shared))


def classes_to_fit(data: Dataset, inputs: str) -> NDArray[Any] | None:
    """Return the order of the classes to fit with: as the file, the user or the columns of the logits say.

    None leaves it to the method. A method on "both" is fitted in the order of the logits, if there are any.
    """
    ordered = inputs == "logits" or (inputs == "both" and data.logits is not None)
    if not ordered:
        return data.classes
    columns, labels = data.column_classes, data.labels
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
    return np.arange(data.logits.shape[1]) if classes is None else classes


def match_labels(data: Dataset, classes: NDArray[Any]) -> Dataset:
    """Return the data with labels and classes of a model's kind; if its classes are numbers, names are ignored."""
    if is_text(classes):
        if data.classes is None and not data.column_classes and data.labels_are_positions:
            return replace(name_labels(replace(data, classes=classes)), classes=None)
        return name_labels(data)
    if data.classes is None:
        return data
    numbers = _as_numbers(data.classes)
    return replace(data, classes=None if is_text(numbers) else numbers)


def encode(data: Dataset, classes: NDArray[Any]) -> NDArray[np.int64]:
    """Return the index in ``classes`` of every label; raise for a label that is not among them."""
    with errors_about(data.name):
        return encode_labels(data.labels, classes, "y")


def column_order(data: Dataset, classes: NDArray[Any], *, assume_same: bool) -> NDArray[np.int64] | None:
    """Return the columns of the logits in the order of a model's classes, or None if the order is unknown.

    With ``assume_same``, columns without names are taken to be in the model's order, as those of its fit were.
    """
    n_columns, expected = data.logits.shape[1], [str(label) for label in classes.tolist()]
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
    has_names = bool(names) and is_text(_as_numbers(np.array(names))) and not data.labels_are_positions
    is_counted = not has_names and classes.dtype.kind in "iu" and classes.tolist() == list(range(len(expected)))
    return np.arange(n_columns) if assume_same or is_counted else None


def _as_numbers(classes: NDArray[Any]) -> NDArray[Any]:
    """Return classes that were typed or stored as text as integers, if all of them are."""
    if is_text(classes) and all(name.isdecimal() for name in classes.tolist()):
        return classes.astype(np.int64)
    return classes
