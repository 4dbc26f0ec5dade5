"""The command line of the experiments: one command per study, and ``all``."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from experiments.runner import n_splits_of, run_study
from experiments.studies import STUDIES
from experiments.study import Study
from kcal.benchmark import Task, check_tasks, example_task, read_tasks
from kcal.benchmark.table import Table
from kcal.cli.messages import readable_messages
from kcal.errors import printable
from kcal.progress import show_progress


class Commands(TyperGroup):
    """Commands whose errors are one line."""

    def invoke(self, ctx: Any) -> Any:
        with readable_messages():
            return super().invoke(ctx)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    help="Studies of KCal and its blend. Each compares variants on the same splits of benchmark tasks.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)
Folders = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FOLDER", help="Folders of tasks, NAME.npz; the embedded example if left out."),
]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Store measurements, tables and figures there.")
]
Splits = Annotated[int, typer.Option(min=1, help="Splits of each pool into calibration and test.")]
Seed = Annotated[int, typer.Option(min=0, help="Same seed, same result.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no tables.")]


def run_studies(
    studies: Iterable[Study], folders: list[Path], out: Path | None, splits: int, seed: int, quiet: bool
) -> None:
    """Run studies and print their tables."""
    for folder in folders:
        check_tasks(folder)

    def tasks() -> Iterable[Task]:
        return chain.from_iterable(map(read_tasks, folders)) if folders else [example_task()]

    console = Console(highlight=False)
    for study in studies:
        try:
            with show_progress(quiet) as progress:
                measured = run_study(study, tasks, n_splits=splits, seed=seed, folder=out, progress=progress)
        except KeyboardInterrupt as stop:
            text = "nothing was kept; --out FOLDER keeps measurements."
            if out is not None:
                text = f"measurements so far are kept in {out}; the same command resumes."
            raise KeyboardInterrupt(text) from stop
        if not quiet:
            console.rule(study.title)
            console.print(f"{study.about} Number of splits: {n_splits_of(measured)}.", markup=False)
            for table in study.show(measured).tables:
                print_table(console, table)
        if out is not None:
            console.print(f"{study.name} is in {out}", markup=False)


def print_table(console: Console, table: Table) -> None:
    """Print a table, transposed if it is too wide and has fewer rows than columns."""
    width = max(map(len, table.as_text(10_000).splitlines()))
    transpose = width > console.width and len(table.rows) + 1 < len(table.heading)
    shown = table.transposed(table.heading[0]) if transpose else table
    console.print(shown.as_text(console.width), markup=False)
    if table.note:
        console.print(printable(table.note), markup=False)


def add_command(name: str, help_text: str, studies: Iterable[Study]) -> None:
    """Add a command that runs some studies."""

    @app.command(name, help=help_text)
    def command(
        folders: Folders = None, out: Out = None, splits: Splits = 10, seed: Seed = 0, quiet: Quiet = False
    ) -> None:
        run_studies(studies, folders or [], out, splits, seed, quiet)


for study in STUDIES:
    add_command(study.name, f"{study.title}.", [study])
add_command("all", "Every study.", STUDIES)


if __name__ == "__main__":
    app(prog_name="python -m experiments")
