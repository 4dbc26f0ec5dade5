"""The command ``prepare``: read a data set as its owners distribute it and write it for the networks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from experiments.paper.data import DATA_SETS
from experiments.paper.data.sources import MissingDataError
from experiments.paper.prepared import PARTS, PreparedData
from kcal.benchmark.table import Entry, Table
from kcal.errors import InvalidInputError, printable

MAX_CLASSES = 20
"""Classes with a row each; of more, the table shows the smallest and the largest."""


def prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(DATA_SETS)}.")],
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="The folder (or file) of the data set.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Write the prepared data there.")],
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same split.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no table.")] = False,
) -> None:
    """Read a data set as its owners distribute it and write inputs, labels and splits for training."""
    if name not in DATA_SETS:
        raise InvalidInputError("NAME", f"must be one of {', '.join(DATA_SETS)}", got=name)
    data_set = DATA_SETS[name]
    try:
        if not source.exists():
            raise data_set.layout.missing(source.parent, source.name)
        data = data_set.prepare(source, out, seed=seed, show=False if quiet else None)
    except MissingDataError as error:
        typer.secho("error: ", err=True, nl=False, bold=True, fg="red")
        for line in str(error).splitlines():
            typer.echo(printable(line), err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt("nothing was completed; the same command begins again.") from stop
    if not quiet:
        console = Console(highlight=False)
        for table in count_table(data).fitting(console.width):
            console.print(table.as_rich())
    typer.echo(f"{data.name} is in {out}")


def count_table(data: PreparedData) -> Table:
    """Return the number of samples of each class, and of groups, with a column for each part."""
    masks = part_masks(data)
    sizes = np.stack([np.bincount(data.labels[mask], minlength=len(data.classes)) for mask in masks.values()], axis=1)
    if len(data.classes) <= MAX_CLASSES:
        rows = dict(zip(data.classes, sizes, strict=True))
    else:
        rows = {"smallest class": sizes.min(axis=0), "largest class": sizes.max(axis=0)}
    rows["all"] = sizes.sum(axis=0)
    if data.groups is not None:
        rows["groups"] = np.array([len(np.unique(data.groups[mask])) for mask in masks.values()])
    return Table(
        name="counts",
        title=f"{data.name}: {len(data.classes):,} classes, {data.kind} of shape {tuple(data.inputs.shape[1:])}",
        heading=("samples", *masks),
        rows=tuple((Entry(name), *(Entry(f"{number:,}") for number in numbers)) for name, numbers in rows.items()),
    )


def part_masks(data: PreparedData) -> dict[str, NDArray[np.bool_]]:
    """Return where each part is, with a part of its own for the samples that were added to the training set."""
    masks = {part: np.asarray(data.parts == number) for number, part in enumerate(PARTS)}
    if data.oversampled is not None:
        masks = {"train": masks.pop("train"), "added to train": np.asarray(data.oversampled), **masks}
    return masks
