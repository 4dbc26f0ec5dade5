"""The commands ``kcal bench``, all methods on the splits of tasks, and ``kcal task``, which makes or checks a task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import kcal
from kcal.cli import data as inputs
from kcal.cli import options
from kcal.cli.evaluate import parse_methods
from kcal.cli.messages import check_options
from kcal.cli.output import Result, check_writable, console, make_folder, shown_log
from kcal.errors import InvalidInputError, printable
from kcal.progress import show_progress


@options.takes(options.OUTPUT)
def bench(
    tasks: options.Tasks = None,
    out: options.BenchOut = Path("kcal-bench"),
    methods: options.BenchMethods = None,
    splits: options.Splits = 10,
    seed: options.SplitSeed = 0,
    jobs: options.Jobs = None,
    engine: options.Engine = "local",
    address: options.Address = None,
    **shared: options.Shared,
) -> Result:
    """Run methods on all tasks as the paper does, and write its tables.

    A run that was stopped resumes: give the same folder again. Results of other data, seeds, parameters of their
    method, or versions of kcal, torch, numpy, scipy, scikit-learn or gpytorch are measured
    again, and a warning counts them. If a method fails, the tables say so and the others go on. Only one run at a
    time can use a folder. Methods that take an hour to train, kcal-paper, run only if they are named; their trainings
    are kept in the folder. On a Ray cluster, whose machines must all see the folder, the results are the same.

    [bold]Examples[/]

    [green]kcal bench --methods ts,dircal,kcal --splits 3[/]

    [green]kcal bench tasks --out results[/]

    [green]kcal bench tasks --out results --engine ray --jobs 64[/]
    """
    check_options((engine != "ray" and address, "--address has no effect without --engine ray."))
    import joblib

    from kcal import benchmark
    from kcal.benchmark.running import in_parallel
    from kcal.benchmark.tables import as_json, as_text, write_results

    parallel: Any = in_parallel
    if engine == "ray":
        from kcal import distributed

        with shown_log("kcal.distributed", shared["quiet"]):
            distributed.connect(address)
        parallel = distributed.in_parallel
    names = benchmark.DEFAULT_METHODS if methods is None else parse_methods(methods, benchmark.BENCHMARK_METHODS)
    plan = benchmark.Plan(tuple(names), splits, seed, jobs or joblib.cpu_count())
    if tasks is not None:
        benchmark.check_tasks(tasks)
    make_folder(out)
    try:
        with show_progress(shared["quiet"]) as progress:
            chosen = [benchmark.example_task()] if tasks is None else benchmark.read_tasks(tasks)
            measured = benchmark.run(chosen, plan, out, progress=progress, parallel=parallel)
        results = benchmark.Results.of(measured, plan.methods)
        files = write_results(results, plan, out)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"results so far are kept in {out}; the same command resumes.") from stop

    def show() -> None:
        screen = console()
        screen.print(as_text(results, screen.width), markup=False)
        listed = "results.json, tables.md, tables.tex, csv/, reliability/"
        screen.print(f"{len(files)} files in {out}: {listed}", markup=False)

    return Result(as_json(results, plan), show)


@options.takes(options.OUTPUT, options.MATRICES | options.LABELS | options.GROUPS | options.CLASSES)
def task(
    path: options.Task,
    train: options.Train = None,
    pool: options.Pool = None,
    out_of_scope: options.OutOfScope = None,
    share: options.Share = None,
    group_share: options.GroupShare = None,
    **shared: options.Shared,
) -> Result:
    """Make a task for kcal bench from a network's embeddings, logits and labels, or check an existing one.

    [bold]Examples[/]

    [green]kcal task tasks/mine.npz --train train.npz --pool unseen.npz --share 0.3[/]

    [green]kcal task tasks/mine.npz[/]
    """
    files = {"train": train, "pool": pool, "out_of_scope": out_of_scope}
    settings = {**files, "share": share, "group_share": group_share, **shared, **dict.fromkeys(options.OUTPUT)}
    given = ", ".join(f"--{name.replace('_', '-')}" for name, value in settings.items() if value is not None)
    check_options(
        (given and not (train or pool), f"{given} would have no effect: a task is made from --train and --pool."),
        (bool(train) != bool(pool), "a task is made from both --train and --pool; with neither, NAME.npz is checked."),
        (train is None and not path.exists(), f"NAME.npz does not exist; got {path}."),
    )
    for option, value in (("--share", share), ("--group-share", group_share)):
        check_options((value is not None and not 0 < value < 1, f"{option} must be between 0 and 1; got {value}."))
    from kcal.benchmark import read_task, write_task

    if train is None or pool is None:
        made = read_task(path)
    else:
        check_writable(path, (".npz",), option="NAME.npz")
        parts, names = read_parts(train, pool, shared)
        matrices = {name: shared[name] for name in MATRICES}
        outside = None if out_of_scope is None else inputs.read(out_of_scope, matrices, MATRICES, needs=MATRICES)
        made = write_task(
            path,
            *parts,
            calibration_share=0.3 if share is None else share,
            group_calibration_share=group_share,
            classes=names,
            out_of_scope=outside,
        )
    figures = {"task": path, "classes": list(made.classes)}
    return Result(figures, lambda: console().print(printable(made), markup=False))


MATRICES = ("embeddings", "logits")


def read_parts(train: Path, pool: Path, shared: dict[str, Any]) -> tuple[list[Any], list[str]]:
    """Return training set and pool with labels that are indices of columns, and the class of every column."""
    takes, needs = {*MATRICES, "labels", "groups"}, (*MATRICES, "labels")
    parts = [inputs.read(place, shared, takes, needs=needs) for place in (train, pool)]
    listed = [list(range(part.logits.shape[1])) if part.classes is None else part.classes.tolist() for part in parts]
    if listed[0] != listed[1]:
        expected = "must list the same classes in the same order"
        raise InvalidInputError(f"{train} and {pool}", expected, remedy="Pass --classes.")
    import numpy as np

    classes = np.array(listed[0])
    encode = kcal.validation.encode_labels
    encoded = [replace(part, labels=encode(part.labels, classes, "labels")) for part in parts]
    return encoded, [str(name) for name in listed[0]]
