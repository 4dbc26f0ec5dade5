"""The command ``kcal predict``: calibrated probabilities for new data."""

from __future__ import annotations

from kcal.cli import options
from kcal.cli.messages import check_options


def predict(
    model: options.Model,
    data: options.SeveralData,
    out: options.PredictionsOut,
    evidence: options.Evidence = False,
    engine: options.Engine = "local",
    address: options.Address = None,
    workers: options.Workers = None,
    quiet: options.Quiet = False,
    logits: options.LogitsBeside = None,
    ids: options.Ids = None,
    label_column: options.LabelColumn = None,
    id_column: options.IdColumn = None,
    feature_columns: options.FeatureColumns = None,
    logit_columns: options.LogitColumns = None,
) -> None:
    """Write calibrated probabilities for new data, as npz, npy, parquet or csv by the suffix of FILE.

    Tables get a column [cyan]prediction[/] and a column [cyan]p_CLASS[/] for each class; npz files the keys
    [cyan]prediction, probabilities, classes[/]; npy files only the probabilities. Ids are copied. Keys of an npz file
    may begin with [cyan]test_[/]. A kcal-blend that was fitted with logits needs them here too.

    Several parquet files, named by their folder or by a pattern in quotes, are scored part by part into a folder of
    parquet files, here or on the machines of a Ray cluster. If that is stopped, the same command continues it.

    [bold]Examples[/]

    [green]kcal predict model.kcal new.npz --out probabilities.csv[/]

    [green]kcal predict model.kcal 'data/*.parquet' --engine ray --out scores[/]
    """
    arguments = locals()
    from kcal.cli.partitioned import ENGINES, names_several, predict_files

    check_options(
        (engine not in ENGINES, f"--engine must be one of {', '.join(ENGINES)}; got {engine!r}."),
        (engine != "ray" and (address or workers), "--address and --workers have no effect without --engine ray."),
    )
    if engine == "ray" or names_several(data):
        predict_files(arguments)
        return
    from rich.filesize import decimal

    from kcal.cli.data import Source
    from kcal.cli.files import SUFFIXES, TABLES, require_pyarrow
    from kcal.cli.output import check_writable, console, shown, write_predictions
    from kcal.cli.samples import load_to_predict, predict_dataset
    from kcal.errors import InvalidInputError
    from kcal.persistence import load_calibrator

    check_writable(out, SUFFIXES, inputs=(model, data, logits, ids))
    suffix = out.suffix.lower()
    if suffix in TABLES:
        require_pyarrow()
    unused = f"--evidence has no effect with {str(out)!r}: npy files have only probabilities. Use npz."
    check_options((evidence and suffix == ".npy", unused))
    calibrator = load_calibrator(model)
    if evidence and not calibrator.has_evidence:
        raise InvalidInputError("--evidence", f"needs a kcal model; {model} is of method {calibrator.method}")
    takes_both = calibrator.inputs == "both" and calibrator.needs_logits_
    unused = f"--logits has no effect here: {model} was not fitted on embeddings and logits."
    check_options((logits and not takes_both, unused))
    source = Source.from_options(data, arguments, prefixes=("", "test_"))
    samples = load_to_predict(calibrator, source, keys=() if suffix == ".npy" else ("ids",))
    source.check_used()
    probs = predict_dataset(calibrator, samples)
    shares = calibrator.evidence(samples.matrix(calibrator.inputs)) if evidence else None
    ids_column, names = id_column or "id", samples.ids
    write_predictions(out, probs, calibrator.classes_, ids=names, id_column=ids_column, evidence=shares)
    if not quiet:
        n_rows, n_classes = probs.shape
        text = f"{out}: {n_rows:,} rows of {n_classes:,} probabilities, {decimal(out.stat().st_size)}"
        console().print(shown(text), soft_wrap=True)
