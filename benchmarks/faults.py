"""Faults in the middle of work on Ray: a worker is killed, or a node is removed, and the results stay the same."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from benchmarks.clusters import STORE, beside, small_cluster, worker_pids
from benchmarks.distributed import DIMENSION, make_rows
from kcal import KCal
from kcal.benchmark import Plan, example_task, run
from kcal.distributed import ShardedKCal, in_parallel, predict

N_FILES, FILE_ROWS, PART_ROWS, N_SUPPORT = 4, 65_536, 16_384, 5_000
N_SEARCHED = 15_000
METHODS, N_SPLITS = ("ts", "vector"), 6
MIDDLE = 0.4
"""Share of an without faults run after which the fault comes; workers have started by then."""


@dataclass(frozen=True)
class Study:
    """Work that faults disturb: ``work`` gets a new folder and returns what must not depend on the faults."""

    name: str
    actor: str  # class or function that its workers run
    work: Callable[[Path], Any]


def main(console: Console) -> None:
    """Run each kind of work without faults, with a worker killed and with a node removed, on nodes of 2 cores and of 1.

    A line is printed for each run, and the table at the end.
    """
    title = "Faults in the middle of work"
    table = Table("", "without faults", "a worker killed", "a node removed", "results", title=title)
    with tempfile.TemporaryDirectory() as name, small_cluster(head_cpus=2, node_cpus=1) as cluster:
        folder = Path(name)
        write_rows(folder / "data")
        studies = (
            Study("scoring", "write_part", lambda out: score(folder / "data", out)),
            Study("sharded search", "Shard", search),
            Study("benchmark", "call_on_one_thread", bench),
        )
        for study in studies:
            table.add_row(study.name, *measure(console, study, cluster, folder))
    console.print(table)


def measure(console: Console, study: Study, cluster: Any, folder: Path) -> list[str]:
    """Return the cells of a study: seconds of its runs, and how many of the disturbed ones have the same results."""
    faults: tuple[Callable[[Any, str], int] | None, ...] = (None, kill_worker, remove_node)
    seconds: list[float] = []
    results: list[Any] = []
    for fault in faults:
        name = fault.__name__ if fault else "without faults"
        console.print(f"{study.name}, {name.replace('_', ' ')} …")
        start, thread = time.perf_counter(), None
        if fault:
            thread = beside(lambda fault=fault: disturb(console, study, cluster, fault, MIDDLE * seconds[0]))
        results.append(study.work(folder / study.name / name))
        seconds.append(time.perf_counter() - start)
        if thread:
            thread.join()
        console.print(f"  {seconds[-1]:.1f} s, {'same results' if results[-1] == results[0] else 'OTHER RESULTS'}")
    restore(cluster)
    n_same = sum(result == results[0] for result in results[1:])
    return [*(f"{value:.0f} s" for value in seconds), f"the same in {n_same} of {len(results) - 1}"]


def disturb(console: Console, study: Study, cluster: Any, fault: Callable[[Any, str], int], after: float) -> None:
    """Let a fault come some seconds after the start of a run, and after its first worker is there."""
    start = time.perf_counter()
    while not worker_pids(cluster, study.actor) or time.perf_counter() - start < after:
        time.sleep(0.05)
    n_lost = fault(cluster, study.actor)
    console.print(f"  after {time.perf_counter() - start:.1f} s: {n_lost} worker(s) lost")


def kill_worker(cluster: Any, actor: str) -> int:
    """Kill a worker process."""
    os.kill(worker_pids(cluster, actor)[0], signal.SIGKILL)
    return 1


def remove_node(cluster: Any, actor: str) -> int:
    """Remove the second node with all of its processes; return how many workers were there."""
    before = len(worker_pids(cluster, actor))
    cluster.remove_node(cluster.second, allow_graceful=False)
    cluster.second = None
    return before - len(worker_pids(cluster, actor))


def restore(cluster: Any) -> None:
    """Add a second node where there is none."""
    if cluster.second is None:
        cluster.second = cluster.add_node(num_cpus=1, object_store_memory=STORE)


def write_rows(folder: Path) -> None:
    folder.mkdir()
    for place in range(N_FILES):
        rows = make_rows(FILE_ROWS, 10 + place)[0]
        columns = {f"e{index}": rows[:, index] for index in range(DIMENSION)}
        ids = np.arange(FILE_ROWS) + place * FILE_ROWS
        pq.write_table(pa.table({"id": ids, **columns}), folder / f"{place}.parquet", row_group_size=PART_ROWS)


def score(data: Path, out: Path) -> pa.Table:
    """Return the predictions; raise if a row is missing or there twice."""
    model = KCal(projection="identity", bandwidth=0.5, progress=False).fit(*make_rows(N_SUPPORT, 0))
    predict(data, model, out, part_rows=PART_ROWS)
    table = pq.read_table(out)
    if not np.array_equal(np.sort(table.column("id").to_numpy()), np.arange(N_FILES * FILE_ROWS)):
        raise RuntimeError("a row is missing, or there twice")
    return table


def search(_: Path) -> tuple[list[float], list[float]]:
    """Return the bandwidths that a search over two shards tried, with their losses."""
    sharded = ShardedKCal(n_shards=2, progress=False).fit(*make_rows(N_SEARCHED, 0))
    curve = sharded.bandwidth_curve_
    sharded.close()
    return curve.bandwidths.tolist(), curve.losses.tolist()


def bench(out: Path) -> list[tuple[Any, ...]]:
    """Return the metrics of all cells of a benchmark."""
    results = run([example_task()], Plan(METHODS, N_SPLITS, jobs=3), out, parallel=in_parallel)
    return [(result.key, result.metrics, result.error) for result in results]
