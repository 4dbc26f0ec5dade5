"""The command ``kcal task``: make a benchmark task from a network's outputs, or check one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from kcal.benchmark import read_task, write_task
from kcal.cli import options as o
from kcal.cli.class_order import classes_to_fit, encode, name_labels
from kcal.cli.data import Dataset, Request, Source, load
from kcal.cli.messages import usage_error
from kcal.cli.output import check_writable, console
from kcal.errors import InvalidInputError, printable


def task(
    path: Annotated[Path, typer.Argument(metavar="NAME.npz", help="The task to make or to check.", show_default=False)],
    train: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Outputs for the network's training data.", show_default=False)
    ] = None,
    pool: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Outputs for data that it never saw.", show_default=False)
    ] = None,
    out_of_scope: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Outputs for inputs that belong to no class.", show_default=False),
    ] = None,
    share: Annotated[float, typer.Option(help="Share of the pool that calibrates in each split.")] = 0.3,
    classes: o.Classes = None,
    label_column: o.LabelColumn = None,
    group_column: o.GroupColumn = None,
    feature_columns: o.FeatureColumns = None,
    logit_columns: o.LogitColumns = None,
) -> None:
    """Make a task for kcal bench from a network's embeddings, logits and labels, or check an existing one.

    [bold]Examples[/]

    [green]kcal task tasks/mine.npz --train train.npz --pool unseen.npz --share 0.3[/]

    [green]kcal task tasks/mine.npz[/]
    """
    if train is None and pool is None:
        console().print(printable(read_task(path)), markup=False)
        return
    if train is None or pool is None:
        raise usage_error("a task is made from both --train and --pool; with neither, NAME.npz is checked.")
    if not 0 < share < 1:
        raise usage_error(f"--share must be between 0 and 1; got {share:g}.")
    check_writable(path, (".npz",), inputs=(train, pool, out_of_scope), option="NAME.npz")
    columns = {"features": feature_columns, "logits": logit_columns}
    labelled = {"labels": label_column, "groups": group_column, **columns}
    parts = [
        _load(o.source_of(file, columns=labelled, prefixes=("", prefix), classes=classes))
        for file, prefix in ((train, "train_"), (pool, "pool_"))
    ]
    names = _class_names(parts)
    outputs = [replace(part.outputs, labels=encode(part, names)) for part in parts]
    outside = None
    if out_of_scope is not None:
        source = o.source_of(out_of_scope, columns=columns, prefixes=("", "out_of_scope_"))
        outside = _load(source, labelled=False).outputs
    names_as_text = [str(name) for name in names.tolist()]
    made = write_task(path, *outputs, calibration_share=share, classes=names_as_text, out_of_scope=outside)
    console().print(printable(made), markup=False)


def _load(source: Source, *, labelled: bool = True) -> Dataset:
    keys = ("labels", "groups") if labelled else ()
    data = load(source, Request("embeddings", logits=True, keys=keys, labelled=labelled))
    if data.outputs.logits is None:
        raise InvalidInputError(
            data.name, "has no logits; a task needs them", remedy="In a table, name their columns with --logit-columns."
        )
    return name_labels(data) if labelled else data


def _class_names(parts: list[Dataset]) -> NDArray[Any]:
    """Return the class of every column of the logits, the same in both files."""
    orders = []
    for data in parts:
        names = classes_to_fit(data, "logits")
        orders.append(np.arange(data.outputs.logits.shape[1]) if names is None else names)
    if orders[0].tolist() != orders[1].tolist():
        raise InvalidInputError(
            f"{parts[0].name} and {parts[1].name}",
            "must list the same classes in the same order",
            remedy="Pass --classes.",
        )
    return orders[0]
