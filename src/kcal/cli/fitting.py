"""What a method is fitted on: the calibration set, the network's training set, and what else it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray

from kcal.calibrators import Calibrator, ClassifierOutputs, KCalBlend, fit_on
from kcal.cli.arrays_in import ArraysFile, check_readable
from kcal.cli.class_order import name_labels
from kcal.cli.samples import Samples, Source, read_samples
from kcal.cli.vectors import is_text
from kcal.errors import InvalidInputError
from kcal.projection import needs_training


def read_to_fit(
    plan: Calibrator, source: Source, train: Path | None, train_labels: Path | None
) -> tuple[Samples, Samples | None]:
    """Read the calibration set and, where the method learns from one and there is one, the training set."""
    if train is None and train_labels is not None:
        raise typer.BadParameter("--train-labels needs --train, the file that they belong to.")
    learns = needs_training(plan.get_params().get("projection"))
    if train is not None and not learns:
        raise typer.BadParameter("--train is of no use here: this method learns no projection.")
    both = plan.inputs == "both"
    if "logits" in source.files and not both:
        raise typer.BadParameter(
            f"--logits is of no use here: method {plan.method} takes {plan.inputs}, and DATA holds them."
        )
    inputs = "embeddings" if both else plan.inputs
    samples = read_samples(source, inputs=inputs, labelled=True, with_logits=both)
    origin = _training_source(source, train, train_labels, inputs) if learns else None
    if origin is None:
        return name_labels(samples), None
    learned = read_samples(origin, inputs=inputs, labelled=True, feature_names=samples.columns)
    return _with_the_same_classes(samples, learned)


def fit_samples(
    calibrator: Calibrator, samples: Samples, train: Samples | None, classes: NDArray[Any] | None
) -> Calibrator:
    """Fit a calibrator on what it takes of the samples."""
    fit_on(
        calibrator,
        outputs_of(calibrator.inputs, samples),
        None if train is None else outputs_of(calibrator.inputs, train),
        classes=classes,
    )
    if samples.columns is not None:
        calibrator.feature_names_in_ = np.array(samples.columns, dtype=object)
    if isinstance(calibrator, KCalBlend) and samples.logits is not None and samples.logit_names is not None:
        calibrator.logit_names_in_ = np.array(samples.logit_names, dtype=object)
    return calibrator


def outputs_of(inputs: str, samples: Samples) -> ClassifierOutputs:
    """Return what a method that takes ``inputs`` may take of the samples."""
    both = {"embeddings": samples.matrix, "logits": samples.logits}
    return ClassifierOutputs(
        **(both if inputs == "both" else {inputs: samples.matrix}),
        labels=samples.labels,
        groups=samples.groups,
        weights=samples.weights,
        ids=samples.ids,
    )


def _training_source(source: Source, train: Path | None, labels: Path | None, inputs: str) -> Source | None:
    """Return where the training set lies; columns go by the calibration set's names."""
    if train is not None:
        kept = {key: source.columns[key] for key in ("labels", "groups") if key in source.columns}
        if labels is not None:
            kept.pop("labels", None)
        files = {} if labels is None else {"labels": labels}
        return Source(train, columns=kept, files=files, prefixes=("", "train_"), classes=source.classes)
    if check_readable(source.path) != ".npz":
        return None
    with ArraysFile(source.path) as stored:
        if f"train_{inputs}" not in stored.keys:
            return None
    return Source(source.path, prefixes=("train_",), classes=source.classes)


def _with_the_same_classes(samples: Samples, train: Samples) -> tuple[Samples, Samples]:
    """Return both with labels that mean the same: names of classes in one file hold for the other."""
    first, second = samples.classes, train.classes
    if first is not None and second is not None and first.tolist() != second.tolist():
        raise InvalidInputError(f"{samples.name} and {train.name} list different classes, or in a different order.")
    shared = first if first is not None else second
    one, other = (name_labels(replace(part, classes=shared)) for part in (samples, train))
    if is_text(one.true_labels) != is_text(other.true_labels):
        raise InvalidInputError(
            f"labels are text in one of {samples.name} and {train.name}, and numbers in the other. Write them alike."
        )
    return one, other
