"""The command ``kcal bench``: all methods on the splits of a folder of tasks."""

from __future__ import annotations

from pathlib import Path

from kcal.cli import options as o


def bench(
    tasks: o.Tasks = None,
    out: o.BenchOut = Path("kcal-bench"),
    methods: o.BenchMethods = None,
    splits: o.Splits = 10,
    seed: o.SplitSeed = 0,
    jobs: o.Jobs = None,
    quiet: o.Quiet = False,
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
    import joblib

    from kcal import benchmark as b
    from kcal.benchmark.output import show_tables, write_results
    from kcal.benchmark.progress import show_progress
    from kcal.benchmark.tables import all_tables, group_note
    from kcal.cli.output import console
    from kcal.cli.parameters import parse_methods

    names = b.DEFAULT_METHODS if methods is None else tuple(parse_methods(methods, tuple(b.BENCHMARK_METHODS)))
    plan = b.Plan(names, splits, seed, jobs or joblib.cpu_count())
    if tasks is not None:
        b.check_tasks(tasks)
    screen = console()
    try:
        with show_progress(quiet) as progress:
            measured = b.run([b.example_task()] if tasks is None else b.read_tasks(tasks), plan, out, progress=progress)
    except KeyboardInterrupt:
        screen.print(f"Stopped. Results so far are kept in {out}; the same command resumes.", markup=False)
        raise
    results = b.Results.of(measured, plan.methods)
    files = write_results(results, plan, out)
    if not quiet:
        show_tables(screen, all_tables(results), group_note(results))
        listed = "results.json, tables.md, tables.tex, csv/, reliability/"
        screen.print(f"{len(files)} files in {out}: {listed}", markup=False)
