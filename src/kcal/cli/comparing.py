"""Methods side by side: each fitted on one file, and all judged on another."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray

from kcal.calibrators import METHODS, Calibrator, make_calibrator
from kcal.cli.class_order import classes_to_fit
from kcal.cli.fitting import fit_samples, read_to_fit
from kcal.cli.judged import Judged, judge_model
from kcal.cli.messages import OverlapError
from kcal.cli.samples import Source
from kcal.errors import InvalidInputError, KcalError, KcalWarning
from kcal.progress import working
from kcal.projection import needs_training


def parse_methods(text: str) -> list[str]:
    """Return names of methods, each once; "all" is every method there is."""
    names = list(METHODS) if text.strip() == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in METHODS:
            raise typer.BadParameter(f"--methods: {name!r} is not one of all, {', '.join(METHODS)}.")
        if names.count(name) > 1:
            raise typer.BadParameter(f"--methods names {name} more than once.")
    return names


def judge_methods(
    names: Sequence[str],
    calibration: Source,
    test: Source,
    *,
    train: Path | None,
    train_labels: Path | None,
    allow_overlap: bool,
    leave_out: bool = False,
) -> Judged:
    """Fit every method on the calibration set, and return their probabilities for the test set, uncalibrated first.

    With ``leave_out`` a method that cannot be fitted or judged is left out with a warning.
    """
    found: dict[str, NDArray[Any]] = {}
    first: Judged | None = None
    for name in names:
        try:
            with working(f"Fitting {name}"):
                calibrator = _fitted(name, calibration, train, train_labels)
                judged = judge_model(calibrator, test, before=None, allow_overlap=allow_overlap)
            order = _order(first or judged, judged, name)
        except KcalError as error:
            if isinstance(error, OverlapError) or not leave_out:
                raise
            warnings.warn(f"{name} is left out: {error}", KcalWarning, stacklevel=2)
            continue
        first = first or judged
        for method, probabilities in judged.probabilities.items():
            found.setdefault(name if method == calibrator.method else method, probabilities[:, order])
    if first is None:
        raise InvalidInputError("no method could be fitted; the warnings say why.")
    ordered = {name: found[name] for name in sorted(found, key=lambda name: name != "uncal")}
    return Judged(ordered, first.labels, first.classes, first.groups, first.weights)


def _fitted(name: str, calibration: Source, train: Path | None, train_labels: Path | None) -> Calibrator:
    calibrator = make_calibrator(name)
    learns = needs_training(calibrator.get_params().get("projection")) and calibrator.inputs != "logits"
    try:
        samples, learned = read_to_fit(calibrator, calibration, *((train, train_labels) if learns else (None, None)))
        if calibrator.inputs == "both" and samples.logits is None:
            warnings.warn(f"{name}: {samples.name} holds no logits; fitted on embeddings alone.", KcalWarning, 2)
        return fit_samples(calibrator, samples, learned, classes_to_fit(samples, calibrator.inputs))
    except KcalError as error:
        raise InvalidInputError(f"{name}: {error}") from error


def _order(first: Judged, judged: Judged, name: str) -> NDArray[np.intp]:
    """Return where the classes of the first method stand among those of another."""
    places = {label: place for place, label in enumerate(judged.classes.tolist())}
    if set(places) != set(first.classes.tolist()):
        raise InvalidInputError(
            f"{name} knows other classes than the methods before it: {len(places)}, not {len(first.classes)}. "
            "List all classes, in the order of the logits' columns, with --classes."
        )
    return np.array([places[label] for label in first.classes.tolist()], dtype=np.intp)
