"""The command ``kcal task``: make a benchmark task from a network's outputs, or check one."""

from __future__ import annotations

from kcal.cli import options as o
from kcal.cli.messages import check_options
from kcal.errors import printable


def task(
    path: o.Task,
    train: o.TaskTrain = None,
    pool: o.Pool = None,
    out_of_scope: o.OutOfScope = None,
    share: o.Share = 0.3,
    classes: o.Classes = None,
    label_column: o.LabelColumn = None,
    group_column: o.GroupColumn = None,
    feature_columns: o.FeatureColumns = None,
    logit_columns: o.LogitColumns = None,
) -> None:
    """Make a task for kcal bench from a network's embeddings, logits and labels, or check an existing one.

    [bold]Examples[/]

    [green]kcal task tasks/mine.npz --train train.npz --pool unseen.npz --share 0.3[/]

    [green]kcal task tasks/mine.npz[/]
    """
    options = locals()
    from kcal.benchmark import read_task, write_task
    from kcal.cli.data import Source
    from kcal.cli.output import check_writable, console
    from kcal.cli.samples import load_out_of_scope, load_task_parts

    if train is None and pool is None:
        console().print(printable(read_task(path)), markup=False)
        return
    check_options(
        (not train or not pool, "a task is made from both --train and --pool; with neither, NAME.npz is checked."),
        (not 0 < share < 1, f"--share must be between 0 and 1; got {share:g}."),
    )
    check_writable(path, (".npz",), inputs=(train, pool, out_of_scope), option="NAME.npz")
    sources = {
        prefix: Source.from_options(file, options, prefixes=("", prefix))
        for prefix, file in (("train_", train), ("pool_", pool), ("out_of_scope_", out_of_scope))
        if file is not None
    }
    parts, names = load_task_parts(sources["train_"], sources["pool_"])
    outside = load_out_of_scope(sources["out_of_scope_"]) if out_of_scope is not None else None
    made = write_task(path, *parts, calibration_share=share, classes=names, out_of_scope=outside)
    console().print(printable(made), markup=False)
