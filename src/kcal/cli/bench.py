"""The command ``kcal bench``: the paper's experiments on a folder of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import joblib
import typer

from kcal.benchmark import DEFAULT, Plan, check_tasks, example_task, read_tasks, run
from kcal.benchmark.entrants import ENTRANTS
from kcal.benchmark.page import write_page
from kcal.benchmark.results import Results
from kcal.benchmark.studies import STUDIES, read_studies
from kcal.benchmark.tables import all_tables, dealing_note
from kcal.benchmark.writing import write_results
from kcal.cli.bench_tables import show_tables
from kcal.cli.messages import usage_error
from kcal.cli.output import check_writable, console
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
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where numbers, tables and pictures go.")
    ] = Path("kcal-bench"),
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C",
            help=f"Methods, or all. (default, the paper's and the blend: {','.join(DEFAULT)})",
            show_default=False,
        ),
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
    """Run methods on all tasks as the paper does, and write its tables.

    A run that was stopped goes on where it was: give the same folder again. Cells that were measured on other data,
    with other parameters of their method, with other code of kcal or with other versions of torch, numpy, scipy,
    scikit-learn or (for gp) gpytorch are measured anew, and a warning counts them. A method that fails says so in the
    tables; the others go on.

    [bold]Examples[/]

    [green]kcal bench --methods ts,dircal,kcal --reshuffles 3[/]

    [green]kcal bench tasks --out results[/]
    """
    plan = Plan(
        tuple(DEFAULT if methods is None else parse_methods(methods, tuple(ENTRANTS))),
        reshuffles,
        seed,
        jobs or joblib.cpu_count(),
    )
    if page is not None and page.suffix != ".md":
        raise usage_error(f"--page must end in .md; got {str(page)!r}.")
    if tasks is not None:
        check_tasks(tasks)
    if page is not None:
        _check_page(page, out)
    try:
        with show_progress(quiet) as watch:
            outcomes = run([example_task()] if tasks is None else read_tasks(tasks), plan, out, watch=watch)
    except KeyboardInterrupt:
        console().print(f"Stopped. What was measured is kept in {out}; the same command goes on.", markup=False)
        raise
    results = Results.of(outcomes, plan.methods)
    files = write_results(results, plan, out)
    if page is not None:
        write_page(page, results, plan, out)
    if quiet:
        return
    screen = console()
    show_tables(screen, all_tables(results), dealing_note(results))
    screen.print(f"{len(files)} files in {out}: results.json, tables.md, tables.tex, csv/, reliability/", markup=False)


def _check_page(page: Path, out: Path) -> None:
    """Refuse early what could not be written, or put together, after long work."""
    if out.resolve() in page.resolve().parents:
        page.parent.mkdir(parents=True, exist_ok=True)
    check_writable(page, option="--page")
    read_studies(out, STUDIES)
