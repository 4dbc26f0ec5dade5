"""The command ``kcal ablate``: studies of KCal on tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from kcal.benchmark import Task, check_tasks, example_task, read_tasks
from kcal.benchmark.keeping import study_origin
from kcal.benchmark.studies import STUDIES, Study, read_studies, write_study
from kcal.benchmark.tables import Table
from kcal.cli.output import console
from kcal.cli.parameters import one_of
from kcal.cli.progress import show_progress
from kcal.errors import FileFormatError


def ablate(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help=f"One of {', '.join(STUDIES)}, or all.",
            callback=one_of((*STUDIES, "all")),
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
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FOLDER", help="Write numbers, tables and figures there.", show_default=False
        ),
    ] = None,
    reshuffles: Annotated[int, typer.Option(min=1, help="How often a pool is dealt into calibration and test.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same result.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no tables.")] = False,
) -> None:
    """Study what KCal is made of, on the embedded example or on a folder of tasks.

    A study that FOLDER holds already, of the same data, reshuffles, seed, code and versions, is shown and not made
    again: what was stopped goes on with the next study.

    [bold]Examples[/]

    [green]kcal ablate sizes --reshuffles 3[/]

    [green]kcal ablate all tasks --out results[/]
    """
    if tasks is not None:
        check_tasks(tasks)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    for name in STUDIES if study == "all" else (study,):
        made, is_new = _make(name, tasks, out, reshuffles, seed, quiet=quiet)
        if not quiet:
            console().rule(made.title)
            console().print(made.about, markup=False)
            for table in made.tables:
                for part in _narrower(table).fitting(console().width):
                    console().print(part.as_rich())
                if table.note:
                    console().print(table.note, markup=False)
        if out is not None and is_new:
            files = write_study(made, out)
            console().print(f"Written to {', '.join(str(path) for path in files)}", markup=False)
        elif out is not None:
            console().print(f"{name} was already in {out}", markup=False)


def _make(
    name: str, folder: Path | None, out: Path | None, reshuffles: int, seed: int, *, quiet: bool
) -> tuple[Study, bool]:
    """Return a study, and whether it was made now rather than found."""

    def tasks() -> Iterable[Task]:
        return [example_task()] if folder is None else read_tasks(folder)

    origin = study_origin(name, tasks(), reshuffles=reshuffles, seed=seed)
    stored = None if out is None else _stored(name, out)
    if stored is not None and stored.origin == origin:
        return stored, False
    with show_progress(quiet) as watch:
        made = STUDIES[name](tasks(), reshuffles=reshuffles, seed=seed, watch=watch)
    return replace(made, origin=origin), True


def _stored(name: str, folder: Path) -> Study | None:
    """Return the study that a folder holds; None if there is none, or a damaged one, which is then made again."""
    try:
        return next(iter(read_studies(folder, [name])), None)
    except FileFormatError:
        return None


def _narrower(table: Table) -> Table:
    """Return a table, turned where it is too wide for the terminal and has fewer rows than columns."""
    screen = console()
    wanted = screen.measure(table.as_rich(), options=screen.options.update(max_width=1_000)).maximum
    turn = wanted > screen.width and len(table.rows) + 1 < len(table.heading)
    return table.turned(table.heading[0]) if turn else table
