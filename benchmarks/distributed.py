"""Predictions on Ray beside one process: rows per second and the overhead per part."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.clusters import small_cluster
from kcal import KCal
from kcal.distributed import Workers, predict
from kcal.threads import one_thread

N_SUPPORT, DIMENSION, CLASSES = 5_000, 64, 10
N_FILES, FILE_ROWS = 4, 262_144
PART_ROWS = 65_536


def make_rows(n: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return rows about the centres of their classes, and the classes."""
    generator = np.random.default_rng([seed, 1])
    centres = np.random.default_rng(0).normal(size=(CLASSES, DIMENSION))
    labels = generator.integers(0, CLASSES, n)
    return (generator.normal(size=(n, DIMENSION)) + centres[labels]).astype(np.float32), labels


def write_files(folder: Path) -> None:
    for place in range(N_FILES):
        rows, labels = make_rows(FILE_ROWS, 10 + place)
        table = pa.table({f"e{index}": rows[:, index] for index in range(DIMENSION)} | {"label": labels})
        pq.write_table(table, folder / f"{place}.parquet", row_group_size=PART_ROWS)


def timed(function: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function(*arguments, **options)
    return time.perf_counter() - start, result


def main(console: Console) -> None:
    """Print rows per second in one process and on 1 and 2 workers, and the overhead per part.

    That is by the clock, beyond what the local engine takes, and the processor time of the process that hands the parts
    out. Processor times do not depend on what else runs on the machine; those by the clock do.
    """
    model = KCal(projection="identity", bandwidth=0.5, progress=False).fit(*make_rows(N_SUPPORT, 0))
    n_rows, n_parts = N_FILES * FILE_ROWS, N_FILES * FILE_ROWS // PART_ROWS
    title = f"{n_rows:,} rows × {DIMENSION}, {N_SUPPORT:,} support points, {n_parts} parts, one thread per process"
    table = Table(
        "", "seconds", "rows/s", "rows per processor second", "clock per part", "driver per part", title=title
    )

    def add(name: str, seconds: float, processor: float | None = None, *overheads: float) -> None:
        per_processor = "" if processor is None else f"{n_rows / processor:,.0f}"
        extra = (f"{1e3 * overhead:,.0f} ms" for overhead in overheads)
        table.add_row(name, f"{seconds:.1f}", f"{n_rows / seconds:,.0f}", per_processor, *extra)

    with tempfile.TemporaryDirectory() as name, one_thread():
        data, out = Path(name) / "data", Path(name)
        data.mkdir()
        write_files(data)
        rows, before = make_rows(FILE_ROWS, 10)[0], time.process_time()
        seconds = sum(timed(model.predict_proba, rows)[0] for _ in range(N_FILES))
        add("predict_proba, arrays in memory", seconds, time.process_time() - before)
        before = time.process_time()
        plain, _ = timed(predict, data, model, out / "local", engine="local", part_rows=PART_ROWS)
        add("engine local, from files to files", plain, time.process_time() - before)
        for count in (1, 2):
            with small_cluster(head_cpus=count):
                for state in ("first", "second"):
                    place, workers, before = out / f"{count}-{state}", Workers(count), time.process_time()
                    seconds, _ = timed(predict, data, model, place, part_rows=PART_ROWS, workers=workers)
                    overhead = (seconds - plain / count) / (n_parts / count)
                    driver = (time.process_time() - before) / n_parts
                    add(f"engine ray, {count} worker(s), {state} run", seconds, None, overhead, driver)
                    assert pq.read_table(place).equals(pq.read_table(out / "local"))
    console.print(table)
