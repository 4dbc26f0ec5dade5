"""A support of five million points on two nodes: the search for the bandwidth, and predictions."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.clusters import peak_memory, processor_seconds, small_cluster, worker_pids
from kcal.distributed import ShardedKCal
from kcal.kernels import MAX_PREDICTED, BandwidthChoice, LeaveOutLoss, sort_support
from kcal.threads import one_thread

N_POINTS, DIMENSION, CLASSES, N_FILES, N_QUERIES = 5_000_000, 32, 10, 10, 1_000
BANDWIDTH = 0.15
SEPARATION = 0.8
"""Standard deviation of the class centres, in units of that of the points about them."""


def main(console: Console, n_points: int = N_POINTS, n_predicted: int = MAX_PREDICTED) -> None:
    """Print times and peak memory as they are known; a search predicts ``n_predicted`` samples."""
    console.print(f"{n_points:,} × {DIMENSION} on a cluster of two nodes, one shard each")
    with tempfile.TemporaryDirectory() as folder, small_cluster(head_cpus=1, node_cpus=1) as cluster:
        for place in range(N_FILES):
            write_file(Path(folder) / f"{place}.parquet", n_points // N_FILES, place)
        loading = predictions(console, folder, cluster)
        search(console, folder, cluster, n_predicted, loading)
    plain_search(console, n_points // N_FILES, n_predicted)


def predictions(console: Console, folder: str, cluster: Any) -> float:
    """Print what loading and predictions at a given bandwidth take, and how exact they are.

    Return the processor time that the shards need to start and load.
    """
    start = time.perf_counter()
    sharded = ShardedKCal(bandwidth=BANDWIDTH, n_shards=2).fit_files(folder, features=["e"])
    queries = make_points(N_QUERIES, N_FILES)[0]
    sharded.predict_proba(queries[:1])
    loading = processor_seconds(worker_pids(cluster, "Shard"))
    console.print(f"shards of {sharded.shard_sizes_} points, loaded in {time.perf_counter() - start:.0f} s")
    start = time.perf_counter()
    probs = sharded.predict_proba(queries)
    console.print(f"{N_QUERIES:,} predictions in {time.perf_counter() - start:.1f} s")
    print_memory(console, cluster)
    some = slice(0, 50)
    difference = np.abs(probs[some] - brute_force(Path(folder), queries[some], BANDWIDTH)).max()
    console.print(f"largest difference from sums in float64, 50 rows: {difference:.1e}")
    sharded.close()
    return loading


def search(console: Console, folder: str, cluster: Any, n_predicted: int, loading: float) -> None:
    """Print what a search for the bandwidth takes; ``loading`` is the processor time of the shards before it."""
    start = time.perf_counter()
    sharded = ShardedKCal(n_shards=2, n_predicted=n_predicted, progress=True).fit_files(folder, features=["e"])
    seconds, processor = time.perf_counter() - start, processor_seconds(worker_pids(cluster, "Shard")) - loading
    console.print(f"loaded and searched with {n_predicted:,} samples in {seconds:.0f} s: {sharded.bandwidth_curve_}")
    pairs = sharded.support_size_ * n_predicted * len(sharded.bandwidth_curve_.losses)
    cost = f"{1e9 * processor / pairs:.1f} ns per pair and bandwidth"
    console.print(f"processor time of the search in all shards: {processor:.0f} s, {cost}")
    print_memory(console, cluster)
    sharded.close()


def plain_search(console: Console, n_points: int, n_predicted: int) -> None:
    """Print the processor time of the same search by a KCal, on the rows of one file and on one thread."""
    points, labels = make_points(n_points, 0)
    support = sort_support(torch.from_numpy(points), torch.from_numpy(labels), CLASSES)
    with one_thread(), torch.inference_mode():
        start, loss = time.process_time(), LeaveOutLoss(support, n_predicted=n_predicted)
        curve = BandwidthChoice().search(loss, mean_square=support.mean_square, progress=False)
        processor = time.process_time() - start
    cost = 1e9 * processor / (n_points * n_predicted * len(curve.losses))
    console.print(f"KCal's own search on {n_points:,} points: {cost:.1f} ns per pair and bandwidth")


def print_memory(console: Console, cluster: Any) -> None:
    shard, own = peak_memory(worker_pids(cluster, "Shard")), peak_memory([os.getpid()])
    console.print(f"peak memory: {shard / 2**20:,.0f} MB in a shard, {own / 2**20:,.0f} MB in this process")


def make_points(n: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return points about the centres of their classes, and the classes."""
    generator = np.random.default_rng([seed, 1])
    centres = SEPARATION * np.random.default_rng(0).normal(size=(CLASSES, DIMENSION))
    labels = generator.integers(0, CLASSES, n)
    points = generator.standard_normal((n, DIMENSION), dtype=np.float32)
    points += centres[labels].astype(np.float32)
    return points, labels


def write_file(path: Path, n: int, seed: int) -> None:
    points, labels = make_points(n, seed)
    column = pa.FixedSizeListArray.from_arrays(pa.array(points.ravel()), DIMENSION)
    pq.write_table(pa.table({"e": column, "label": labels}), path, row_group_size=100_000)


def brute_force(folder: Path, queries: NDArray[np.float32], bandwidth: float) -> NDArray[np.float64]:
    """Return the posteriors by sums over all points in float64, file by file."""
    asked, parts = torch.from_numpy(queries).double(), []
    for path in sorted(folder.glob("*.parquet")):
        stored = pq.read_table(path)
        points = stored.column("e").combine_chunks().flatten().to_numpy().reshape(-1, DIMENSION)
        for block in range(0, len(points), 50_000):
            rows = torch.from_numpy(points[block : block + 50_000].astype(np.float64))
            exponents = -torch.cdist(asked, rows).square() / (2 * DIMENSION * bandwidth**2)
            codes = torch.from_numpy(stored.column("label").to_numpy()[block : block + 50_000].copy())
            classes = [torch.logsumexp(exponents[:, codes == k], dim=1) for k in range(CLASSES)]
            parts.append(torch.stack(classes, dim=1))
    return torch.softmax(torch.logsumexp(torch.stack(parts), dim=0), dim=1).numpy()
