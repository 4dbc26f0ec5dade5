"""Load what a method is fitted on, what a fitted model needs to predict, and the parts of a benchmark task."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators import Calibrator, ClassifierOutputs, fit_on, predict_on
from kcal.cli.class_order import classes_or_indices, column_order, encode, match_labels, name_labels, share_classes
from kcal.cli.data import Dataset, Request, Source, load
from kcal.cli.files import ArrayFile, open_file
from kcal.cli.messages import OverlapError, check_options, errors_about
from kcal.errors import InvalidInputError


def load_to_fit(
    calibrator: Calibrator, source: Source, train: Path | None, train_labels: Path | None
) -> tuple[Dataset, Dataset | None]:
    """Load the calibration set and, if the method learns from one and there is one, the training set."""
    takes = f"method {calibrator.method} takes {calibrator.inputs}, from DATA"
    check_options(
        (train_labels and not train, "--train-labels needs --train, the file that the labels belong to."),
        (train and not calibrator.uses_training_set, "--train has no effect here: this method learns no projection."),
        ("logits" in source.files and calibrator.inputs != "both", f"--logits has no effect here: {takes}."),
    )
    matrix = "logits" if calibrator.inputs == "logits" else "embeddings"
    data = load(source, Request(matrix, logits=calibrator.inputs == "both", labelled=True))
    origin = _training_source(source, train, train_labels, matrix) if calibrator.uses_training_set else None
    if origin is None:
        return name_labels(data), None
    training = load(origin, Request(matrix, labelled=True, feature_names=data.feature_columns))
    return share_classes(data, training)


def fit_dataset(
    calibrator: Calibrator,
    data: Dataset,
    training: Dataset | None,
    classes: NDArray[Any] | None,
    parameters: Collection[str] = (),
) -> Calibrator:
    """Fit a calibrator, and store the names of the table's columns with it; errors name ``parameters`` by option."""
    with errors_about(data.name, parameters):
        fit_on(calibrator, data.outputs, None if training is None else training.outputs, classes=classes)
    if data.feature_columns:
        calibrator.feature_names_in_ = np.array(data.feature_columns, dtype=object)
    if calibrator.inputs == "both" and calibrator.needs_logits_ and data.logit_columns:
        calibrator.logit_names_in_ = np.array(data.logit_columns, dtype=object)
    return calibrator


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
    data = match_labels(data, calibrator.classes_)
    n_columns = data.outputs.matrix(calibrator.inputs).shape[1]
    if n_columns != calibrator.n_features_in_:
        problem = f"have {n_columns:,} columns, but the model was fitted on {calibrator.n_features_in_:,}"
        remedy = "In a table, choose them with --feature-columns."
        raise InvalidInputError(f"{data.name}: {matrix}", problem, remedy=remedy)
    if needs_both and data.outputs.logits is None:
        problem = f"has no logits, but method {calibrator.method} was fitted with logits and needs them for every row"
        remedy = "Store them in the npz file, name their columns with --logit-columns, or pass --logits FILE."
        raise InvalidInputError(data.name, problem, remedy=remedy)
    order = column_order(data, calibrator.classes_, assume_same=True) if calibrator.needs_logits_ else None
    if order is None:  # none to put in order, or too many or too few columns, which the prediction reports
        return data
    outputs = replace(data.outputs, logits=data.outputs.logits[:, order])
    return replace(data, outputs=outputs, classes=None, column_classes=())


def check_overlap(calibrator: Calibrator, data: Dataset) -> None:
    """Raise if data contain rows that the calibrator was fitted on."""
    with errors_about(data.name):
        known = int(calibrator.was_fitted_on(data.outputs.matrix(calibrator.inputs)).sum())
    if known:
        raise OverlapError(
            f"{known:,} of the {len(data):,} rows of {data.name} are in the calibration set of this model: it would "
            "look better than it is. Evaluate on other data, or pass --allow-overlap."
        )


def predict_dataset(calibrator: Calibrator, data: Dataset) -> NDArray[Any]:
    """Return the probabilities of a fitted model."""
    with errors_about(data.name):
        probs: NDArray[Any] = predict_on(calibrator, data.outputs)
    return probs


def load_task_parts(*sources: Source) -> tuple[list[ClassifierOutputs], list[str]]:
    """Return the parts of a benchmark task with labels that are indices of columns, and the class of every column."""
    request = Request("embeddings", logits=True, keys=("labels", "groups"), labelled=True)
    parts = [name_labels(_require_logits(load(source, request))) for source in sources]
    first, second = (classes_or_indices(data) for data in parts)
    if first.tolist() != second.tolist():
        names = f"{parts[0].name} and {parts[1].name}"
        raise InvalidInputError(names, "must list the same classes in the same order", remedy="Pass --classes.")
    outputs = [replace(part.outputs, labels=encode(part, first)) for part in parts]
    return outputs, [str(name) for name in first.tolist()]


def load_out_of_scope(source: Source) -> ClassifierOutputs:
    """Return outputs for inputs that belong to no class."""
    return _require_logits(load(source, Request("embeddings", logits=True, keys=()))).outputs


def _require_logits(data: Dataset) -> Dataset:
    if data.outputs.logits is None:
        remedy = "In a table, name their columns with --logit-columns."
        raise InvalidInputError(data.name, "has no logits; a task needs them", remedy=remedy)
    return data


def _training_source(source: Source, train: Path | None, labels: Path | None, matrix: str) -> Source | None:
    """Return where the training set is; its columns have the names of the calibration set's."""
    if train is not None:
        columns = {key: source.columns[key] for key in ("labels", "groups") if key in source.columns}
        if labels is not None:
            columns.pop("labels", None)
        files = {} if labels is None else {"labels": labels}
        return Source(train, columns=columns, files=files, prefixes=("", "train_"), classes=source.classes)
    file = open_file(source.path)
    has_training = isinstance(file, ArrayFile) and f"train_{matrix}" in file.names
    return Source(source.path, prefixes=("train_",), classes=source.classes) if has_training else None
