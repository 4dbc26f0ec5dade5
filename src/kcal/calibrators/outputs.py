"""The one place that passes each calibrator the parts of a classifier's outputs that it takes."""

from __future__ import annotations

from typing import Any

from kcal.calibrators.base import Calibrator
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError


def fit_on(
    calibrator: Calibrator,
    calibration: ClassifierOutputs,
    train: ClassifierOutputs | None = None,
    *,
    classes: Any = None,
) -> Calibrator:
    """Fit a calibrator on the parts of the calibration set, and of the training set, that it takes.

    Groups, identifiers and a training set that a method has no use for are left out, so that one record serves every
    method. Weights change what is estimated: a method that cannot use them raises.
    """
    if calibration.weights is not None and "sample_weight" not in calibrator.fit_options:
        raise InvalidInputError(
            "weights", f"cannot be used by method {calibrator.method}", remedy="Leave them out, or use another method."
        )
    options = {
        "sample_weight": calibration.weights,
        "groups": calibration.groups,
        "ids": calibration.ids,
        "classes": classes,
        "logits": calibration.logits if calibrator.uses_logits else None,
    }
    if train is not None and calibrator.uses_training_set:
        options["train_embeddings"] = train.matrix(calibrator.inputs)
        options["train_labels"], options["train_groups"] = train.labels, train.groups
    taken = {name: value for name, value in options.items() if name in calibrator.fit_options and value is not None}
    fitted: Calibrator = calibrator.fit(calibration.matrix(calibrator.inputs), calibration.labels, **taken)
    return fitted


def update_on(calibrator: Calibrator | Any, samples: ClassifierOutputs, *, classes: Any = None) -> Calibrator:
    """Add labelled samples to a fitted calibrator that learns online, or fit it, with ``classes``, if it is not fitted.

    It gets the parts that it takes: logits if it was fitted with them, groups if its samples have them.
    """
    if not calibrator.learns_online:
        raise InvalidInputError("calibrator", "must be one that learns online: KCal or KCalBlend")
    if not calibrator.__sklearn_is_fitted__():
        return fit_on(calibrator, samples, classes=classes)
    options = {
        "sample_weight": samples.weights,
        "ids": samples.ids,
        "groups": samples.groups if calibrator.has_groups_ else None,
        "logits": samples.logits if calibrator.inputs == "both" and calibrator.needs_logits_ else None,
    }
    taken = {name: value for name, value in options.items() if value is not None}
    updated: Calibrator = calibrator.partial_fit(samples.matrix(calibrator.inputs), samples.labels, **taken)
    return updated


def predict_on(calibrator: Calibrator, outputs: ClassifierOutputs) -> Any:
    """Return a fitted calibrator's probabilities, (n, n_classes), for a classifier's outputs."""
    logits = {"logits": outputs.logits} if calibrator.inputs == "both" and calibrator.needs_logits_ else {}
    return calibrator.predict_proba(outputs.matrix(calibrator.inputs), **logits)
