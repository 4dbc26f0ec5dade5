"""Probabilities to compare: of a model, of several methods fitted here, or of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typer import BadParameter

from kcal.calibrators import Calibrator, Uncalibrated, make_calibrator
from kcal.cli import samples
from kcal.cli.data import COLUMNS, Dataset, Request, Source, load
from kcal.cli.files import TableFile, open_file, shorten
from kcal.cli.messages import OverlapError, check_options, error_text
from kcal.distributed.tables import PROBABILITY_COLUMN
from kcal.errors import InvalidInputError, KcalError, KcalWarning, warn
from kcal.metrics import Evaluation
from kcal.metrics import evaluate as measure
from kcal.progress import working


@dataclass(frozen=True)
class Comparison:
    """Probabilities (n_samples, n_classes) by method; labels are columns of theirs."""

    probs: dict[str, NDArray[Any]] = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    classes: NDArray[Any]
    groups: NDArray[Any] | None = field(default=None, repr=False)
    weights: NDArray[Any] | None = field(default=None, repr=False)


def predict_model(
    calibrator: Calibrator, source: Source, before: Path | None = None, allow_overlap: bool = False
) -> Comparison:
    """Return a model's probabilities, after those of ``before`` or of the network's logits if there are any."""
    needs_both = calibrator.inputs == "both" and calibrator.needs_logits_
    if calibrator.inputs == "logits" and "logits" in source.files:
        raise BadParameter("--logits has no effect here: this model takes logits itself, from DATA.")
    if before is not None and ("logits" in source.files or "logits" in source.columns) and not needs_both:
        raise BadParameter("--before and the logits are both to compare with; give one of them.")
    data = samples.load_to_predict(calibrator, source, labelled=True, logits=before is None, keys=_keys(before))
    if not allow_overlap:
        samples.check_overlap(calibrator, data)
    labels = samples.encode(data, calibrator.classes_)
    probs: dict[str, NDArray[Any]] = {}
    if before is not None:
        probs["before"] = _load_before(before, source, data, calibrator.classes_)
    elif data.logits is not None:
        probs |= _network_probs(data, calibrator)
    if calibrator.method not in probs:
        probs[calibrator.method] = samples.predict_dataset(calibrator, data)
    return Comparison(probs, labels, calibrator.classes_, data.groups, data.weights)


def _keys(before: Path | None) -> tuple[str, ...]:
    """Return what is needed of a test set beside predictions: ids only to compare its rows with others."""
    return ("labels", "groups", "weights", *(() if before is None else ("ids",)))


def load_probabilities(source: Source, before: Path | None) -> Comparison:
    """Return the probabilities of a file, after those of ``before``."""
    features = source.columns.get("features")
    columns = {**source.columns, **_probability_columns(source.path)} if features is None else source.columns
    request = Request("probabilities", keys=_keys(before), labelled=True)
    data = samples.name_labels(load(replace(source, columns=columns), request))
    classes = samples.classes_or_indices(data)
    _check_n_columns(data, classes)
    labels = samples.encode(data, classes)
    probs = {}
    if before is not None:
        probs["before"] = _load_before(before, source, data, classes, features)
    probs["probabilities"] = data.logits
    return Comparison(probs, labels, classes, data.groups, data.weights)


def fit_methods(
    names: Sequence[str],
    calibration: Path,
    test: Source,
    training: tuple[Path | None, Path | None],
    *,
    allow_overlap: bool,
    skip_failures: bool,
) -> Comparison:
    """Fit every method on the calibration set, and return their probabilities for the test set, uncalibrated first.

    ``training`` are the files of the training set and of its labels. With ``skip_failures``, a method that cannot be
    fitted or applied is left out with a warning.
    """
    useless = training != (None, None) and not any(_learns(make_calibrator(name)) for name in names)
    check_options((useless, "--train and --train-labels have no effect: none of these methods learns a projection."))
    source = replace(test, path=calibration, files={}, prefixes=("", "calibration_"))
    probs: dict[str, NDArray[Any]] = {}
    first: Comparison | None = None
    for name in names:
        try:
            with working(f"Fitting {name}"):
                calibrator = _fit_method(name, source, training)
                comparison = predict_model(calibrator, test, allow_overlap=allow_overlap)
            order = _class_indices(first or comparison, comparison, name)
        except KcalError as error:
            if isinstance(error, OverlapError) or not skip_failures:
                raise
            warn(f"{name} is left out: {error_text(error)}", KcalWarning)
            continue
        first = first or comparison
        for method, values in comparison.probs.items():
            probs.setdefault(name if method == calibrator.method else method, values[:, order])
    if first is None:
        raise InvalidInputError("--methods", "must name a method that can be fitted; the warnings say why none can")
    return replace(first, probs={name: probs[name] for name in sorted(probs, key=lambda name: name != "uncal")})


def measure_all(
    comparison: Comparison, *, confidence: float | None, resamples: int, seed: int
) -> dict[str, Evaluation]:
    """Return the metrics of every method, with intervals if there is more than one row or group to resample."""
    groups, weights = comparison.groups, comparison.weights
    counted = slice(None) if weights is None else weights > 0
    n_drawn = len(comparison.labels[counted]) if groups is None else len(np.unique(groups[counted]))
    if confidence is not None and n_drawn < 2:
        unit = "sample" if groups is None else "group"
        warn(f"There are no confidence intervals, because there is only one {unit} to resample.", KcalWarning)
        confidence = None
    settings: dict[str, Any] = {"confidence": confidence, "groups": None if confidence is None else groups}
    settings |= {"sample_weight": weights, "resamples": resamples, "seed": seed}
    return {name: measure(probs, comparison.labels, **settings) for name, probs in comparison.probs.items()}


def _probability_columns(path: Path) -> dict[str, str]:
    """Return the pattern of the columns that kcal predict writes as that of the features, if the file has any."""
    file = open_file(path)
    names = file.columns if isinstance(file, TableFile) else ()
    is_written = any(name.startswith(PROBABILITY_COLUMN) for name in names)
    return {"features": f"{PROBABILITY_COLUMN}*"} if is_written else {}


def _learns(calibrator: Calibrator) -> bool:
    """Return whether a method learns a projection from embeddings of the training set."""
    return calibrator.uses_training_set and calibrator.inputs != "logits"


def _fit_method(name: str, calibration: Source, files: tuple[Path | None, Path | None]) -> Calibrator:
    calibrator = make_calibrator(name)
    try:
        data, training = samples.load_to_fit(calibrator, calibration, *(files if _learns(calibrator) else (None, None)))
        fitted = samples.fit_dataset(calibrator, data, training)
        if fitted.inputs == "both" and not fitted.needs_logits_:
            warn(f"{name}: {data.name} has no logits, so it is fitted on embeddings alone.", KcalWarning)
        return fitted
    except KcalError as error:
        raise KcalError(f"{name}: {error_text(error)}") from error


def _class_indices(first: Comparison, comparison: Comparison, name: str) -> NDArray[np.intp]:
    """Return where the classes of the first method are among those of another one."""
    index = {label: place for place, label in enumerate(comparison.classes.tolist())}
    if set(index) != set(first.classes.tolist()):
        problem = f"knows other classes than the methods before it: {len(index)}, not {len(first.classes)}"
        remedy = "List all classes, in the order of the logits' columns, with --classes."
        raise InvalidInputError(name, problem, remedy=remedy)
    return np.array([index[label] for label in first.classes.tolist()], dtype=np.intp)


def _load_before(
    path: Path, source: Source, after: Dataset, classes: NDArray[Any], features: str | None = None
) -> NDArray[Any]:
    """Return the probabilities of another file for the rows of ``after``, columns in the order of ``classes``."""
    file = open_file(path)
    there = file.columns if isinstance(file, TableFile) else file.names
    columns = {key: name for key, name in source.columns.items() if key in COLUMNS and name in there}
    is_named = features is not None and (isinstance(file, TableFile) or features in there)
    columns |= _probability_columns(path) or ({"features": str(features)} if is_named else {})
    source = replace(source, path=path, columns=columns, files={})
    data = samples.name_labels(load(source, Request("probabilities", keys=("ids", "labels"))))
    if len(data) != len(after):
        expected = f"must have the same rows as {after.name}, {len(after):,} of them"
        raise InvalidInputError(data.name, expected, got=f"{len(data):,}")
    _check_same_rows(data, after)
    names, expected_names = data.column_classes, [str(label) for label in classes.tolist()]
    if data.classes is None and set(names) != set(expected_names) and set(names) & set(expected_names):
        problem = f"has columns for {shorten(names)}, but the classes are {shorten(expected_names)}"
        raise InvalidInputError(data.name, problem, remedy="Rename its columns, or list its classes with --classes.")
    _check_n_columns(data, classes)
    probs: NDArray[Any] = data.logits[:, samples.column_order(data, classes, assume_same=True)]
    return probs


def _check_same_rows(data: Dataset, after: Dataset) -> None:
    """Raise if ids or labels differ; labels only if both files name the classes in the same way."""
    for key in ("ids", "labels"):
        values, expected = getattr(data, key), getattr(after, key)
        if (
            values is None
            or expected is None
            or (key == "labels" and not set(map(str, values)) <= set(map(str, expected)))
        ):
            continue
        differ = values.astype(str) != expected.astype(str)
        if differ.any():
            row = int(np.argmax(differ))
            problem = f"must be those of {after.name}, in the same order; row {row} is {expected[row].item()!r} there"
            raise InvalidInputError(f"{data.name}: {key}", problem, got=repr(values[row].item()))


def _check_n_columns(data: Dataset, classes: NDArray[Any]) -> None:
    n_columns = data.logits.shape[1]
    if n_columns != len(classes):
        raise InvalidInputError(data.name, f"has {n_columns:,} columns of probabilities for {len(classes):,} classes")


def _network_probs(data: Dataset, calibrator: Calibrator) -> dict[str, NDArray[Any]]:
    """Return the network's own probabilities in the order of the model's classes, if that order is known."""
    logits, classes = data.logits, calibrator.classes_
    uses_logits = calibrator.needs_logits_ and logits.shape[1] == len(classes)  # loaded in the order of the classes
    order = slice(None) if uses_logits else samples.column_order(data, classes, assume_same=False)
    if order is not None:
        representation = calibrator.get_params().get("representation", "logits") if uses_logits else "logits"
        labels = np.repeat(classes[:1], len(logits))  # any labels: nothing is learned from them
        network = Uncalibrated(representation=representation).fit(logits[:, order], labels, classes=classes)
        return {"uncal": network.predict_proba(logits[:, order])}
    reason, remedy = f"the logits have {logits.shape[1]:,} columns for {len(classes):,} classes", ""
    if logits.shape[1] == len(classes):
        reason = "it is unknown which column of the logits is which class"
        remedy = " List the classes in their order with --classes."
    warn(f"{data.name}: {reason}, so the network's own probabilities are left out.{remedy}", KcalWarning)
    return {}
