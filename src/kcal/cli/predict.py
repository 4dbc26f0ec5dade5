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
from kcal.cli.model_inputs import predicted, read_for, takes_both
from kcal.cli.samples import VECTORS
from kcal.cli.tables import show_predicted
from kcal.errors import InvalidInputError
from kcal.persistence import load

EVIDENCE = ("log_evidence", "evidence")
"""What a calibrator may call how near the samples lie to what it was fitted on; the column is called likewise."""


def predict(
    model: o.Model,
    data: o.Data,
    out: o.Out,
    evidence: Annotated[
        bool,
        typer.Option(
            "--evidence",
            help="Add log_evidence (kcal) or evidence, a share (kcal-blend): low for samples far from all that was "
            "calibrated.",
        ),
    ] = False,
    quiet: o.Quiet = False,
    logits: o.LogitsBeside = None,
    ids: o.Ids = None,
    label_column: o.LabelColumn = None,
    id_column: o.IdColumn = None,
    feature_columns: o.FeatureColumns = None,
    logit_columns: o.LogitColumns = None,
) -> None:
    """Write calibrated probabilities for new data, as npz, npy, parquet or csv by the suffix of FILE.

    Tables get a column [cyan]prediction[/] and a column [cyan]p_CLASS[/] for each class; npz files the keys
    [cyan]prediction, probabilities, classes[/]; npy files nothing but the probabilities. Ids are carried over.
    Keys of an npz file may begin with [cyan]test_[/]. A kcal-blend that was fitted with logits needs them here too.

    [bold]Example[/]

    [green]kcal predict model.kcal new.npz --out probabilities.csv[/]
    """
    check_predictions_file(out, evidence=evidence)
    refuse_to_replace(out, model, data, logits, ids)
    calibrator = load(model)
    near = next((name for name in EVIDENCE if hasattr(calibrator, name)), None)
    if evidence and near is None:
        raise InvalidInputError(f"--evidence needs a kcal model; {model} holds method {calibrator.method}.")
    if logits is not None and not takes_both(calibrator):
        raise typer.BadParameter(f"--logits is of no use here: {model} was not fitted on embeddings and logits.")
    columns = {"labels": label_column, "ids": id_column, "features": feature_columns, "logits": logit_columns}
    source = o.source_of(data, columns=columns, files={"ids": ids, "logits": logits}, prefixes=("", "test_"))
    samples = read_for(calibrator, source, vectors=("ids",))
    predictions = Predictions(
        probabilities=predicted(calibrator, samples),
        classes=calibrator.classes_,
        ids=samples.ids,
        id_column=id_column or VECTORS["ids"],
        evidence={near: getattr(calibrator, near)(samples.matrix)} if evidence and near else {},
    )
    with named_output(out):
        write_predictions(out, predictions)
    if not quiet:
        show_predicted(predictions, out)
