"""On a Ray cluster the numbers are those of one process, also if workers and nodes die."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch import nn

import kcal
from benchmarks.clusters import worker_pids
from kcal.benchmark import Plan, run
from kcal.benchmark.tasks import Task
from kcal.distributed import Columns, ShardedKCal, Workers, in_parallel, predict
from kcal.distributed.sharded_kcal import ShardedSupport
from kcal.embeddings import ClassifierOutputs
from kcal.kernels import bandwidth
from page_code import run_page

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
N_FEATURES, N_CLASSES = 6, 3


def samples(n: int, seed: int, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, N_CLASSES, n)
    embeddings = generator.normal(size=(n, N_FEATURES)) + 2.0 * np.eye(N_CLASSES, N_FEATURES)[labels]
    return embeddings.astype(dtype), labels


@pytest.fixture(scope="module")
def model() -> kcal.KCal:
    return kcal.KCal(projection="identity", bandwidth=0.4, progress=False).fit(*samples(400, 0))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of 3,000 rows, in row groups that are no multiple of anything."""
    folder = tmp_path_factory.mktemp("files")
    for place in range(3):
        rows = samples(3_000, 10 + place)[0]
        columns = {f"e{index}": rows[:, index] for index in range(N_FEATURES)}
        table = pa.table({"id": np.arange(3_000) + 10_000 * place, **columns})
        pq.write_table(table, folder / f"rows-{place}.parquet", row_group_size=700)
    return folder


def kill_one(cluster: Any, name: str, ended: threading.Event, killed: list[int]) -> None:
    """Kill the first process of an actor or task, as soon as there is one, and note it."""
    while not ended.wait(0.01):
        for pid in worker_pids(cluster, name)[:1]:
            with suppress(ProcessLookupError):  # it ends by itself
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                return


@contextmanager
def beside(action: Callable[[threading.Event], None]) -> Iterator[None]:
    """Let an action run in a thread; it is told when the work beside it has ended."""
    ended = threading.Event()
    thread = threading.Thread(target=action, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class GatedModule(nn.Module):
    """The identity, once a gate is open; until then, a file beside it says which process waits."""

    def __init__(self, gate: Path) -> None:
        super().__init__()
        self.gate = gate

    def forward(self, inputs: Any) -> Any:
        while not self.gate.exists():
            (self.gate.parent / f"{os.getpid()}.waits").touch()
            time.sleep(0.02)
        return inputs


def test_every_row_is_scored_once_and_to_the_bit_though_a_worker_and_a_node_die(cluster, model, files, tmp_path):
    import ray.cloudpickle

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
    options: dict[str, Any] = {"rows_at_once": 1_024, "part_rows": 1_024, "workers": Workers(count=2, num_cpus=2)}
    predict(files, model, tmp_path / "expected", engine="local", **options)
    gate = tmp_path / "gate"
    gate.touch()
    gated = kcal.KCal(projection=GatedModule(gate), bandwidth=0.4, progress=False).fit(*samples(400, 0))
    gate.unlink()
    node = cluster.add_node(wait=False, num_cpus=2, object_store_memory=80 * 2**20, include_log_monitor=False)
    while ray.cluster_resources().get("CPU") != 4:
        time.sleep(0.02)

    def disturb(ended: threading.Event) -> None:
        while len(waiting := list(tmp_path.glob("*.waits"))) < 2:
            if ended.wait(0.02):
                return
        os.kill(int(waiting[0].stem), signal.SIGKILL)
        cluster.remove_node(node, allow_graceful=False)
        gate.touch()

    with beside(disturb):
        first = predict(files / "*.parquet", gated, tmp_path / "scores", **options)
    assert (first.n_rows, first.n_parts, first.n_computed) == (9_000, 9, 9)
    assert pq.read_table(tmp_path / "scores").equals(pq.read_table(tmp_path / "expected"))
    assert predict(files, gated, tmp_path / "scores", **options).n_computed == 0


def test_a_network_runs_in_the_workers_of_a_pipeline_and_here(cluster, files, tmp_path):
    import ray.data
    import torch

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(N_FEATURES, 8), nn.Tanh(), nn.Linear(8, N_CLASSES)).eval()
    rows, labels = samples(300, 1)
    batches = [(torch.from_numpy(rows), torch.from_numpy(labels))]
    classifier = kcal.CalibratedClassifier(network, "ts").fit(batches)
    features = tuple(f"e{index}" for index in range(N_FEATURES))
    columns = Columns(features, ids="id")
    options: dict[str, Any] = {"columns": columns, "rows_at_once": 3_000}
    predict(files / "rows-0.parquet", classifier, tmp_path, engine="local", **options)
    scored, table = pq.read_table(tmp_path), pq.read_table(files / "rows-0.parquet")
    inputs = torch.from_numpy(np.stack([table.column(name) for name in features], axis=1))
    probs = np.stack([scored.column(f"p_{k}") for k in range(N_CLASSES)], axis=1)
    np.testing.assert_array_equal(probs, classifier.predict_proba(inputs))
    workers = Workers(count=1, num_cpus=2)  # all cores: one must stay for the tasks before
    dataset = ray.data.from_arrow(table).map_batches(lambda batch: batch, batch_format="pyarrow")
    lazy = predict(dataset, classifier, workers=workers, **options).take(5)
    np.testing.assert_allclose([row["p_1"] for row in lazy], probs[:5, 1], atol=1e-6)


def test_shards_of_files_have_the_search_of_one_machine_though_an_actor_dies(cluster, tmp_path, monkeypatch):
    embeddings, labels = samples(2_000, 5, np.float64)  # more than the search predicts
    monkeypatch.setattr(bandwidth, "MAX_PREDICTED", 500)
    groups, weights = np.arange(2_000) // 3, np.random.default_rng(0).uniform(0.2, 1.0, 2_000)
    for place in range(2):
        rows = slice(1_000 * place, 1_000 * (place + 1))
        columns = {"e": list(embeddings[rows]), "label": labels[rows], "patient": groups[rows], "w": weights[rows]}
        pq.write_table(pa.table(columns), tmp_path / f"{place}.parquet", row_group_size=300)
    # a compact kernel, which does not reach the far queries below; the page has the default
    options: dict[str, Any] = {"projection": "identity", "kernel": "epanechnikov", "progress": False}
    one = kcal.KCal(**options).fit(embeddings, labels, groups=groups, sample_weight=weights)

    ask, questions, killed = ShardedSupport._ask, [], []

    def disturbed(self: ShardedSupport, method: str, *arguments: Any) -> list[Any]:
        questions.append(method)
        if questions.count("class_sums") == 2:
            kill_one(cluster, "Shard", threading.Event(), killed)
        return ask(self, method, *arguments)

    monkeypatch.setattr(ShardedSupport, "_ask", disturbed)
    many = ShardedKCal(n_shards=2, num_cpus=0.5, n_predicted=500, **options)
    many.fit_files(tmp_path, features=["e"], group="patient", weight="w")
    assert (len(killed), questions.count("class_sums") > 2) == (1, True)
    assert sum(many.shard_sizes_) == 2_000
    assert many.bandwidth_ == pytest.approx(one.bandwidth_, rel=1e-6)
    assert many.bandwidth_curve_.loss == pytest.approx(one.bandwidth_curve_.loss, abs=1e-6)
    queries = np.concatenate([samples(300, 6, np.float64)[0], 30.0 + samples(3, 4)[0]])  # some are far from all
    np.testing.assert_allclose(many.predict_proba(queries), one.predict_proba(queries), atol=1e-6)
    np.testing.assert_allclose(many.log_evidence(queries), one.log_evidence(queries), atol=1e-6)
    assert np.isneginf(many.log_evidence(queries)[-3:]).all()
    np.testing.assert_allclose(many.evidence(queries), one.evidence(queries), atol=1e-6)
    many.close()


def test_a_benchmark_has_the_same_results_though_a_worker_dies(cluster, tmp_path):
    rows, labels = samples(500, 7)
    part = ClassifierOutputs(embeddings=rows, logits=2.0 * rows[:, :N_CLASSES], labels=labels)
    task = Task("small", train=part, pool=part, classes=("a", "b", "c"), calibration_share=0.3)
    plan = Plan(("ts", "vector"), n_splits=10, jobs=2)
    one = run([task], replace(plan, jobs=1), tmp_path / "one")
    killed: list[int] = []
    with beside(lambda ended: kill_one(cluster, "call_on_one_thread", ended, killed)):
        many = run([task], plan, tmp_path / "many", parallel=in_parallel)
    assert len(killed) == 1
    by_key = {result.key: result for result in many}
    assert [by_key[result.key].metrics for result in one] == [result.metrics for result in one]
    assert not any(result.error for result in many)


def test_the_code_of_the_page_runs(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("kcal.distributed.prediction.count_workers", lambda *_, **__: 1)  # each imports torch
    names = run_page("docs/distributed.md", tmp_path).names
    assert names["predictions"].n_rows == len(names["table"]) == 600
    one = names["model"].predict_proba(names["test"].embeddings[:100])
    np.testing.assert_allclose(names["probs"], one, atol=1e-6)  # in single precision
    assert names["sharded"].bandwidth_ == pytest.approx(names["model"].bandwidth_, abs=1e-6)
    assert [row["id"] for row in names["table"].to_pylist()] == list(range(600))
    assert pq.read_table(tmp_path / "scores").equals(names["table"])  # of the command
