"""The command ``kcal task``: make a benchmark task from a network's outputs, or check one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from kcal.benchmark import read_task, write_task
from kcal.calibrators import ClassifierOutputs
from kcal.cli import options as o
from kcal.cli.arrays_out import check_writable, named_output, refuse_to_replace
from kcal.cli.class_order import classes_to_fit, name_labels
from kcal.cli.samples import Samples, Source, read_samples
from kcal.cli.tables import console
from kcal.errors import InvalidInputError
from kcal.validation import encode_labels


def task(
    path: Annotated[
        Path, typer.Argument(metavar="NAME.npz", help="The task: to make, or to check.", show_default=False)
    ],
    train: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Outputs for the network's training data.", show_default=False)
    ] = None,
    pool: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Outputs for unseen data.", show_default=False)
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
    screen = console()
    if train is None and pool is None:
        screen.print(str(read_task(path)), markup=False)
        return
    if train is None or pool is None:
        raise typer.BadParameter("a task needs both --train and --pool; with neither, NAME.npz is checked.")
    if not 0 < share < 1:
        raise typer.BadParameter(f"--share must lie between 0 and 1; got {share:g}.")
    check_writable(path, (".npz",))
    refuse_to_replace(path, *(file for file in (train, pool, out_of_scope) if file is not None))
    columns = {"labels": label_column, "groups": group_column, "features": feature_columns, "logits": logit_columns}
    read = [
        _read(o.source_of(file, columns=columns, prefixes=("", prefix), classes=classes))
        for file, prefix in ((train, "train_"), (pool, "pool_"))
    ]
    names = _class_names(read)
    parts = [
        ClassifierOutputs(
            samples.matrix,
            samples.logits,
            encode_labels(samples.true_labels, names, f"{samples.name}: labels"),
            samples.groups,
        )
        for samples in read
    ]
    outside = None
    if out_of_scope is not None:
        columns = {"features": feature_columns, "logits": logit_columns}
        samples = _read(o.source_of(out_of_scope, columns=columns, prefixes=("", "out_of_scope_")), labelled=False)
        outside = ClassifierOutputs(samples.matrix, samples.logits)
    with named_output(path):
        made = write_task(
            path,
            *parts,
            calibration_share=share,
            classes=[str(name) for name in names.tolist()],
            out_of_scope=outside,
        )
    screen.print(str(made), markup=False)


def _read(source: Source, *, labelled: bool = True) -> Samples:
    vectors = ("labels", "groups") if labelled else ()
    samples = read_samples(source, inputs="embeddings", vectors=vectors, labelled=labelled, with_logits=True)
    if samples.logits is None:
        raise InvalidInputError(
            samples.name, "must hold logits", remedy="In a table, name their columns with --logit-columns."
        )
    return name_labels(samples) if labelled else samples


def _class_names(read: list[Samples]) -> np.ndarray:
    """Return the class of every column of the logits, the same for both files."""
    names = []
    for samples in read:
        classes = classes_to_fit(samples, "logits")
        assert samples.logits is not None
        names.append(np.arange(samples.logits.shape[1]) if classes is None else classes)
    if names[0].tolist() != names[1].tolist():
        raise InvalidInputError(
            f"{read[0].name} and {read[1].name}",
            "must list the same classes in the same order",
            remedy="Pass --classes.",
        )
    return names[0]
