"""The command ``kcal evaluate``: what a model's probabilities are worth, beside the network's own."""

from __future__ import annotations

import json
import math
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from kcal.cli import options as o
from kcal.cli.arrays_in import SUFFIXES
from kcal.cli.arrays_out import check_writable, named_output, refuse_to_replace
from kcal.cli.comparing import judge_methods, parse_methods
from kcal.cli.judged import Judged, judge_model, judge_probabilities, probability_columns
from kcal.cli.model_inputs import takes_both
from kcal.cli.tables import METHODS, console, show_evaluations
from kcal.errors import InvalidInputError, KcalWarning
from kcal.metrics import Evaluation
from kcal.metrics import evaluate as measure
from kcal.persistence import load, write_whole
from kcal.progress import working

REPORT = "report.html"
MANY_DRAWS = 20_000_000
"""Rows times resamples beyond which a line says what takes so long."""


def evaluate(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="What kcal fit wrote; or a file of probabilities, without DATA; or, with --methods, calibration data.",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path | None, typer.Argument(metavar="DATA", help="An npz, npy, parquet or csv file.", show_default=False)
    ] = None,
    methods: o.Methods = None,
    train: o.Train = None,
    train_labels: o.TrainLabels = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help=f"Write a page with tables and pictures, {REPORT}, into this folder.",
            show_default=False,
        ),
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write all figures as JSON too; - for standard output instead."),
    ] = None,
    before: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Probabilities for the same rows to compare with, in place of the logits'.",
            show_default=False,
        ),
    ] = None,
    pictures: Annotated[
        int | None,
        typer.Option(min=1, help="How many classes the report shows in pictures, worst first.", show_default="20"),
    ] = None,
    allow_overlap: Annotated[
        bool, typer.Option("--allow-overlap", help="Evaluate on rows that the model was fitted on, too.")
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

    Where the data hold [cyan]logits[/] too, the network's own probabilities stand beside the model's. Data that the
    model was fitted on are refused. Keys of an npz file may begin with [cyan]test_[/]. Where there are
    [cyan]groups[/], intervals come from drawing whole groups; [cyan]weights[/] are how much each row counts.

    [bold]Examples[/]

    [green]kcal evaluate model.kcal test.npz --report report[/]

    [green]kcal evaluate model.kcal test.csv --label-column diagnosis --logit-columns 'z_*' --json metrics.json[/]

    [green]kcal evaluate after.csv --labels labels.npy --before before.csv[/]

    [green]kcal evaluate calibration.npz test.npz --methods ts,kcal,kcal-blend[/]
    """
    inputs = (model, data, labels, logits, groups, weights, before, train, train_labels)
    _check_methods(methods, data, before, logits, train, train_labels)
    written = None if json_file in (None, "-") else Path(str(json_file))
    if written is not None:
        check_writable(written, option="--json")
        refuse_to_replace(written, *inputs)
    if pictures is not None and report is None:
        raise typer.BadParameter("--pictures is about the report; give --report FOLDER too.")
    if report is not None:
        _check_report(report)
        refuse_to_replace(report / REPORT, *inputs)
    drawing = Drawing.typed(confidence, resamples, seed, no_intervals, grouped=bool(groups or group_column))
    calibrator = load(model) if data is not None and methods is None else None
    compared = logits is not None or (data is not None and logit_columns is not None)
    if before is not None and compared and not (calibrator is not None and takes_both(calibrator)):
        raise typer.BadParameter("--before and the logits both say what to compare with; give one of them.")
    columns = {"labels": label_column, "groups": group_column, "weights": weight_column, "ids": id_column}
    patterns = {"features": feature_columns, "logits": logit_columns}
    if data is None:
        _refuse_what_needs_a_model(model, logits, logit_columns, allow_overlap)
        patterns["features"] = feature_columns or probability_columns(model)
    files = {"labels": labels, "logits": logits, "groups": groups, "weights": weights}
    prefixes = ("", "test_")
    source = o.source_of(data or model, columns=columns | patterns, files=files, prefixes=prefixes, classes=classes)
    other = None
    if before is not None:
        patterns = {"features": probability_columns(before) or (feature_columns if data is None else None)}
        other = o.source_of(before, columns=columns | patterns, prefixes=prefixes, classes=classes)
    if methods is not None:
        judged = judge_methods(
            parse_methods(methods),
            o.source_of(model, columns=columns | patterns, prefixes=("", "calibration_"), classes=classes),
            source,
            train=train,
            train_labels=train_labels,
            allow_overlap=allow_overlap,
            leave_out=methods.strip() == "all",
        )
    elif calibrator is None:
        judged = judge_probabilities(source, before=other)
    else:
        judged = judge_model(calibrator, source, before=other, allow_overlap=allow_overlap)
    with working("Measuring"):
        evaluations = measured(judged, drawing, before)
    text = json.dumps(as_json(evaluations, model, data), indent=2, allow_nan=False)
    if json_file == "-":
        typer.echo(text)
    else:
        show_evaluations(evaluations)
    if written is not None:
        with named_output(written):
            write_whole(written, f"{text}\n".encode())
    if report is not None:
        sources = {"model" if methods is None else "calibration": model, "data": data}
        if data is None:
            sources = {"probabilities": model}
        with working("Drawing the report"):
            page = _write_report(report, judged, evaluations, drawing, {**sources, "before": before}, pictures or 20)
        if json_file != "-":
            console().print(f"The report is {page}", markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Drawing:
    """How rows are drawn anew for the intervals; there are none where the confidence is None."""

    confidence: float | None
    resamples: int
    seed: int

    @classmethod
    def typed(
        cls, confidence: float | None, resamples: int | None, seed: int | None, none: bool, *, grouped: bool
    ) -> Drawing:
        """Return what was typed, or the defaults; refuse what has no effect."""
        if none and (confidence, resamples, seed, grouped) != (None, None, None, False):
            raise typer.BadParameter(
                "--no-intervals leaves nothing to do for --confidence, --resamples, --seed, --groups or --group-column."
            )
        if confidence is not None and not 0 < confidence < 1:
            raise typer.BadParameter(f"--confidence must lie between 0 and 1, like 0.95; got {confidence:g}.")
        chosen = 0.95 if confidence is None else confidence
        return cls(None if none else chosen, 1000 if resamples is None else resamples, seed or 0)


def measured(judged: Judged, drawing: Drawing, before: Path | None) -> dict[str, Evaluation]:
    """Return the metrics of every method, with intervals where there is anything to draw from."""
    n_samples, groups, confidence = len(judged.labels), judged.groups, drawing.confidence
    counted = slice(None) if judged.weights is None else np.asarray(judged.weights) > 0
    n_drawn = len(judged.labels[counted]) if groups is None else len(np.unique(groups[counted]))
    if confidence is not None and n_drawn < 2:
        what = "sample" if groups is None else "group"
        warnings.warn(f"there are no intervals, because there is only one {what} to draw from.", KcalWarning, 2)
        confidence = None
    if confidence is not None and n_samples * drawing.resamples * len(judged.probabilities) > MANY_DRAWS:
        typer.echo(f"Drawing {drawing.resamples:,} resamples for the intervals; --no-intervals saves it.", err=True)
    evaluations = {}
    for name, probabilities in judged.probabilities.items():
        try:
            evaluations[name] = measure(
                probabilities,
                judged.labels,
                sample_weight=judged.weights,
                confidence=confidence,
                resamples=drawing.resamples,
                groups=None if confidence is None else groups,
                seed=drawing.seed,
            )
        except InvalidInputError as error:
            if name != "before":
                raise
            raise InvalidInputError(f"{before}: {error}") from error
    return evaluations


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
        "confidence": any_one.confidence,
        "metrics": {
            name: {metric: _finite(value) for metric, value in found.as_dict().items()}
            for name, found in evaluations.items()
        },
        "intervals": {
            name: {metric: [_finite(end) for end in interval] for metric, interval in found.intervals.items()}
            for name, found in evaluations.items()
        },
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _write_report(
    folder: Path,
    judged: Judged,
    evaluations: dict[str, Evaluation],
    drawing: Drawing,
    sources: dict[str, Path | None],
    limit: int,
) -> Path:
    from kcal.report import write_report

    told = {term: str(path) for term, path in sources.items() if path is not None}
    if judged.groups is not None:
        told["groups"] = f"{len(np.unique(judged.groups)):,}; whole groups are drawn for the intervals"
    drawn = next(iter(evaluations.values())).confidence is not None
    with named_output(folder / REPORT):
        return write_report(
            folder,
            {METHODS.get(name, name): probabilities for name, probabilities in judged.probabilities.items()},
            judged.labels,
            class_names=judged.classes.tolist(),
            evaluations={METHODS.get(name, name): found for name, found in evaluations.items()},
            sample_weight=judged.weights,
            sources=told,
            limit=limit,
            settings={"resamples": f"{drawing.resamples:,}", "seed": str(drawing.seed)} if drawn else {},
        )


def _check_report(folder: Path) -> None:
    """Refuse early a report that could not be drawn or written after long work."""
    import kcal.report  # noqa: F401 - says how to install matplotlib where it is missing

    if folder.is_dir():
        check_writable(folder / REPORT, option="--report")
        return
    above = next((place for place in (folder, *folder.absolute().parents) if place.exists()), folder)
    if not above.is_dir():
        raise InvalidInputError(f"{above} is not a folder; give the name of one with --report.")
    if not os.access(above, os.W_OK):
        raise InvalidInputError(f"{folder} cannot be made: {above} cannot be written to. Choose another folder.")


def _check_methods(methods: str | None, data: Path | None, before: Path | None, *unused: Path | None) -> None:
    """Refuse what does not go with methods that are yet to be fitted, and what goes with nothing else."""
    logits, train, train_labels = unused
    if methods is None:
        if train is not None or train_labels is not None:
            raise typer.BadParameter("--train and --train-labels are for --methods, which fits what it evaluates.")
        return
    parse_methods(methods)
    if data is None:
        raise typer.BadParameter("--methods needs two files: kcal evaluate CALIBRATION DATA --methods ts,kcal.")
    if before is not None or logits is not None:
        raise typer.BadParameter("--before and --logits are of no use with --methods; DATA holds the logits.")


def _refuse_what_needs_a_model(path: Path, logits: Path | None, logit_columns: str | None, allow_overlap: bool) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise typer.BadParameter(f"{path} needs DATA to be evaluated on: kcal evaluate {path} DATA.")
    if logits is not None or logit_columns is not None or allow_overlap:
        raise typer.BadParameter("--logits, --logit-columns and --allow-overlap need a MODEL and DATA.")
