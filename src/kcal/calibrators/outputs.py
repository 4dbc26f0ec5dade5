"""One record of a classifier's outputs, and the one place that hands each calibrator what it takes of it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

from kcal.calibrators.base import Calibrator
from kcal.errors import InvalidInputError
from kcal.projection import needs_training


@dataclass(frozen=True)
class ClassifierOutputs:
    """What a trained classifier gave for some samples; any part that a method does not take may be missing."""

    embeddings: Any = field(default=None, repr=False)  # (n, h)
    logits: Any = field(default=None, repr=False)  # (n, n_classes)
    labels: Any = field(default=None, repr=False)  # (n,)
    groups: Any = field(default=None, repr=False)  # (n,)
    weights: Any = field(default=None, repr=False)  # (n,)
    ids: Any = field(default=None, repr=False)  # (n,)

    def matrix(self, inputs: str) -> Any:
        """Return the part that a method with such ``inputs`` takes first; of both, the embeddings."""
        values = self.logits if inputs == "logits" else self.embeddings
        if values is None:
            missing = "logits" if inputs == "logits" else "embeddings"
            raise InvalidInputError(f"this method takes {missing}, but none were given.")
        return values


def fit_on(
    calibrator: Calibrator,
    calibration: ClassifierOutputs,
    train: ClassifierOutputs | None = None,
    *,
    classes: Any = None,
) -> Calibrator:
    """Fit a calibrator on what it takes of the calibration set and, if it learns from one, of the training set."""
    accepted = inspect.signature(calibrator.fit).parameters
    if calibration.weights is not None and "sample_weight" not in accepted:
        raise InvalidInputError(f"samples have weights, but method {calibrator.method} cannot use any. Leave them out.")
    offered = {
        "sample_weight": calibration.weights,
        "groups": calibration.groups,
        "ids": calibration.ids,
        "classes": classes,
        "logits": calibration.logits,
    }
    if train is not None and needs_training(calibrator.get_params().get("projection")):
        offered |= {
            "train_embeddings": train.matrix(calibrator.inputs),
            "train_labels": train.labels,
            "train_groups": train.groups,
        }
    extra = {name: value for name, value in offered.items() if name in accepted and value is not None}
    fitted: Calibrator = calibrator.fit(calibration.matrix(calibrator.inputs), calibration.labels, **extra)
    return fitted


def predict_on(calibrator: Calibrator, outputs: ClassifierOutputs) -> Any:
    """Return a fitted calibrator's probabilities for a classifier's outputs."""
    rows = outputs.matrix(calibrator.inputs)
    if calibrator.inputs == "both" and outputs.logits is not None:
        return calibrator.predict_proba(rows, logits=outputs.logits)  # type: ignore[call-arg]
    return calibrator.predict_proba(rows)
