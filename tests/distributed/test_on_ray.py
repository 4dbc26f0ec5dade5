"""On a Ray cluster the numbers are those of one process, also if workers and nodes die."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch import nn

import kcal
from kcal.benchmark import Plan, run
from kcal.benchmark.tasks import Task
from kcal.distributed import Columns, ShardedKCal, Workers, in_parallel, predict
from kcal.embeddings import ClassifierOutputs
from test_documents import code_of, load_small_example

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


@pytest.fixture(scope="module")
def expected(model: kcal.KCal, files: Path, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """The predictions of this process."""
    out = tmp_path_factory.mktemp("expected")
    predict(files, model, out, engine="local", rows_at_once=1_024, part_rows=1_024)
    return pq.read_table(out)


def worker_pids(cluster: Any, name: str) -> list[int]:
    """Return the processes of the cluster's actors whose class has such a name."""
    raylets = {info.process.pid for node in cluster.list_all_nodes() for info in node.all_processes["raylet"]}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent in raylets and (folder / "cmdline").read_text().startswith(f"ray::{name}"):
                found.append(int(folder.name))
    return found


def kill_one(cluster: Any, name: str) -> None:
    """Kill the first process of an actor, as soon as there is one."""
    while not (pids := worker_pids(cluster, name)):
        time.sleep(0.02)
    os.kill(pids[0], signal.SIGKILL)


def beside(action: Any) -> threading.Thread:
    """Start an action in a thread."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


class SlowModule(nn.Module):
    """The identity, slow enough for a worker to die in the middle of a call."""

    def forward(self, inputs: Any) -> Any:
        time.sleep(0.02)
        return inputs


def test_files_are_scored_to_the_bit_as_in_one_process_and_not_twice(cluster, model, files, expected, tmp_path):
    options: dict[str, Any] = {"rows_at_once": 1_024, "part_rows": 1_024, "workers": Workers(count=2)}
    first = predict(files / "*.parquet", model, tmp_path, **options)
    assert (first.n_rows, first.n_parts, first.n_computed) == (9_000, 9, 9)
    assert pq.read_table(tmp_path).equals(expected)
    for place in range(3):  # as predict_proba of a whole file
        table = pq.read_table(files / f"rows-{place}.parquet")
        whole = model.predict_proba(np.stack([table.column(f"e{index}") for index in range(N_FEATURES)], axis=1))
        own = expected.slice(3_000 * place, 3_000)
        np.testing.assert_array_equal(np.stack([own.column(f"p_{k}") for k in range(N_CLASSES)], axis=1), whole)
    assert predict(files, model, tmp_path, **options).n_computed == 0


def test_a_network_runs_in_the_workers(cluster, files, tmp_path):
    import torch

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(N_FEATURES, 8), nn.Tanh(), nn.Linear(8, N_CLASSES)).eval()
    rows, labels = samples(300, 1)
    batches = [(torch.from_numpy(rows), torch.from_numpy(labels))]
    classifier = kcal.CalibratedClassifier(network, "ts").fit(batches)
    features = tuple(f"e{index}" for index in range(N_FEATURES))
    columns = Columns(features, ids="id")
    predict(files / "rows-0.parquet", classifier, tmp_path, columns=columns, rows_at_once=3_000)  # one part
    scored, table = pq.read_table(tmp_path), pq.read_table(files / "rows-0.parquet")
    inputs = torch.from_numpy(np.stack([table.column(name) for name in features], axis=1))
    probs = np.stack([scored.column(f"p_{k}") for k in range(N_CLASSES)], axis=1)
    np.testing.assert_array_equal(probs, classifier.predict_proba(inputs))


def test_every_row_is_scored_once_though_a_worker_and_a_node_die(cluster, files, expected, tmp_path):
    import ray.cloudpickle

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
    slow = kcal.KCal(projection=SlowModule(), bandwidth=0.4, progress=False).fit(*samples(400, 0))
    node = cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)

    def kill() -> None:
        while not list(tmp_path.glob("[!_.]*.parquet")):
            time.sleep(0.02)
        kill_one(cluster, "MapWorker")
        cluster.remove_node(node, allow_graceful=False)

    thread = beside(kill)
    done = predict(files, slow, tmp_path, rows_at_once=1_024, part_rows=1_024, workers=Workers(count=3))
    thread.join()
    assert done.n_rows == 9_000
    assert pq.read_table(tmp_path).equals(expected)


def test_a_sharded_support_has_the_search_and_the_probabilities_of_one_machine(cluster):
    embeddings, labels = samples(1_500, 2, np.float64)
    queries = np.concatenate([samples(300, 3, np.float64)[0], 30.0 + samples(3, 4)[0]])  # some are far from all
    weights = np.random.default_rng(0).uniform(0.2, 1.0, len(labels))
    # a compact kernel, which does not reach the far ones; the next test has the default
    options: dict[str, Any] = {"projection": "identity", "kernel": "epanechnikov", "progress": False}
    one = kcal.KCal(**options).fit(embeddings, labels, sample_weight=weights)
    many = ShardedKCal(n_shards=2, num_cpus=0.5, **options).fit(embeddings, labels, sample_weight=weights)
    assert sum(many.shard_sizes_) == 1_500
    assert many.bandwidth_ == pytest.approx(one.bandwidth_, rel=1e-6)
    assert many.bandwidth_curve_.loss == pytest.approx(one.bandwidth_curve_.loss, abs=1e-6)
    np.testing.assert_allclose(many.predict_proba(queries), one.predict_proba(queries), atol=1e-6)
    many.close()


def test_shards_read_files_and_search_on_though_an_actor_dies(cluster, tmp_path):
    embeddings, labels = samples(6_000, 5, np.float64)  # more than a search predicts
    groups = np.arange(6_000) // 3
    for place in range(2):
        rows = slice(3_000 * place, 3_000 * (place + 1))
        table = pa.table({"e": list(embeddings[rows]), "label": labels[rows], "patient": groups[rows]})
        pq.write_table(table, tmp_path / f"{place}.parquet", row_group_size=900)
    one = kcal.KCal(projection="identity", progress=False).fit(embeddings, labels, groups=groups)

    thread = beside(lambda: kill_one(cluster, "Shard"))
    many = ShardedKCal(n_shards=2, num_cpus=0.5, progress=False).fit_files(tmp_path, features=["e"], group="patient")
    thread.join()
    assert many.bandwidth_ == pytest.approx(one.bandwidth_, rel=1e-6)
    queries = samples(200, 6, np.float64)[0]
    kill_one(cluster, "Shard")
    np.testing.assert_allclose(many.predict_proba(queries), one.predict_proba(queries), atol=1e-6)
    many.close()


def test_a_benchmark_has_the_same_results_though_a_worker_dies(cluster, tmp_path):
    rows, labels = samples(500, 7)
    part = ClassifierOutputs(embeddings=rows, logits=2.0 * rows[:, :N_CLASSES], labels=labels)
    task = Task("small", train=part, pool=part, classes=("a", "b", "c"), calibration_share=0.3)
    plan = Plan(("uncal", "ts", "vector"), n_splits=3, jobs=2)
    one = run([task], plan, tmp_path / "one")

    thread = beside(lambda: kill_one(cluster, "PoolActor"))
    many = run([task], plan, tmp_path / "many", parallel=in_parallel)
    thread.join()
    assert [result.key for result in many] == [result.key for result in one]
    assert [result.metrics for result in many] == [result.metrics for result in one]
    assert not any(result.error for result in many)


def test_the_code_of_the_page_runs(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kcal, "load_example", load_small_example)
    names: dict[str, Any] = {}
    for code in code_of("docs/distributed.md"):
        exec(code, names)
    assert names["predictions"].n_rows == len(names["table"]) == 600
    one = names["model"].predict_proba(names["test"].embeddings[:100])
    np.testing.assert_allclose(names["probs"], one, atol=1e-5)  # in single precision
    assert [row["id"] for row in names["table"].to_pylist()] == list(range(600))


def test_a_dataset_of_ray_is_scored_too(cluster, model, tmp_path):
    import ray.data

    rows = samples(1_000, 8)[0]
    dataset = ray.data.from_arrow(pa.table({f"e{index}": rows[:, index] for index in range(N_FEATURES)}))
    done = predict(dataset, model, tmp_path / "out", workers=Workers(count=1))
    assert (done.n_rows, done.n_computed) == (1_000, 1)
    scored = pq.read_table(tmp_path / "out")
    probs = np.stack([scored.column(f"p_{k}") for k in range(N_CLASSES)], axis=1)
    np.testing.assert_array_equal(probs, model.predict_proba(rows))
    assert not (tmp_path / "out" / "_rows").exists()
    lazy = predict(dataset, model, workers=Workers(count=1)).take(5)
    np.testing.assert_allclose([row["p_1"] for row in lazy], probs[:5, 1], atol=1e-6)
