"""The one place that passes each calibrator the parts of a classifier's outputs that it takes."""

from __future__ import annotations

from typing import Any

import torch

from kcal.calibrators.base import Calibrator
from kcal.calibrators.kernel_calibrator import online_state
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError
from kcal.projection import TrainedProjection, train_projection


def fit_on(
    calibrator: Calibrator,
    calibration: ClassifierOutputs,
    train: ClassifierOutputs | None = None,
    *,
    classes: Any = None,
) -> Calibrator:
    """Fit a calibrator on the parts of the calibration set, and of the training set, that it takes.

    Groups, identifiers and a training set that a method has no use for are left out, so that one record serves every
    method. Weights change what is estimated: every method takes them.
    """
    options = {
        "groups": calibration.groups,
        "ids": calibration.ids,
        "classes": classes,
        "logits": calibration.logits if calibrator.tags.takes_logits else None,
    }
    if train is not None and calibrator.tags.uses_training_set:
        options["train_embeddings"] = train.matrix(calibrator.inputs)
        options["train_labels"], options["train_groups"] = train.labels, train.groups
    taken = {
        name: value for name, value in options.items() if name in calibrator.tags.fit_options and value is not None
    }
    taken |= {} if calibration.weights is None else {"sample_weight": calibration.weights}
    fitted: Calibrator = calibrator.fit(calibration.matrix(calibrator.inputs), calibration.labels, **taken)
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
    options = {
        "sample_weight": samples.weights,
        "ids": samples.ids,
        "groups": samples.groups if online_state(calibrator).has_groups else None,
        "logits": samples.logits if calibrator.inputs == "both" and calibrator.tags.needs_logits else None,
    }
    taken = {name: value for name, value in options.items() if value is not None}
    updated: Calibrator = calibrator.partial_fit(samples.matrix(calibrator.inputs), samples.labels, **taken)
    return updated


def predict_on(calibrator: Calibrator, outputs: ClassifierOutputs) -> Any:
    """Return a fitted calibrator's probabilities, (n, n_classes), for a classifier's outputs."""
    logits = {"logits": outputs.logits} if calibrator.inputs == "both" and calibrator.tags.needs_logits else {}
    return calibrator.predict_proba(outputs.matrix(calibrator.inputs), **logits)
