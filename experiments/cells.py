"""Compare methods cell by cell: a cell is a task, a protocol, a number n of calibration rows, a split and a method.

Cells are measured as by ``kcal bench``, stored in ``NAME.csv`` one by one, and not measured again. Methods that learn a
projection learn it from the training set, once per task.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import numpy as np
import pandas
import typer
from rich.console import Console

from experiments.cell_tables import MAX_SHOWN, cell_panels, cell_tables, summary
from experiments.lines import line_panels
from kcal.benchmark import Task, check_tasks, read_tasks
from kcal.benchmark.methods import BenchmarkMethod, check_methods, describe, measure, new_calibrator, train_for
from kcal.benchmark.running import in_parallel
from kcal.benchmark.tasks import Split, group_splits, row_splits
from kcal.cli.messages import readable_messages
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError
from kcal.files import atomic_path, locked_folder, write_whole
from kcal.progress import Report, show_progress

SEED = 0
FULL = "full"
SIZES = f"30,100,300,1000,3000,{FULL}"
"""Numbers of calibration rows."""
MAX_FEW = 100
"""Up to this number of calibration rows, cells have twice as many splits."""
MAX_TEST_ROWS = 4_000
METHODS = "uncal,ts,svs,sms,knn,refit,kcal,kcal-blend"
STORED_METRICS = (
    "negative_log_likelihood", "accuracy", "expected_calibration_error", "classwise_calibration_error",
)  # fmt: skip


class Cell(NamedTuple):
    """The key of a measurement."""

    task: str
    protocol: str
    n: str  # FULL: all calibration rows
    split: int
    method: str


Row = Mapping[str, Any]
"""What was measured in a cell; with an error, the metrics are missing."""


def random_splits(task: Task, n_splits: int) -> list[Split]:
    """Return splits of rows."""
    return task.splits(n_splits, SEED)


def whole_group_splits(task: Task, n_splits: int) -> list[Split]:
    """Return splits of whole groups; none if the task has too few."""
    return task.splits(n_splits, SEED, by_group=True) if task.can_split_groups else []


def subset_splits(task: Task, n_splits: int) -> list[Split]:
    """Return splits of the rows of a third of the classes, at least two, others in every split; none with two classes.

    With two classes, both would stay.
    """
    labels = task.pool.labels
    if len(np.unique(labels)) <= 2:
        return []
    splits = []
    for index, chosen in enumerate(group_splits(labels, 1 / 3, n_splits, SEED)):
        rows = chosen.calibration  # of the classes that stay
        split = row_splits(len(rows), task.calibration_share, index + 1, SEED)[-1]
        splits.append(Split(index, rows[split.calibration], rows[split.test]))
    return splits


PROTOCOLS: dict[str, Callable[[Task, int], list[Split]]] = {
    "random": random_splits,
    "group": whole_group_splits,
    "subset": subset_splits,
}


def sized_splits(task: Task, protocol: str, sizes: Sequence[str], n_splits: int) -> Iterator[tuple[str, Split]]:
    """Yield every size with its splits; the calibration rows of a size are the first ones of the larger sizes.

    Sizes that a split does not have are left out. If at most ``2 * n_splits`` splits exist, each size has all of them.
    """
    splits = PROTOCOLS[protocol](task, 2 * n_splits + 1)
    for split in splits:
        generator = np.random.default_rng([SEED, split.index, 1])
        order, test = generator.permutation(split.calibration), generator.permutation(split.test)[:MAX_TEST_ROWS]
        for name in sizes:
            if name != FULL and int(name) >= len(order):
                continue
            n = len(order) if name == FULL else int(name)
            used = 2 * n_splits if name != FULL and n <= MAX_FEW else n_splits
            if len(splits) <= 2 * n_splits or split.index < used:
                yield name, Split(split.index, order[:n], np.sort(test))


def check_sizes(text: str) -> tuple[str, ...]:
    """Return the sizes of a list such as "30,100,full"."""
    names = tuple(text.split(","))
    if not all(name == FULL or (name.isascii() and name.isdigit() and int(name) > 0) for name in names):
        raise InvalidInputError("sizes", 'must be numbers of rows or "full", separated by commas', got=text)
    return names


def prepare(name: str, task: Task, by_group: bool) -> BenchmarkMethod:
    """Return a method; with a projection of the training set if it takes embeddings or logits alone."""
    if new_calibrator(name, seed=SEED).inputs == "both":
        return BenchmarkMethod(name, SEED)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return BenchmarkMethod(name, SEED, train_for(name, task, seed=SEED, by_group=by_group))
    except Exception as error:  # whatever fails in one method, the others go on
        return BenchmarkMethod(name, SEED, error=f"training the projection: {describe(error)}")


def measure_cell(task: Task, cell: Cell, split: Split, method: BenchmarkMethod) -> tuple[Cell, Row]:
    """Fit on the calibration rows and measure on the test rows; the error is stored if the method fails."""
    result = measure(task, split, method, cell.protocol == "group")
    values = {name: result.metrics.get(name, np.nan) for name in STORED_METRICS}
    rows = {"calibration_rows": len(split.calibration), "test_rows": len(split.test)}
    return cell, {**rows, **values, "seconds": result.fit_seconds, "error": result.error or ""}


class Store:
    """The measured cells, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[Cell, Row] = {}
        if path.exists():
            found = pandas.read_csv(path, dtype={"task": str, "n": str, "error": str}).fillna({"error": ""})
            for row in found.to_dict("records"):
                self.rows[Cell(*(row.pop(name) for name in Cell._fields))] = row

    def add(self, cell: Cell, row: Row) -> None:
        """Store a measurement; it is on disk when this returns."""
        self.rows[cell] = row
        with atomic_path(self.path) as temporary:
            self.frame().to_csv(temporary, index=False, float_format="%.6g")

    def frame(self) -> pandas.DataFrame:
        """Return one row per cell."""
        return pandas.DataFrame([{**cell._asdict(), **row} for cell, row in self.rows.items()])


def measure_task(
    task: Task, plan: Mapping[Cell, Split], store: Store, *, again: bool, jobs: int, progress: Report
) -> None:
    """Measure the cells of a task that are not stored; all of them with ``again``."""
    missing = [cell for cell in plan if again or cell not in store.rows]
    done = len(plan) - len(missing)
    progress(task.name, done, len(plan))
    without_training = replace(task, train=cast(ClassifierOutputs, None), out_of_scope=None)
    prepared = cache(lambda method, by_group: prepare(method, task, by_group))
    calls = []
    for cell in missing:
        method = prepared(cell.method, cell.protocol == "group")
        learns = method.projection is None and new_calibrator(cell.method, seed=SEED).tags.uses_training_set
        calls.append((task if learns else without_training, cell, plan[cell], method))
    for cell, row in in_parallel(measure_cell, calls, jobs=jobs):
        store.add(cell, row)
        done += 1
        progress(f"{task.name}: {cell.protocol}, n = {cell.n}, {cell.method}", done, len(plan))


def run(
    tasks: Iterable[Task],
    out: Path,
    name: str,
    protocols: Sequence[str],
    *,
    methods: Sequence[str],
    sizes: Sequence[str],
    n_splits: int = 5,
    again: bool = False,
    jobs: int = 1,
    progress: Report = lambda *_: None,
) -> pandas.DataFrame:
    """Measure what ``out`` does not hold yet, and return all cells that it holds."""
    out.mkdir(parents=True, exist_ok=True)
    with locked_folder(out):
        store = Store(out / f"{name}.csv")
        for task in tasks:
            plan = {
                Cell(task.name, protocol, n, split.index, method): split
                for protocol in protocols
                for n, split in sized_splits(task, protocol, sizes, n_splits)
                for method in methods
            }
            measure_task(task, plan, store, again=again, jobs=jobs, progress=progress)
    return store.frame()


def write_output(found: pandas.DataFrame, out: Path, name: str, chosen: Sequence[str]) -> None:
    """Write the tables as Markdown and CSV, and the figure."""
    tables = cell_tables(found, chosen)
    figure = f"![log-loss by calibration rows]({name}.png)\n\nValues above {MAX_SHOWN} are beyond the edge."
    texts = [f"{table.as_markdown()}\n{table.note}".strip() for table in tables]
    write_whole(out / f"{name}.md", "\n\n".join([figure, *texts, ""]).encode())
    for table in tables:
        write_whole(out / f"{name}-{table.name}.csv", table.as_csv().encode())
    panels = cell_panels(found)
    axes = line_panels(panels)
    for ax, panel in zip(axes.flat, panels, strict=False):
        lowest = min(np.nanmin(line.y) for line in panel.lines)
        ax.set_ylim(lowest - 0.02, min(ax.get_ylim()[1], MAX_SHOWN))
    with atomic_path(out / f"{name}.png") as temporary:
        axes.flat[0].figure.savefig(temporary, dpi=150)


Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of tasks, NAME.npz.")]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="Write there; a second run resumes.")]
Methods = Annotated[str, typer.Option(metavar="A,B,C", help="Methods of kcal bench.")]
Sizes = Annotated[str, typer.Option("--sizes", metavar="N,N,full", help="Numbers of calibration rows.")]
Splits = Annotated[int, typer.Option(min=1, help=f"Splits; twice as many with up to {MAX_FEW} calibration rows.")]
Again = Annotated[bool, typer.Option("--again", help="Measure stored cells of these methods again.")]
Chosen = Annotated[str, typer.Option(metavar="A,B,C", help="Tasks on which parameters were chosen: shown apart.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes.")]


def command(name: str, protocols: Sequence[str], help_text: str) -> Callable[..., None]:
    """Return the command of an experiment."""

    def main(
        folder: Folder,
        out: Out,
        methods: Methods = METHODS,
        sizes: Sizes = SIZES,
        splits: Splits = 5,
        again: Again = False,
        chosen: Chosen = "",
        jobs: Jobs = 1,
    ) -> None:
        with readable_messages(), show_progress(False) as progress:
            apart = chosen.split(",")
            options: dict[str, Any] = {"n_splits": splits, "again": again, "jobs": jobs}
            inputs: dict[str, Any] = {"methods": check_methods(methods.split(",")), "sizes": check_sizes(sizes)}
            check_tasks(folder)
            try:
                found = run(read_tasks(folder), out, name, protocols, **inputs, **options, progress=progress)
            except KeyboardInterrupt as stop:
                raise KeyboardInterrupt(f"cells so far are in {out}; the same command resumes.") from stop
            if found.empty:
                expected = f"must hold a task for the protocol {' or '.join(protocols)}"
                raise InvalidInputError("folder", expected, got=str(folder), remedy="subset needs 3 classes or more.")
            write_output(found, out, name, apart)
        Console(soft_wrap=True).print(f"{summary(found, apart).round(3).to_string()}\n{name} is in {out}", markup=False)

    main.__doc__ = help_text
    return main
