"""The command ``kcal evaluate``: metrics of a model, of methods or of probabilities on labelled data."""

from __future__ import annotations

from pathlib import Path

import typer

from kcal.cli import options
from kcal.cli.messages import check_options


def evaluate(
    model: options.Evaluated,
    data: options.OptionalData = None,
    methods: options.Methods = None,
    train: options.Train = None,
    train_labels: options.TrainLabels = None,
    report: options.Report = None,
    json_file: options.Json = None,
    before: options.Before = None,
    pictures: options.Pictures = None,
    allow_overlap: options.AllowOverlap = False,
    confidence: options.Confidence = None,
    resamples: options.Resamples = None,
    seed: options.ResamplingSeed = None,
    no_intervals: options.NoIntervals = False,
    labels: options.Labels = None,
    logits: options.Logits = None,
    groups: options.RowGroups = None,
    weights: options.Weights = None,
    classes: options.Classes = None,
    labels_are_positions: options.LabelsArePositions = False,
    label_column: options.LabelColumn = None,
    group_column: options.GroupColumn = None,
    weight_column: options.WeightColumn = None,
    id_column: options.IdColumn = None,
    feature_columns: options.FeatureColumns = None,
    logit_columns: options.LogitColumns = None,
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
    arguments = locals()
    from kcal.cli.comparison import fit_methods, load_probabilities, measure_all, predict_model
    from kcal.cli.data import Source
    from kcal.cli.files import SUFFIXES
    from kcal.cli.output import check_writable, console, shown
    from kcal.cli.parameters import parse_methods
    from kcal.cli.report import check_report, evaluations_to_json, write_evaluations
    from kcal.cli.tables import show_evaluations
    from kcal.files import write_whole
    from kcal.persistence import load_calibrator
    from kcal.progress import working

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
        check_report(report, inputs)
    test = Source.from_options(data or model, arguments, prefixes=("", "test_"))
    if names is not None:
        choices = {"allow_overlap": allow_overlap, "skip_failures": methods == "all"}
        comparison = fit_methods(names, model, test, (train, train_labels), **choices)
    elif data is None:
        comparison = load_probabilities(test, before)
    else:
        comparison = predict_model(load_calibrator(model), test, before, allow_overlap)
    test.check_used()
    level = None if no_intervals else 0.95 if confidence is None else confidence
    with working("Measuring"):
        evaluations = measure_all(comparison, confidence=level, resamples=resamples or 1000, seed=seed or 0)
    text = evaluations_to_json(evaluations, model, data)
    if json_file == "-":
        typer.echo(text)
    else:
        show_evaluations(evaluations)
    if json_path is not None:
        write_whole(json_path, f"{text}\n".encode())
    if report is not None:
        term = "probabilities" if data is None else "model" if methods is None else "calibration"
        facts = {term: model, "data": data, "before": before}
        settings = {"resamples": f"{resamples or 1000:,}", "seed": f"{seed or 0:,}"}
        with working("Drawing the report"):
            page = write_evaluations(report, comparison, evaluations, facts, settings, pictures or 20)
        if json_file != "-":
            console().print(f"The report is {shown(page)}", soft_wrap=True)
