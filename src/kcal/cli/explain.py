"""The command ``kcal explain``: the calibration samples that carry predictions."""

from __future__ import annotations

from pathlib import Path

import typer

from kcal.cli import options
from kcal.cli.messages import check_options


def explain(
    model: options.Model,
    data: options.Data,
    row: options.ExplainedRows = None,
    id_: options.ExplainedIds = None,
    k: options.SampleCount = 5,
    plot: options.Plot = None,
    csv: options.Csv = None,
    json_file: options.ExplanationJson = None,
    logits: options.LogitsBeside = None,
    ids: options.Ids = None,
    label_column: options.LabelColumn = None,
    id_column: options.IdColumn = None,
    feature_columns: options.FeatureColumns = None,
    logit_columns: options.LogitColumns = None,
) -> None:
    """Show why a probability was given: the calibration samples that carry it, by kcal, kcal-logits or kcal-blend.

    Each sample has a share of the probability of its class. With all other samples and what is no sample (the network
    and its refitted last layer of a kcal-blend; smoothing) the shares of a column sum to the probability. Of a
    kcal-blend the contributions to the log-odds of the two most probable classes are shown, too. Without
    [cyan]--row[/] and [cyan]--id[/] all rows are explained, and the first ones shown. Samples have the ids of kcal fit,
    or row numbers of the calibration set.

    [bold]Examples[/]

    [green]kcal explain model.kcal new.npz --row 17 --plot why.png[/]

    [green]kcal explain model.kcal new.csv --id patient-3 -k 10 --csv why.csv[/]
    """
    arguments = locals()
    from kcal.cli.data import Source
    from kcal.cli.explanations import (
        check_plot,
        chosen_rows,
        explanation_to_json,
        show_explanation,
        write_plot,
        write_shares,
    )
    from kcal.cli.files import require_pyarrow
    from kcal.cli.output import check_writable
    from kcal.cli.samples import explain_dataset, load_to_predict
    from kcal.errors import InvalidInputError
    from kcal.files import write_whole
    from kcal.persistence import load_calibrator

    check_options((row and id_, "--row and --id choose rows in two ways; give one of them."))
    inputs, json_path = (model, data, logits, ids), None if json_file in (None, "-") else Path(str(json_file))
    if csv is not None:
        check_writable(csv, (".csv",), inputs=inputs, option="--csv")
        require_pyarrow()
    if json_path is not None:
        check_writable(json_path, inputs=inputs, option="--json")
    if plot is not None:
        check_plot(plot, inputs)
    calibrator = load_calibrator(model)
    if not calibrator.has_explanations:
        remedy = "Fit kcal, kcal-logits or kcal-blend."
        got = f"{model}, of method {calibrator.method}"
        raise InvalidInputError("MODEL", "must predict from calibration samples", got=got, remedy=remedy)
    takes_both = calibrator.inputs == "both" and calibrator.needs_logits_
    unused = f"--logits has no effect here: {model} was not fitted on embeddings and logits."
    check_options((logits and not takes_both, unused))
    source = Source.from_options(data, arguments, prefixes=("", "test_"))
    samples = load_to_predict(calibrator, source, keys=("ids",))
    source.check_used()
    rows = chosen_rows(samples, row, id_)
    explanation = explain_dataset(calibrator, samples, rows, k)
    names = None if samples.ids is None else samples.ids[rows]
    if json_file == "-":
        typer.echo(explanation_to_json(explanation, rows, names))
    else:
        show_explanation(explanation, rows, names)
    if json_path is not None:
        write_whole(json_path, f"{explanation_to_json(explanation, rows, names)}\n".encode())
    if csv is not None:
        write_shares(csv, explanation, rows, names)
    if plot is not None:
        write_plot(plot, explanation, rows, names)
