"""The command ``kcal predict``: calibrated probabilities for new data."""

from __future__ import annotations

from typing import Annotated

import typer

from kcal.cli import options as o
from kcal.cli.arrays_out import (
    Predictions,
    check_predictions_file,
    named_output,
    refuse_to_replace,
    write_predictions,
)
from kcal.cli.model_inputs import read_for
from kcal.cli.samples import VECTORS
from kcal.cli.tables import show_predicted
from kcal.errors import InvalidInputError
from kcal.persistence import load


def predict(
    model: o.Model,
    data: o.Data,
    out: o.Out,
    evidence: Annotated[
        bool,
        typer.Option(
            "--evidence", help="Add log_evidence: low for samples far from all that was calibrated (kcal only)."
        ),
    ] = False,
    quiet: o.Quiet = False,
    ids: o.Ids = None,
    label_column: o.LabelColumn = None,
    id_column: o.IdColumn = None,
    feature_columns: o.FeatureColumns = None,
    logit_columns: o.LogitColumns = None,
) -> None:
    """Write calibrated probabilities for new data, as npz, npy, parquet or csv by the suffix of FILE.

    Tables get a column [cyan]prediction[/] and a column [cyan]p_CLASS[/] for each class; npz files the keys
    [cyan]prediction, probabilities, classes[/]; npy files nothing but the probabilities. Ids are carried over.
    Keys of an npz file may begin with [cyan]test_[/].

    [bold]Example[/]

    [green]kcal predict model.kcal new.npz --out probabilities.csv[/]
    """
    check_predictions_file(out, evidence=evidence)
    refuse_to_replace(out, model, data, ids)
    calibrator = load(model)
    if evidence and not hasattr(calibrator, "log_evidence"):
        raise InvalidInputError(f"--evidence needs a kcal model; {model} holds method {calibrator.method}.")
    columns = {"labels": label_column, "ids": id_column, "features": feature_columns, "logits": logit_columns}
    source = o.source_of(data, columns=columns, files={"ids": ids}, prefixes=("", "test_"))
    samples = read_for(calibrator, source, vectors=("ids",))
    predictions = Predictions(
        probabilities=calibrator.predict_proba(samples.matrix),
        classes=calibrator.classes_,
        ids=samples.ids,
        id_column=id_column or VECTORS["ids"],
        log_evidence=calibrator.log_evidence(samples.matrix) if evidence else None,
    )
    with named_output(out):
        write_predictions(out, predictions)
    if not quiet:
        show_predicted(predictions, out)
