"""The command ``kcal bench``: all methods on the splits of a folder of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import joblib
import typer

from kcal.benchmark import (
    BENCHMARK_METHODS,
    DEFAULT_METHODS,
    Plan,
    Results,
    check_tasks,
    example_task,
    read_tasks,
    run,
)
from kcal.benchmark.output import show_tables, write_results
from kcal.benchmark.tables import all_tables, group_note
from kcal.cli.output import console
from kcal.cli.parameters import parse_methods
from kcal.cli.progress import show_progress


def bench(
    tasks: Annotated[
        Path | None,
        typer.Argument(
            metavar="TASKS", help="A folder of tasks, NAME.npz; the embedded example if left out.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where to write numbers, tables and pictures.")
    ] = Path("kcal-bench"),
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C",
            help=f"Methods, or all. (default, the paper's and the blend: {','.join(DEFAULT_METHODS)})",
            show_default=False,
        ),
    ] = None,
    splits: Annotated[int, typer.Option(min=1, help="Splits of each pool into calibration and test.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same splits and results.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Worker processes. (default: one per core)", show_default=False)
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no tables.")] = False,
) -> None:
    """Run methods on all tasks as the paper does, and write its tables.

    A run that was stopped resumes: give the same folder again. Results of other data, other parameters of their
    method, other code of kcal or other versions of torch, numpy, scipy, scikit-learn or (for gp) gpytorch are measured
    again, and a warning counts them. If a method fails, the tables say so and the others go on. Only one run at a
    time can use a folder.

    [bold]Examples[/]

    [green]kcal bench --methods ts,dircal,kcal --splits 3[/]

    [green]kcal bench tasks --out results[/]
    """
    names = DEFAULT_METHODS if methods is None else tuple(parse_methods(methods, tuple(BENCHMARK_METHODS)))
    plan = Plan(names, splits, seed, jobs or joblib.cpu_count())
    if tasks is not None:
        check_tasks(tasks)
    try:
        with show_progress(quiet) as progress:
            measured = run([example_task()] if tasks is None else read_tasks(tasks), plan, out, progress=progress)
    except KeyboardInterrupt:
        console().print(f"Stopped. Results so far are kept in {out}; the same command resumes.", markup=False)
        raise
    results = Results.of(measured, plan.methods)
    files = write_results(results, plan, out)
    if quiet:
        return
    screen = console()
    show_tables(screen, all_tables(results), group_note(results))
    screen.print(f"{len(files)} files in {out}: results.json, tables.md, tables.tex, csv/, reliability/", markup=False)
