"""The one place that passes each calibrator the parts of a classifier's outputs that it takes, in the order of its fit.

Columns of tables have names and columns of logits have classes: a fit keeps them, and everything after it follows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch

from kcal.calibrators.base import Calibrator
from kcal.calibrators.online import online_state
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError
from kcal.projection import TrainedProjection, train_projection
from kcal.validation import is_tensor, shorten

Outputs = TypeVar("Outputs", bound=ClassifierOutputs)


def fit_on(
    calibrator: Calibrator,
    calibration: ClassifierOutputs,
    train: ClassifierOutputs | None = None,
    *,
    classes: Any = None,
) -> Calibrator:
    """Fit a calibrator on the parts of the calibration set, and of the training set, that it takes.

    Groups, identifiers and a training set that a method has no use for are left out, so that one record serves every
    method. Weights change what is estimated: every method takes them. ``classes`` are by default those of the
    calibration set.
    """
    options = {
        "groups": calibration.groups,
        "ids": calibration.ids,
        "classes": calibration.classes if classes is None else classes,
        "logits": with_column_names(calibration, "logits") if calibrator.tags.takes_logits else None,
    }
    part = "logits" if calibrator.inputs == "logits" else "embeddings"
    if train is not None and calibrator.tags.uses_training_set:
        of_columns = calibration.classes if part == "logits" else None
        train = reorder(train, part, names=calibration.names(part), classes=of_columns)
        options["train_embeddings"] = train.matrix(part)
        options["train_labels"], options["train_groups"] = train.labels, train.groups
    taken = {
        name: value for name, value in options.items() if name in calibrator.tags.fit_options and value is not None
    }
    taken |= {} if calibration.weights is None else {"sample_weight": calibration.weights}
    calibration.matrix(part)  # raises if it is missing
    fitted: Calibrator = calibrator.fit(with_column_names(calibration, part), calibration.labels, **taken)
    return fitted


def train_projection_on(
    calibrator: Calibrator | Any, train: ClassifierOutputs, monitored: ClassifierOutputs | None = None
) -> TrainedProjection | None:
    """Train the projection of an unfitted calibrator on a training set; None for a method that learns none.

    ``monitored`` is a calibration set, for a recipe that looks at one.
    """
    recipe = calibrator.tags.recipe
    if recipe is None or not calibrator.tags.uses_training_set:
        return None
    rows, *others = (
        calibrator._as_embeddings(torch.from_numpy(outputs.matrix(calibrator.inputs)))
        for outputs in (train, monitored)
        if outputs is not None
    )
    return train_projection(
        rows,
        train.labels,
        projection=calibrator.projection,
        dimension=calibrator.dimension,
        recipe=recipe,
        groups=train.groups,
        monitored=None if monitored is None else (others[0], monitored.labels),
        seed=calibrator.seed,
        progress=False,
    )


def update_on(calibrator: Calibrator | Any, samples: ClassifierOutputs, *, classes: Any = None) -> Calibrator:
    """Add labelled samples to a fitted calibrator that learns online, or fit it, with ``classes``, if it is not fitted.

    It gets the parts that it takes: logits if it was fitted with them, groups if its samples have them.
    """
    if not calibrator.tags.learns_online:
        raise InvalidInputError("calibrator", "must be one that learns online: KCal or KCalBlend")
    if not calibrator.__sklearn_is_fitted__():
        return fit_on(calibrator, samples, classes=classes)
    samples = in_order_of_fit(calibrator, samples)
    options = {
        "sample_weight": samples.weights,
        "ids": samples.ids,
        "groups": samples.groups if online_state(calibrator).has_groups else None,
        "logits": samples.logits if calibrator.inputs == "both" and calibrator.tags.needs_logits else None,
    }
    taken = {name: value for name, value in options.items() if value is not None}
    updated: Calibrator = calibrator.partial_fit(_rows(calibrator, samples), samples.labels, **taken)
    return updated


def predict_on(calibrator: Calibrator, outputs: ClassifierOutputs) -> Any:
    """Return a fitted calibrator's probabilities, (n, n_classes), for a classifier's outputs.

    Columns whose names or classes are known are put in the order of the fit; others than those of the fit raise.
    """
    outputs = in_order_of_fit(calibrator, outputs)
    logits = {"logits": outputs.logits} if calibrator.inputs == "both" and calibrator.tags.needs_logits else {}
    return calibrator.predict_proba(_rows(calibrator, outputs), **logits)


def with_column_names(outputs: ClassifierOutputs, part: str) -> Any:
    """Return embeddings or logits, as a table if their columns have names; None if they are missing."""
    names, matrix = outputs.names(part), getattr(outputs, part)
    if not names:
        return matrix
    import pandas  # takes its time

    return pandas.DataFrame(matrix, columns=list(names), copy=False)


def _rows(calibrator: Calibrator, outputs: ClassifierOutputs) -> Any:
    """Return what a fitted method takes as ``X``, with the names of its columns if the fit has some too."""
    part, rows = "logits" if calibrator.inputs == "logits" else "embeddings", outputs.matrix(calibrator.inputs)
    return with_column_names(outputs, part) if outputs.columns and columns_of_fit(calibrator)[part] else rows


def columns_of_fit(calibrator: Calibrator) -> dict[str, tuple[str, ...]]:
    """Return the matrices that a fitted calibrator needs, each with the names of its columns at the fit, if known."""
    needed = {"logits" if calibrator.inputs == "logits" else "embeddings": "feature_names_in_"}
    needed |= {"logits": "logit_names_in_"} if calibrator.inputs == "both" and calibrator.tags.needs_logits else {}
    return {part: tuple(map(str, vars(calibrator).get(names, ()))) for part, names in needed.items()}


def in_order_of_fit(calibrator: Calibrator, outputs: Outputs) -> Outputs:
    """Return outputs whose columns follow those of the fit, as far as names or classes tell; raise if these differ."""
    if outputs.classes is None and not outputs.columns:
        return outputs
    for part, names in columns_of_fit(calibrator).items():
        outputs = reorder(outputs, part, names=names, classes=calibrator.classes_ if part == "logits" else None)
    return outputs


def reorder(outputs: Outputs, part: str, *, names: Sequence[str] = (), classes: Any = None) -> Outputs:
    """Return outputs whose embeddings or logits have columns in the order of ``names`` or ``classes``; raise if not."""
    matrix, given, labels = getattr(outputs, part), outputs.names(part), outputs.classes
    if labels is None or classes is None or np.shape(matrix)[1:] != (len(labels),):
        labels = None
    order = column_order(part, given, labels, names=names, classes=classes)
    if order is None or order == [*range(len(order))]:
        return outputs
    changed: dict[str, Any] = {part: matrix[:, order] if is_tensor(matrix) else np.take(matrix, order, axis=1)}
    if given:
        changed["columns"] = {**outputs.columns, part: tuple(given[place] for place in order)}
    if part == "logits" and labels is not None:
        changed["classes"] = np.asarray(labels)[order]
    return replace(outputs, **changed)


def column_order(
    part: str, given: Sequence[str], labels: Any = None, *, names: Sequence[str] = (), classes: Any = None
) -> list[int] | None:
    """Return the places of expected columns among those ``given``: by name or, of logits, by class; None if unknown.

    ``names`` and ``classes`` are expected. Raise if columns are others, or if names and classes disagree.
    """
    by_name = positions(given, names) if given else None
    by_class = None if labels is None else positions(labels, classes)
    if by_name is None and by_class is None and labels is not None:
        raise InvalidInputError("classes", f"must be {shorten(classes)}", got=shorten(labels))
    if by_name is None and by_class is None and given and names:
        expected = f"must have the columns of the fit, {shorten(names)}"
        raise InvalidInputError(part, expected, got=shorten(given))
    if by_name is not None and by_class is not None and by_name != by_class:
        raise InvalidInputError("classes", f"must follow the columns, {shorten(given)}", got=shorten(labels))
    return by_class if by_name is None else by_name


def positions(found: Any, expected: Any) -> list[int] | None:
    """Return where the expected names are among others; None if these are not the same names in some order."""
    texts, wanted = ([str(name) for name in np.asarray(names).tolist()] for names in (found, expected))
    return [texts.index(name) for name in wanted] if sorted(texts) == sorted(wanted) else None
