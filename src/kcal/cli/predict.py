"""The command ``kcal predict``: calibrated probabilities for new data."""

from __future__ import annotations

from typing import Annotated

import typer

from kcal.cli import options as o
from kcal.cli.data import COLUMNS
from kcal.cli.files import SUFFIXES, TABLES, require_pyarrow
from kcal.cli.fitting import load_to_predict, predict_dataset
from kcal.cli.messages import usage_error
from kcal.cli.output import check_writable, write_predictions
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
            "--evidence",
            help="Add log_evidence, the log density of the calibration set at each sample (kcal methods): low far from "
            "all calibration samples.",
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
    [cyan]prediction, probabilities, classes[/]; npy files only the probabilities. Ids are copied. Keys of an npz file
    may begin with [cyan]test_[/]. A kcal-blend that was fitted with logits needs them here too.

    [bold]Example[/]

    [green]kcal predict model.kcal new.npz --out probabilities.csv[/]
    """
    check_writable(out, SUFFIXES, inputs=(model, data, logits, ids))
    if out.suffix.lower() in TABLES:
        require_pyarrow()
    if evidence and out.suffix.lower() == ".npy":
        raise usage_error(f"--evidence has no effect with {str(out)!r}: npy files have only probabilities. Use npz.")
    calibrator = load(model)
    if evidence and not calibrator.has_evidence:
        raise InvalidInputError("--evidence", f"needs a kcal model; {model} is of method {calibrator.method}")
    if logits is not None and not (calibrator.inputs == "both" and calibrator.needs_logits_):
        raise usage_error(f"--logits has no effect here: {model} was not fitted on embeddings and logits.")
    columns = {"labels": label_column, "ids": id_column, "features": feature_columns, "logits": logit_columns}
    source = o.source_of(data, columns=columns, files={"ids": ids, "logits": logits}, prefixes=("", "test_"))
    samples = load_to_predict(calibrator, source, keys=("ids",))
    rows = samples.outputs.matrix(calibrator.inputs)
    probs = predict_dataset(calibrator, samples)
    write_predictions(
        out,
        probs,
        calibrator.classes_,
        ids=samples.outputs.ids,
        id_column=id_column or COLUMNS["ids"],
        log_evidence=calibrator.log_evidence(rows) if evidence else None,
    )
    if not quiet:
        show_predicted(probs, out)
