"""The commands ``kcal bench``, all methods on the splits of tasks, and ``kcal task``, which makes or checks a task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from typer import BadParameter

from kcal.cli import options
from kcal.cli.messages import check_options, option_name
from kcal.errors import printable


def bench(
    tasks: options.Tasks = None,
    out: options.BenchOut = Path("kcal-bench"),
    methods: options.BenchMethods = None,
    splits: options.Splits = 10,
    seed: options.SplitSeed = 0,
    jobs: options.Jobs = None,
    engine: options.Engine = "local",
    address: options.Address = None,
    quiet: options.Quiet = False,
) -> None:
    """Run methods on all tasks as the paper does, and write its tables.

    A run that was stopped resumes: give the same folder again. Results of other data, other parameters of their
    method, other code of kcal or other versions of torch, numpy, scipy, scikit-learn or (for gp) gpytorch are measured
    again, and a warning counts them. If a method fails, the tables say so and the others go on. Only one run at a
    time can use a folder. Methods that take an hour to train, kcal-paper, run only if they are named; their trainings
    are kept in the folder. On a Ray cluster, whose machines must all see the folder, the results are the same.

    [bold]Examples[/]

    [green]kcal bench --methods ts,dircal,kcal --splits 3[/]

    [green]kcal bench tasks --out results[/]

    [green]kcal bench tasks --out results --engine ray --jobs 64[/]
    """
    import joblib

    from kcal import benchmark
    from kcal.benchmark.running import in_parallel
    from kcal.benchmark.tables import all_tables, group_note, show_tables, split_note, write_results
    from kcal.cli.output import console, shown_log
    from kcal.cli.parameters import parse_methods
    from kcal.progress import show_progress

    check_options(
        (engine not in ("local", "ray"), f"--engine must be one of local, ray; got {engine!r}."),
        (engine != "ray" and address, "--address has no effect without --engine ray."),
    )
    parallel: Any = in_parallel
    if engine == "ray":
        from kcal import distributed

        with shown_log("kcal.distributed", quiet):
            distributed.connect(address)
        parallel = distributed.in_parallel
    names: tuple[str, ...] = benchmark.DEFAULT_METHODS
    if methods is not None:
        names = tuple(parse_methods(methods, benchmark.BENCHMARK_METHODS))
    plan = benchmark.Plan(names, splits, seed, jobs or joblib.cpu_count())
    if tasks is not None:
        benchmark.check_tasks(tasks)
    screen = console()
    try:
        with show_progress(quiet) as progress:
            chosen = [benchmark.example_task()] if tasks is None else benchmark.read_tasks(tasks)
            measured = benchmark.run(chosen, plan, out, progress=progress, parallel=parallel)
        results = benchmark.Results.of(measured, plan.methods)
        files = write_results(results, plan, out)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"results so far are kept in {out}; the same command resumes.") from stop
    if not quiet:
        show_tables(screen, all_tables(results), split_note(results), group_note(results))
        listed = "results.json, tables.md, tables.tex, csv/, reliability/"
        screen.print(f"{len(files)} files in {out}: {listed}", markup=False)


def task(
    path: options.Task,
    train: options.TaskTrain = None,
    pool: options.Pool = None,
    out_of_scope: options.OutOfScope = None,
    share: options.Share = None,
    group_share: options.GroupShare = None,
    classes: options.Classes = None,
    label_column: options.LabelColumn = None,
    group_column: options.GroupColumn = None,
    feature_columns: options.FeatureColumns = None,
    logit_columns: options.LogitColumns = None,
    labels_are_positions: options.LabelsArePositions = False,
) -> None:
    """Make a task for kcal bench from a network's embeddings, logits and labels, or check an existing one.

    [bold]Examples[/]

    [green]kcal task tasks/mine.npz --train train.npz --pool unseen.npz --share 0.3[/]

    [green]kcal task tasks/mine.npz[/]
    """
    arguments = locals()
    from kcal.benchmark import read_task, write_task
    from kcal.cli.data import Source
    from kcal.cli.output import check_writable, console
    from kcal.cli.samples import load_task_part, load_task_parts

    if train is None and pool is None:
        given = [name for name, value in arguments.items() if name != "path" and value not in (None, False)]
        unused = ", ".join(option_name(name) for name in given)
        check_options((given, f"{unused} would have no effect: a task is made from --train and --pool."))
        console().print(printable(read_task(path)), markup=False)
        return
    if train is None or pool is None:
        raise BadParameter("a task is made from both --train and --pool; with neither, NAME.npz is checked.")
    for option, value in (("--share", share), ("--group-share", group_share)):
        if value is not None and not 0 < value < 1:
            raise BadParameter(f"{option} must be between 0 and 1; got {value:g}.")
    check_writable(path, (".npz",), inputs=(train, pool, out_of_scope), option="NAME.npz")

    source = Source.from_options(train, arguments, prefixes=("", "train_"))
    parts, names = load_task_parts(source, replace(source, path=pool, prefixes=("", "pool_")))
    outside = None
    if out_of_scope is not None:
        outside = load_task_part(replace(source, path=out_of_scope, prefixes=("", "out_of_scope_")), keys=())
    source.check_used()
    made = write_task(
        path,
        *parts,
        calibration_share=0.3 if share is None else share,
        group_calibration_share=group_share,
        classes=names,
        out_of_scope=outside,
    )
    console().print(printable(made), markup=False)
