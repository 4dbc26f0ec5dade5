"""The command ``kcal evaluate``: metrics of a model, of methods or of probabilities on labelled data."""

from __future__ import annotations

import json
import math
import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from kcal.cli import options as o
from kcal.cli.evaluation import (
    Comparison,
    fit_methods,
    load_probabilities,
    measure_all,
    predict_model,
    probability_columns,
)
from kcal.cli.files import SUFFIXES
from kcal.cli.messages import check_options
from kcal.cli.output import check_writable, console, shown
from kcal.cli.parameters import parse_methods
from kcal.cli.tables import method_title, show_evaluations
from kcal.errors import InvalidInputError
from kcal.metrics import Evaluation
from kcal.persistence import load, write_whole
from kcal.progress import working

REPORT = "report.html"


def evaluate(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A model of kcal fit, or see the examples.", show_default=False)
    ],
    data: Annotated[
        Path | None, typer.Argument(metavar="DATA", help="An npz, npy, parquet or csv file.", show_default=False)
    ] = None,
    methods: o.Methods = None,
    train: o.Train = None,
    train_labels: o.TrainLabels = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help=f"Write {REPORT} there: tables and pictures.", show_default=False),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write all figures; - for standard output only.")
    ] = None,
    before: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Probabilities to compare with, in place of the network's."),
    ] = None,
    pictures: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Classes with pictures in the report. (default: 20)")
    ] = None,
    allow_overlap: Annotated[
        bool, typer.Option("--allow-overlap", help="Accept rows that the model was fitted on.")
    ] = False,
    confidence: o.Confidence = None,
    resamples: o.Resamples = None,
    seed: o.ResamplingSeed = None,
    no_intervals: o.NoIntervals = False,
    labels: o.Labels = None,
    logits: o.Logits = None,
    groups: o.RowGroups = None,
    weights: o.Weights = None,
    classes: o.Classes = None,
    label_column: o.LabelColumn = None,
    group_column: o.GroupColumn = None,
    weight_column: o.WeightColumn = None,
    id_column: o.IdColumn = None,
    feature_columns: o.FeatureColumns = None,
    logit_columns: o.LogitColumns = None,
) -> None:
    """Measure a model on labelled data: accuracy, calibration errors, Brier losses, log-loss, with intervals.

    If the data have [cyan]logits[/] too, the network's own probabilities are shown beside the model's. Rows that the
    model was fitted on are refused. Keys of an npz file may begin with [cyan]test_[/]. With [cyan]groups[/], the
    intervals resample whole groups; [cyan]weights[/] are the relative importance of the rows.

    [bold]Examples[/]

    [green]kcal evaluate model.kcal test.npz --report report[/]

    [green]kcal evaluate model.kcal test.csv --label-column diagnosis --logit-columns 'z_*' --json metrics.json[/]

    [green]kcal evaluate after.csv --labels labels.npy --before before.csv[/]

    [green]kcal evaluate calibration.npz test.npz --methods ts,kcal,kcal-blend[/]
    """
    check_options(
        (methods is None and (train or train_labels), "--train and --train-labels are for --methods, which fits them."),
        (methods and not data, "--methods needs two files: kcal evaluate CALIBRATION DATA --methods ts,kcal."),
        (methods and (before or logits), "--before and --logits have no effect with --methods."),
        (pictures and not report, "--pictures is about the report; give --report FOLDER too."),
        (not data and model.suffix.lower() not in SUFFIXES, f"{model} needs DATA: kcal evaluate {model} DATA."),
        (
            not data and (logits or logit_columns or allow_overlap),
            "--logits, --logit-columns and --allow-overlap need a MODEL and DATA.",
        ),
        (
            no_intervals and (confidence, resamples, seed, groups or group_column) != (None, None, None, None),
            "--confidence, --resamples, --seed, --groups and --group-column have no effect with --no-intervals.",
        ),
    )
    names = None if methods is None else parse_methods(methods)
    inputs = (model, data, labels, logits, groups, weights, before, train, train_labels)
    json_path = None if json_file in (None, "-") else Path(str(json_file))
    if json_path is not None:
        check_writable(json_path, inputs=inputs, option="--json")
    if report is not None:
        _check_report(report, inputs)
    level = 0.95 if confidence is None else confidence
    intervals = {"resamples": resamples or 1000, "seed": seed or 0}
    columns = {"labels": label_column, "groups": group_column, "weights": weight_column, "ids": id_column}
    features = feature_columns or (probability_columns(model) if data is None else None)
    source = partial(o.source_of, columns=columns | {"features": features, "logits": logit_columns}, classes=classes)
    files = {"labels": labels, "logits": logits, "groups": groups, "weights": weights}
    test = source(data or model, files=files, prefixes=("", "test_"))
    other = None
    if before is not None:
        pattern = probability_columns(before) or (feature_columns if data is None else None)
        other = source(before, columns=columns | {"features": pattern}, prefixes=("", "test_"))
    if names is not None:
        calibration = source(model, prefixes=("", "calibration_"))
        comparison = fit_methods(
            names, calibration, test, train, train_labels, allow_overlap=allow_overlap, skip_failures=methods == "all"
        )
    elif data is None:
        comparison = load_probabilities(test, before=other)
    else:
        comparison = predict_model(load(model), test, before=other, allow_overlap=allow_overlap)
    with working("Measuring"):
        evaluations = measure_all(comparison, confidence=None if no_intervals else level, **intervals)
    text = json.dumps(as_json(evaluations, model, data), indent=2, allow_nan=False)
    if json_file == "-":
        typer.echo(text)
    else:
        show_evaluations(evaluations)
    if json_path is not None:
        write_whole(json_path, f"{text}\n".encode())
    if report is not None:
        term = "probabilities" if data is None else "model" if methods is None else "calibration"
        with working("Drawing the report"):
            page = _write_report(
                report, comparison, evaluations, intervals, {term: model, "data": data, "before": before}, pictures
            )
        if json_file != "-":
            console().print(f"The report is {shown(page)}", soft_wrap=True)


def as_json(evaluations: dict[str, Evaluation], model: Path, data: Path | None) -> dict[str, Any]:
    """Return all figures in a form that JSON can represent; NaN becomes null."""
    first = next(iter(evaluations.values()))
    settings = ("n_samples", "n_classes", "bins", "threshold", "clip", "confidence")
    return {
        "model": str(model),
        "data": None if data is None else str(data),
        **{name: getattr(first, name) for name in settings},
        "metrics": {
            name: {metric: _finite(value) for metric, value in evaluation.as_dict().items()}
            for name, evaluation in evaluations.items()
        },
        "intervals": {
            name: {metric: [_finite(end) for end in ends] for metric, ends in evaluation.intervals.items()}
            for name, evaluation in evaluations.items()
        },
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _write_report(
    folder: Path,
    comparison: Comparison,
    evaluations: dict[str, Evaluation],
    intervals: dict[str, int],
    sources: dict[str, Path | None],
    pictures: int | None,
) -> Path:
    from kcal.report import write_report

    facts = {term: str(path) for term, path in sources.items() if path is not None}
    if comparison.groups is not None:
        facts["groups"] = f"{len(np.unique(comparison.groups)):,}; the intervals resample whole groups"
    has_intervals = next(iter(evaluations.values())).confidence is not None
    return write_report(
        folder,
        {method_title(name): probs for name, probs in comparison.probs.items()},
        comparison.labels,
        class_names=comparison.classes.tolist(),
        evaluations={method_title(name): evaluation for name, evaluation in evaluations.items()},
        sample_weight=comparison.weights,
        sources=facts,
        limit=pictures or 20,
        settings={name: f"{value:,}" for name, value in intervals.items()} if has_intervals else {},
    )


def _check_report(folder: Path, inputs: tuple[Path | None, ...]) -> None:
    """Raise early for a report that could not be drawn or written after long work."""
    import kcal.report  # noqa: F401 - raises with the command that installs matplotlib if it is missing

    if folder.is_dir():
        check_writable(folder / REPORT, inputs=inputs, option="--report")
        return
    above = next((place for place in (folder, *folder.absolute().parents) if place.exists()), folder)
    if not above.is_dir() or not os.access(above, os.W_OK):
        reason = "is not writable" if above.is_dir() else "is not a folder"
        raise InvalidInputError("--report", "must be a folder that can be made", got=f"{folder}; {above} {reason}")
