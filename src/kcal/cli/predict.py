"""The commands ``kcal predict``, calibrated probabilities for new data, and ``kcal explain``, what they come from."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from glob import has_magic
from pathlib import Path
from typing import Any

import typer
from rich.filesize import decimal

import kcal
from kcal.cli import data as inputs
from kcal.cli import options
from kcal.cli.messages import check_options
from kcal.cli.output import Result, check_writable, line, shown_log, write_table
from kcal.errors import printable

FORMATS = (".npz", ".npy", ".parquet", ".csv")
FIGURES = (".png", ".pdf", ".svg")
SHOWN_ROWS = 3
"""Rows that kcal explain shows, at most."""


@options.takes(options.OUTPUT, options.MATRICES | options.IDS)
def predict(
    model: options.Model,
    data: options.SeveralData,
    out: options.PredictionsOut,
    evidence: options.Evidence = False,
    engine: options.Engine = "local",
    address: options.Address = None,
    workers: options.Workers = None,
    **shared: options.Shared,
) -> Result:
    """Write calibrated probabilities for new data, as npz, npy, parquet or csv by the suffix of FILE.

    Tables get a column [cyan]prediction[/] and a column [cyan]p_CLASS[/] for each class; npz files the arrays
    [cyan]prediction, probabilities, classes[/]; npy files only the probabilities. Ids are copied. A model that was
    fitted on a table finds its columns by their names. A kcal-blend that was fitted with logits needs them here too.

    Several parquet files, named by their folder or by a pattern in quotes, are scored part by part into a folder of
    parquet files, here or on the machines of a Ray cluster. If that is stopped, the same command continues it.

    [bold]Examples[/]

    [green]kcal predict model.kcal new.npz --out probabilities.csv[/]

    [green]kcal predict model.kcal 'data/*.parquet' --engine ray --out scores[/]
    """
    check_options(
        (not (data.exists() or has_magic(str(data))), f"DATA {str(data)!r} does not exist."),
        (engine != "ray" and (address or workers), "--address and --workers have no effect without --engine ray."),
    )
    if engine == "ray" or is_several(data):
        return predict_files(model, data, out, evidence, engine, (workers, address), shared)
    suffix = out.suffix.lower()
    unused = evidence and suffix == ".npy"
    check_options((unused, "--evidence has no effect: npy files have only probabilities. Use npz."))
    check_writable(out, FORMATS)
    if suffix == ".parquet":
        kcal.embeddings.read.require_pyarrow()
    calibrator = load_predictor(model, evidence)
    outputs = inputs.read_for(calibrator, data, shared, () if suffix == ".npy" else ("ids",))
    probs = kcal.predict_on(calibrator, outputs)
    shares = calibrator.evidence(outputs.matrix(calibrator.inputs)) if evidence else None
    write_predictions(out, probs, calibrator.classes_, outputs, shares)
    text = f"{out}: {len(probs):,} rows of {probs.shape[1]:,} probabilities, {decimal(out.stat().st_size)}"
    return line(text, file=out, n_rows=len(probs), classes=calibrator.classes_.tolist())


def load_predictor(model: Path, evidence: bool) -> Any:
    """Load a model; raise if it has no evidence to add."""
    calibrator = kcal.persistence.load_calibrator(model)
    if evidence and not calibrator.tags.has_evidence:
        raise kcal.InvalidInputError("--evidence", "needs a kcal model", got=f"one of method {calibrator.method}")
    return calibrator


def write_predictions(path: Path, probs: Any, classes: Any, outputs: Any, evidence: Any) -> None:
    """Write probabilities (n, n_classes) in the format of the suffix; npy has only these, the others also the rest."""
    import numpy as np

    from kcal.distributed.tables import prediction_columns

    suffix = path.suffix.lower()
    if suffix == ".npz":
        arrays = {"ids": outputs.ids, "prediction": classes[probs.argmax(axis=1)], "probabilities": probs}
        arrays |= {"classes": classes, "evidence": evidence}
        kcal.files.write_arrays(path, {name: values for name, values in arrays.items() if values is not None})
    elif suffix == ".npy":
        with kcal.files.atomic_path(path) as temporary, temporary.open("wb") as file:
            np.save(file, probs, allow_pickle=False)
    else:
        (id_column,) = outputs.columns.get("ids", ("id",))
        write_table(path, prediction_columns(probs, classes, ids=outputs.ids, id_column=id_column, evidence=evidence))


def is_several(data: Path) -> bool:
    """Return whether a path is a pattern or a folder of tables, not a file or a folder of ``kcal.extract``."""
    if data.is_dir():
        return not (data / "outputs.json").exists()
    return has_magic(str(data)) and not data.exists()


def predict_files(
    model: Path,
    data: Path,
    out: Path,
    evidence: bool,
    engine: str,
    workers: tuple[int | None, str | None],
    shared: Mapping[str, Any],
) -> Result:
    """Run ``kcal predict`` on several parquet files, part by part; ``workers`` are their number and address."""
    from kcal.distributed import Columns, Workers
    from kcal.distributed import predict as predict_parts
    from kcal.distributed.engine import require_ray
    from kcal.distributed.tables import InputFile, find_files
    from kcal.embeddings.read import class_names, classes_of, match_columns, require_pyarrow

    (require_ray if engine == "ray" else require_pyarrow)()
    calibrator = load_predictor(model, evidence)
    files = find_files(data)
    available = list(InputFile.read(files[0]).columns)
    needs = kcal.calibrators.columns_of_fit(calibrator)
    inputs.check_unused(shared, {*needs, "ids"})
    ids = next(iter(match_columns("ids", shared["ids"] or "ids", available)), None)
    columns = []
    for part, fitted in needs.items():
        found = match_columns(part, shared[part] or fitted or part, available, (ids or "",))
        if not found:
            problem, remedy = f"has no {part}; it has {', '.join(available)}", f"Name their columns with --{part}."
            raise kcal.InvalidInputError(str(files[0]), problem, remedy=remedy)
        labels = classes_of(class_names(found, shared[part] or part)) if part == "logits" else None
        order = kcal.calibrators.outputs.column_order(part, found, labels, names=fitted, classes=calibrator.classes_)
        columns.append(tuple(found[place] for place in order) if order else found)
    with shown_log("kcal.distributed", shared["quiet"]):
        result = predict_parts(
            files,
            calibrator,
            out,
            columns=Columns(columns[0], columns[1] if columns[1:] else (), ids, ids or "id"),
            evidence=evidence,
            engine=engine,
            workers=Workers(workers[0], address=workers[1]),
            progress=False if shared["quiet"] else None,
        )
    return line(result, folder=result.folder, n_rows=result.n_rows, n_parts=result.n_parts)


@options.takes(options.OUTPUT, options.MATRICES | options.IDS)
def explain(
    model: options.Model,
    data: options.Data,
    row: options.ExplainedRows = None,
    id_: options.ExplainedIds = None,
    k: options.SampleCount = 5,
    plot: options.Plot = None,
    csv: options.Csv = None,
    **shared: options.Shared,
) -> Result:
    """Show why a probability was given: its most influential calibration samples, by kcal, kcal-logits or kcal-blend.

    Each sample has a share of the probability of its class. With all other samples and what is not a sample (the
    network and its refitted last layer of a kcal-blend; smoothing) the shares of a column sum to the probability. Of a
    kcal-blend the contributions to the log-odds of the two most probable classes are shown, too. Without
    [cyan]--row[/] and [cyan]--id[/] all rows are explained, and the first ones shown. Samples have the ids of kcal fit,
    or row numbers of the calibration set.

    [bold]Examples[/]

    [green]kcal explain model.kcal new.npz --row 17 --plot why.png[/]

    [green]kcal explain model.kcal new.csv --id patient-3 -k 10 --csv why.csv[/]
    """
    check_options((row and id_, "--row and --id choose rows in two ways; give one of them."))
    check_writable(csv, (".csv",), option="--csv")
    check_writable(plot, FIGURES, option="--plot")
    if plot is not None:
        from kcal import plots
    calibrator: Any = kcal.persistence.load_calibrator(model)
    if not calibrator.tags.has_explanations:
        got = f"{model}, of method {calibrator.method}"
        remedy = "Fit kcal, kcal-logits or kcal-blend."
        raise kcal.InvalidInputError("MODEL", "must predict from calibration samples", got=got, remedy=remedy)
    outputs = inputs.read_for(calibrator, data, shared, ("ids",))
    rows = chosen_rows(outputs, data, row, id_)
    outputs = outputs.select(rows)
    beside = {"logits": outputs.logits} if calibrator.inputs == "both" and calibrator.tags.needs_logits else {}
    explanation = calibrator.explain(outputs.matrix(calibrator.inputs), k, **beside)
    explanation = replace(explanation, numbers=rows)
    names = {} if outputs.ids is None else dict(zip(rows.tolist(), outputs.ids.tolist(), strict=True))
    if csv is not None:
        frame = explanation.to_frame()
        if names:
            frame.insert(1, "row_id", frame["row"].map(names))
        write_table(csv, {name: frame[name].to_numpy() for name in frame})
    if plot is not None:
        title = with_id(explanation.heading(), names, rows[0])
        axes = plots.explanation(explanation, 0, title=plots.style.wrap_label(title))
        with kcal.files.atomic_path(plot) as temporary:
            figure: Any = axes.get_figure(root=True)
            figure.savefig(temporary, format=plot.suffix[1:].lower(), dpi=150)
    entries = explanation.to_dict()
    if names:
        entries = [{"row": row, "id": names[row]} | entry for row, entry in zip(rows.tolist(), entries, strict=True)]

    def show() -> None:
        for one in itertools.islice(explanation, SHOWN_ROWS):
            typer.echo(f"{with_id(str(one), names, one.numbers.item())}\n")
        if len(rows) > SHOWN_ROWS:
            typer.echo(f"and {len(rows) - SHOWN_ROWS:,} more; --csv FILE and --json FILE have all, --row N shows one.")

    return Result(entries, show)


def with_id(text: str, names: Mapping[int, Any], row: int) -> str:
    """Return a text about a row that begins with its number, with its id after it: "row 14 (id 5312): Coat"."""
    return text.replace(f"row {row}:", f"row {row} (id {printable(names[row])}):", 1) if row in names else text


def chosen_rows(outputs: Any, path: Path, rows: Sequence[int] | None, ids: Sequence[str] | None) -> Any:
    """Return the rows that the user chose by number or by id, in this order; all rows without a choice."""
    import numpy as np

    last = inputs.n_rows(outputs) - 1
    if rows and max(rows) > last:
        raise kcal.InvalidInputError("--row", f"must be a row of {path}, 0 to {last:,}", got=f"{max(rows):,}")
    if not ids:
        return np.array(rows or range(last + 1))
    if outputs.ids is None:
        raise kcal.InvalidInputError("--id", f"needs ids, and {path} has none", remedy="Name them with --ids.")
    places = [np.flatnonzero(outputs.ids.astype(str) == name) for name in ids]
    for name, found in zip(ids, places, strict=True):
        if len(found) != 1:
            got = f"{name!r}, which it has {len(found):,} times"
            raise kcal.InvalidInputError("--id", f"must be an id that {path} has once", got=got)
    return np.concatenate(places)
