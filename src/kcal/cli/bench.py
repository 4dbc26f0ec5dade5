"""The command ``kcal bench``: the paper's experiments on a folder of tasks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from kcal.benchmark import PAPER, Plan, example_task, read_tasks, run
from kcal.benchmark.entrants import ENTRANTS
from kcal.benchmark.page import write_page
from kcal.benchmark.results import Results
from kcal.benchmark.tables import NOTE, all_tables
from kcal.benchmark.writing import write_results
from kcal.cli.arrays_out import check_writable, named_output
from kcal.cli.tables import console
from kcal.cli.watching import watching

FIRST_SHOWN = 5
"""Tables of metrics that are printed; the others are in the files."""


def bench(
    tasks: Annotated[
        Path | None,
        typer.Argument(
            metavar="TASKS", help="A folder of tasks, NAME.npz; the embedded example if left out.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where numbers, tables and pictures go.")
    ] = Path("kcal-bench"),
    methods: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help=f"Methods, or all. (default: {','.join(PAPER)})", show_default=False),
    ] = None,
    reshuffles: Annotated[int, typer.Option(min=1, help="How often a pool is dealt into calibration and test.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same reshuffles and results.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Cells measured at a time. (default: one a processor)", show_default=False)
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.md",
            help="Also write a page about the run, with the studies in its folder.",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no tables.")] = False,
) -> None:
    """Run all methods on all tasks as the paper does, and write its tables.

    A run that was stopped goes on where it was: give the same folder again. A method that fails says so in its cells.

    [bold]Examples[/]

    [green]kcal bench --methods ts,dircal,kcal --reshuffles 3[/]

    [green]kcal bench tasks --out results[/]
    """
    names = _parse_methods(methods)
    if page is not None:
        check_writable(page, (".md",), option="--page")
    plan = Plan(tuple(names), reshuffles, seed, jobs or os.cpu_count() or 1)
    with watching(quiet) as watch:
        outcomes = run([example_task()] if tasks is None else read_tasks(tasks), plan, out, watch=watch)
    results = Results.of(outcomes, plan.methods)
    files = write_results(results, plan, out)
    if page is not None:
        with named_output(page):
            write_page(page, results, plan, out)
    if quiet:
        return
    tables = all_tables(results)
    screen = console()
    for table in (
        *tables[:FIRST_SHOWN],
        *(table for table in tables if table.name in ("ranks", "seconds", "failures")),
    ):
        screen.print((table if table.name == "failures" else table.turned()).as_rich())
    screen.print(NOTE)
    screen.print(f"{len(files)} files in {out}: results.json, tables.md, tables.tex, csv/, reliability/", markup=False)


def _parse_methods(text: str | None) -> list[str]:
    if text is None:
        return list(PAPER)
    names = list(ENTRANTS) if text.strip() == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ENTRANTS:
            raise typer.BadParameter(f"--methods: {name!r} is not one of all, {', '.join(ENTRANTS)}.")
        if names.count(name) > 1:
            raise typer.BadParameter(f"--methods names {name} more than once.")
    return names
