"""The command ``kcal ablate``: studies of KCal on tasks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from kcal.benchmark import Task, example_task, read_tasks
from kcal.benchmark.ablations import SHARES, shape_table, study_shape, study_sizes
from kcal.benchmark.tables import Table
from kcal.cli.methods import one_of
from kcal.cli.tables import console
from kcal.persistence import write_whole
from kcal.progress import progress_bar, working

STUDIES = ("sizes", "convexity")


def ablate(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="sizes: metrics and bandwidth by calibration samples; convexity: the shape of the bandwidth's loss.",
            callback=one_of(STUDIES),
            show_default=False,
        ),
    ],
    tasks: Annotated[
        Path | None,
        typer.Argument(
            metavar="TASKS", help="A folder of tasks, NAME.npz; the embedded example if left out.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Write tables there.", show_default=False)
    ] = None,
    reshuffles: Annotated[int, typer.Option(min=1, help="How often a pool is dealt into calibration and test.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same result.")] = 0,
) -> None:
    """Study what KCal is made of, on the embedded example or on a folder of tasks.

    The variants of the method are compared by kcal bench --methods kcal,kcal-linear,kcal-logits,kcal-untrained.

    [bold]Examples[/]

    [green]kcal ablate sizes --reshuffles 3[/]

    [green]kcal ablate convexity tasks --out ablations[/]
    """
    found = [example_task()] if tasks is None else read_tasks(tasks)
    made = _sizes(found, reshuffles, seed) if study == "sizes" else _convexity(found, seed)
    for table in made:
        console().print(table.as_rich())
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        text = "\n".join(table.as_markdown() for table in made)
        console().print(f"Written to {write_whole(out / f'{study}.md', text.encode())}", markup=False)


def _sizes(tasks: Iterable[Task], reshuffles: int, seed: int) -> list[Table]:
    made = []
    for task in tasks:
        with progress_bar(task.name, reshuffles * len(SHARES)) as advance:
            study = study_sizes(task, n_reshuffles=reshuffles, seed=seed, advance=advance)
        made += [study.metrics_table(), study.bandwidth_table()]
    return made


def _convexity(tasks: Iterable[Task], seed: int) -> list[Table]:
    shapes = []
    for task in tasks:
        with working(task.name):
            shapes.append(study_shape(task, seed=seed))
    return [shape_table(shapes)]
