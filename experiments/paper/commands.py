"""The commands ``prepare``, ``train``, ``embed``, ``bench`` and ``results`` of ``python -m experiments.paper``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from experiments.paper.checkpoints import Checkpoint
from experiments.paper.data import DATA_SETS
from experiments.paper.data.sources import MissingDataError
from experiments.paper.networks import NETWORKS
from experiments.paper.prepared import PARTS, PreparedData
from experiments.paper.settings import LOSSES
from kcal.benchmark.table import Entry, Table
from kcal.errors import InvalidInputError, printable
from kcal.validation import check_choice

Data = Annotated[Path, typer.Argument(metavar="DATA", help="Folder of prepared data.")]
Run = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="NAME.pt; a run that was stopped resumes.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No lines, no progress bar.")]
MAX_CLASSES = 20
"""Classes with a row each; of more, the table shows the smallest and the largest."""
LossName = StrEnum("LossName", {name: name for name in LOSSES})  # type: ignore[misc]
NetworkName = StrEnum("NetworkName", {name: name for name in NETWORKS})  # type: ignore[misc]


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
        console.print(count_table(data).as_text(console.width), markup=False)
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


def train(
    data: Data,
    out: Run,
    network: Annotated[NetworkName | None, typer.Option(help="Another network than that of the table.")] = None,
    loss: Annotated[LossName, typer.Option(help="All but cross-entropy train a companion.")] = LossName[
        "cross-entropy"
    ],
    short: Annotated[bool, typer.Option("--short", help="Few epochs, for a processor (pn2017).")] = False,
    epochs: Annotated[int | None, typer.Option(min=0, help="Other epochs than those of the table.")] = None,
    rate: Annotated[float | None, typer.Option(min=0, help="Another learning rate.")] = None,
    balance: Annotated[float | None, typer.Option(min=0, max=1, help="1: all classes equally often, 0: as is.")] = None,
    keep: Annotated[str | None, typer.Option(help="Checkpoint to use: last or best.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same result.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Train the network of a data set as the paper does."""
    from experiments.paper.prepared import read_prepared
    from experiments.paper.settings import settings_for
    from experiments.paper.training import train as train_network

    prepared = read_prepared(data)
    changes: dict[str, Any] = {
        "network": None if network is None else network.value,
        "epochs": epochs,
        "learning_rate": rate,
    }
    changes |= {"balance": balance, "keep": keep if keep is None else check_choice(keep, "keep", ("last", "best"))}
    settings = settings_for(prepared.name, short=short, **changes)
    console = Console(highlight=False, soft_wrap=True)
    try:
        checkpoint = train_network(
            prepared,
            settings,
            out,
            loss=loss.value,
            seed=seed,
            report=None if quiet else lambda record: console.print(line_of(record), markup=False),
            progress=False if quiet else None,
        )
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"epochs so far are kept in {out}; the same command resumes.") from stop
    if not quiet:
        console.print(f"{out} holds the network after epoch {checkpoint.chosen_epoch}.", markup=False)


def line_of(record: dict[str, Any]) -> str:
    """Return the record of an epoch as a line."""
    text = f"epoch {record['epoch']}: rate {record['learning_rate']:.2e}, training loss {record['train_loss']:.4f}"
    if "macro_f1" in record:
        classes = ", ".join(f"{value:.3f}" for value in record["f1"])
        text += f"; validation: macro-F1 {record['macro_f1']:.4f} ({classes}), accuracy {record['accuracy']:.4f}"
        text += f", log-loss {record['log_loss']:.4f}"
    return f"{text}; {record['seconds']:.0f} s"


def embed(
    data: Data,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="NAME.pt of a run with the loss cross-entropy.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The task, NAME.npz.")],
    companion: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="Runs with the losses focal and mmce.")
    ] = None,
    share: Annotated[float | None, typer.Option(help="Another share of the samples to calibrate with.")] = None,
    quiet: Quiet = False,
) -> None:
    """Write the outputs of trained networks as a task that kcal bench reads."""
    from experiments.paper import embedding
    from experiments.paper.checkpoints import read_checkpoint
    from experiments.paper.evaluation import evaluate_part
    from experiments.paper.prepared import read_prepared

    prepared = read_prepared(data)
    console = Console(highlight=False, soft_wrap=True, quiet=quiet)
    runs = [finished(read_checkpoint(path), path) for path in (run, *(companion or ()))]
    task = embedding.embed(runs[0], prepared, out, share=share)
    console.print(printable(task), markup=False)
    for other in runs[1:]:
        console.print(f"companion {embedding.embed_companion(other, prepared, out)}", markup=False)
    for checkpoint in runs:
        console.print(f"{checkpoint.description['loss']}: {checkpoint.summary}", markup=False)
        network = checkpoint.chosen_network(prepared)
        for part in ("validation", "pool"):
            scores = evaluate_part(network, prepared, checkpoint.settings, part)
            console.print(f"{checkpoint.description['loss']}, {part}: {scores or 'no samples'}", markup=False)


def finished(checkpoint: Checkpoint, path: Path) -> Checkpoint:
    """Return a checkpoint; raise if its run has not ended."""
    if not checkpoint.is_finished:
        n_epochs, done = checkpoint.settings.all_epochs, len(checkpoint.history)
        remedy = "Run the command train again: it goes on."
        raise InvalidInputError("run", f"must have all {n_epochs} epochs", got=f"{done} in {path}", remedy=remedy)
    return checkpoint


def bench(
    tasks: Annotated[Path, typer.Argument(metavar="TASKS", help="Folder of tasks.")],
    methods: Annotated[str, typer.Option(metavar="NAMES", help="Those of kcal bench, and dircal-paper.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="A run that was stopped resumes.")],
    splits: Annotated[int, typer.Option(min=1, help="Random splits per task.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the splits.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    quiet: Quiet = False,
) -> None:
    """Run methods on tasks as kcal bench does; dircal-paper, Dirichlet calibration as published, is among them."""
    from experiments.paper.dirichlet import in_parallel_with_method
    from kcal.benchmark import Plan, Results, check_tasks, read_tasks, run
    from kcal.benchmark.tables import write_results
    from kcal.progress import show_progress

    plan = Plan(tuple(methods.split(",")), splits, seed, jobs)
    check_tasks(tasks)
    with show_progress(quiet) as progress:
        measured = run(read_tasks(tasks), plan, out, progress=progress, parallel=in_parallel_with_method)
    write_results(Results.of(measured, plan.methods), plan, out)


def results(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of kcal bench.")],
    data_set: Annotated[str, typer.Option(help="Whose rows of the paper to show.")] = "pn2017",
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write a page in Markdown.")] = None,
    quiet: Quiet = False,
) -> None:
    """Show results of kcal bench beside the rows that the paper prints, and what differs."""
    from experiments.__main__ import print_table
    from experiments.paper.published import DIFFERENCES
    from experiments.paper.results import as_page, comparison_tables
    from kcal.benchmark.results import Results
    from kcal.files import write_whole

    measured = Results.read(folder / "results.json")
    tables = comparison_tables(measured, data_set)
    console = Console(highlight=False, quiet=quiet)
    for table in tables:
        print_table(console, table.transposed())
    console.print("\n".join(f"- {text}" for text in DIFFERENCES.get(data_set, ())), markup=False)
    if out is not None:
        write_whole(out, as_page(tables, data_set).encode())
