"""The command ``kcal evaluate``: what a model's probabilities are worth, beside the network's own."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from kcal.arrays import encode_labels
from kcal.calibrators import Calibrator, Uncalibrated
from kcal.cli import options as o
from kcal.cli.arrays_in import SUFFIXES, check_readable
from kcal.cli.arrays_out import PROBABILITY_COLUMN, check_writable, named_output, refuse_to_replace
from kcal.cli.class_order import classes_to_fit, name_labels, order_for
from kcal.cli.model_inputs import read_for, refuse_overlap
from kcal.cli.samples import Samples, Source, read_samples
from kcal.cli.tables import show_evaluations
from kcal.cli.tables_in import TableFile
from kcal.cli.vectors import is_text
from kcal.errors import InvalidInputError, KcalWarning
from kcal.metrics import Evaluation
from kcal.metrics import evaluate as measure
from kcal.persistence import load, write_whole


def evaluate(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="What kcal fit wrote; or a file of probabilities, without DATA.", show_default=False
        ),
    ],
    data: Annotated[
        Path | None, typer.Argument(metavar="DATA", help="An npz, npy, parquet or csv file.", show_default=False)
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write all figures as JSON too; - for standard output instead."),
    ] = None,
    allow_overlap: Annotated[
        bool, typer.Option("--allow-overlap", help="Evaluate on rows that the model was fitted on, too.")
    ] = False,
    labels: o.Labels = None,
    logits: o.Logits = None,
    classes: o.Classes = None,
    label_column: o.LabelColumn = None,
    feature_columns: o.FeatureColumns = None,
    logit_columns: o.LogitColumns = None,
) -> None:
    """Measure a model on labelled data: accuracy, calibration errors, Brier losses, log-loss.

    Where the data hold [cyan]logits[/] too, the network's own probabilities stand beside the model's. Data that the
    model was fitted on are refused. Keys of an npz file may begin with [cyan]test_[/].

    [bold]Examples[/]

    [green]kcal evaluate model.kcal test.npz[/]

    [green]kcal evaluate model.kcal test.csv --label-column diagnosis --logit-columns 'z_*' --json metrics.json[/]

    [green]kcal evaluate probabilities.csv --labels labels.npy[/]
    """
    written = None if json_file in (None, "-") else Path(str(json_file))
    if written is not None:
        check_writable(written, option="--json")
        refuse_to_replace(written, model, data, labels, logits)
    columns = {"labels": label_column, "features": feature_columns, "logits": logit_columns}
    if data is None:
        _refuse_what_needs_a_model(model, logits, logit_columns, allow_overlap)
        columns["features"] = feature_columns or _probability_columns(model)
    files = {"labels": labels, "logits": logits}
    source = o.source_of(data or model, columns=columns, files=files, prefixes=("", "test_"), classes=classes)
    if data is None:
        evaluations = {"probabilities": evaluate_probabilities(source)}
    else:
        evaluations = evaluate_model(load(model), source, allow_overlap=allow_overlap)
    text = json.dumps(as_json(evaluations, model, data), indent=2, allow_nan=False)
    if json_file == "-":
        typer.echo(text)
        return
    show_evaluations(evaluations)
    if written is not None:
        with named_output(written):
            write_whole(written, f"{text}\n".encode())


def evaluate_model(calibrator: Calibrator, source: Source, *, allow_overlap: bool) -> dict[str, Evaluation]:
    """Return the metrics of the network's own probabilities, where there are logits, and of the calibrator's."""
    if calibrator.inputs == "logits" and "logits" in source.files:
        raise typer.BadParameter("--logits is of no use here: this model takes logits itself, and DATA holds them.")
    samples = read_for(calibrator, source, vectors=("labels", "weights"), labelled=True, with_logits=True)
    if samples.weights is not None:
        warnings.warn(f"{samples.name}: the metrics count every sample once; weights are not used.", KcalWarning, 2)
    if not allow_overlap:
        refuse_overlap(calibrator, samples)
    codes = _codes(samples, calibrator.classes_)
    evaluations: dict[str, Evaluation] = {}
    before = _uncalibrated(samples, calibrator)
    if before is not None:
        evaluations["uncal"] = measure(before, codes)
    if calibrator.method != "uncal":
        evaluations[calibrator.method] = measure(calibrator.predict_proba(samples.matrix), codes)
    return evaluations


def evaluate_probabilities(source: Source) -> Evaluation:
    """Return the metrics of probabilities that are already there."""
    samples = name_labels(read_samples(source, inputs="probabilities", vectors=("labels",), labelled=True))
    classes = classes_to_fit(samples, "logits")
    if classes is None:
        classes = np.arange(samples.matrix.shape[1])
    if len(classes) != samples.matrix.shape[1]:
        raise InvalidInputError(
            f"{samples.name} has {samples.matrix.shape[1]:,} columns of probabilities for {len(classes):,} classes."
        )
    return measure(samples.matrix, _codes(samples, classes))


def as_json(evaluations: dict[str, Evaluation], model: Path, data: Path | None) -> dict[str, Any]:
    """Return all figures as JSON can hold them; what is not a number becomes null."""
    any_one = next(iter(evaluations.values()))
    return {
        "model": str(model),
        "data": None if data is None else str(data),
        "n_samples": any_one.n_samples,
        "n_classes": any_one.n_classes,
        "bins": any_one.bins,
        "threshold": any_one.threshold,
        "clip": any_one.clip,
        "metrics": {
            name: {metric: value if math.isfinite(value) else None for metric, value in found.as_dict().items()}
            for name, found in evaluations.items()
        },
    }


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
    if calibrator.inputs == "logits":
        return _softmax(samples.matrix, getattr(calibrator, "representation", "logits"), calibrator.classes_)
    if samples.logits is None:
        return None
    order = order_for(samples, calibrator.classes_, samples.logits.shape[1], known=False)
    if order is None:
        warnings.warn(
            f"{samples.name}: nothing tells which column of the logits is which class, so the network's own "
            "probabilities are left out. List the classes in their order with --classes.",
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


def _probability_columns(path: Path) -> str | None:
    """Return the pattern of the columns that kcal predict writes, if the file has any."""
    if check_readable(path) not in (".csv", ".parquet"):
        return None
    named = any(name.startswith(PROBABILITY_COLUMN) for name in TableFile(path).columns)
    return f"{PROBABILITY_COLUMN}*" if named else None


def _refuse_what_needs_a_model(path: Path, logits: Path | None, logit_columns: str | None, allow_overlap: bool) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise typer.BadParameter(f"{path} needs DATA to be evaluated on: kcal evaluate {path} DATA.")
    if logits is not None or logit_columns is not None or allow_overlap:
        raise typer.BadParameter("--logits, --logit-columns and --allow-overlap need a MODEL and DATA.")
