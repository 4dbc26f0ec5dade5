"""What is missing, wrong or cannot be reached is said before any process starts; how shards are cut and read."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch import nn

import kcal
from kcal.distributed import ShardedKCal, Workers, connect, engine
from kcal.distributed.engine import describe_cluster, find_cluster
from kcal.distributed.shards import cut, load_rows


def test_without_ray_the_message_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(kcal.MissingExtraError, match=r"pip install 'kcal\[ray\]'"):
        connect()


@pytest.fixture
def port() -> Iterator[int]:
    """A port at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def answer() -> Iterator[Callable[[bytes], str]]:
    """A function that starts a server with one answer, and returns its address."""
    with ExitStack() as servers:

        def start(content: bytes) -> str:
            listening = servers.enter_context(socket.create_server(("127.0.0.1", 0)))

            def reply() -> None:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(100)
                    connection.sendall(content)

            threading.Thread(target=reply, daemon=True).start()
            return f"127.0.0.1:{listening.getsockname()[1]}"

        yield start


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file in which Ray notes the last cluster that was started on this machine."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "ray").mkdir()
    return tmp_path / "ray" / "ray_current_cluster"


SETTINGS_FRAME = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The first answer of a server of HTTP/2, which Ray speaks."""


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_a_cluster_that_does_not_answer_is_named(form, port):
    with pytest.raises(kcal.InvalidInputError, match=r"must be that of a Ray cluster that runs; got .*refused"):
        find_cluster(form.format(port))


def test_what_answers_at_an_address_must_speak_as_ray_does(answer):
    with pytest.raises(kcal.InvalidInputError, match=r"got 127\.0\.0\.1:\d+ \(what answers there is not Ray\)"):
        find_cluster(answer(b"HTTP/1.1 400 Bad Request\r\n"))
    address = answer(SETTINGS_FRAME)
    assert find_cluster(address) == address


def test_an_address_has_a_host_and_a_port():
    with pytest.raises(kcal.InvalidInputError, match='address must be "host:port"'):
        find_cluster("somewhere")


def test_without_an_address_it_is_the_cluster_of_this_machine_or_a_new_one(record, answer, port, monkeypatch):
    assert find_cluster(None) == "local"
    with pytest.raises(kcal.InvalidInputError, match=r"got auto \(ray start has begun none here\)"):
        find_cluster("auto")
    record.write_text(f"127.0.0.1:{port}")  # of a cluster that has crashed
    assert find_cluster(None) == "local"
    with pytest.raises(kcal.InvalidInputError, match=f"got auto \\(127.0.0.1:{port}: .*refused"):
        find_cluster("auto")
    record.write_text(address := answer(SETTINGS_FRAME))
    assert find_cluster(None) == address
    assert find_cluster("local") == "local"
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert find_cluster(None) == "local"


def test_the_reason_of_a_failed_connection_is_that_of_ray(monkeypatch):
    def init(**_: Any) -> None:
        raise ConnectionError("Failed to connect") from RuntimeError(
            "Traceback:\n  a line\nAuthenticationError: no token"
        )

    ray = SimpleNamespace(init=init, is_initialized=lambda: False)
    monkeypatch.setattr(engine, "require_ray", lambda: ray)
    monkeypatch.setattr(engine, "_quieten", lambda _: None)
    with pytest.raises(kcal.InvalidInputError, match=r"got local \(AuthenticationError: no token\)"):
        connect("local")


def test_a_cluster_is_described_by_its_nodes_and_resources():
    ray = SimpleNamespace(
        cluster_resources=lambda: {"CPU": 3.0, "GPU": 1.0},
        nodes=lambda: [{"Alive": True}, {"Alive": False}, {"Alive": True}],
        get_runtime_context=lambda: SimpleNamespace(gcs_address="10.0.0.1:6379"),
    )
    assert describe_cluster(ray) == "Ray cluster at 10.0.0.1:6379: 2 nodes, 3 CPUs, 1 GPU"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kernel": "box"}, "kernel must be one of"),
        ({"bandwidth": "rule"}, "bandwidth"),
        ({"bandwidth": "published"}, "folds must be given"),
        ({"n_shards": 0}, "n_shards must be"),
        ({"n_predicted": 0}, "n_predicted must be"),
        ({"projection": "skip"}, "projection must be one of 'identity', 'unit'"),
    ],
)
def test_parameters_of_shards_are_checked_before_anything_starts(parameters, message):
    with pytest.raises(kcal.InvalidInputError, match=message):
        ShardedKCal(**parameters).fit(np.eye(3), [0, 1, 0])


def test_every_row_of_shards_needs_a_label():
    with pytest.raises(kcal.InvalidInputError, match="y must have"):
        ShardedKCal().fit(np.eye(3), [0, 1])


def test_a_column_that_files_of_shards_lack_is_named(tmp_path):
    pq.write_table(pa.table({"e": [[1.0, 2.0]], "label": [0]}), tmp_path / "a.parquet")
    with pytest.raises(kcal.InvalidInputError, match=r"a\.parquet has no column 'embedding'"):
        ShardedKCal().fit_files(tmp_path, features=["embedding"])
    with pytest.raises(kcal.InvalidInputError, match=r"a\.parquet has no column 'patient'"):
        ShardedKCal().fit_files(tmp_path, group="patient")


def test_rows_of_files_come_in_the_order_that_is_asked_for(tmp_path):
    rows = np.random.default_rng(0).normal(size=(50, 3))
    for place in range(2):
        part = rows[25 * place : 25 * (place + 1)]
        pq.write_table(pa.table({"e": list(part)}), tmp_path / f"{place}.parquet", row_group_size=7)
    asked = np.array([49, 3, 26, 25, 3])
    loaded = load_rows([str(tmp_path / f"{place}.parquet") for place in range(2)], ["e"], asked)
    np.testing.assert_array_equal(loaded, rows[asked])


def cluster_with(**resources: float) -> Any:
    """Ray, connected to a cluster of such resources."""
    data = SimpleNamespace(ActorPoolStrategy=SimpleNamespace)
    return SimpleNamespace(data=data, cluster_resources=lambda: resources)


@pytest.mark.parametrize(
    ("cores", "needs", "expected"), [(1, 1, (0, 1)), (2, 1, (1, 1)), (2, 0.5, (0.5, 2)), (4, 3, (3, 1))]
)
def test_workers_that_score_a_pipeline_leave_a_core_to_its_other_tasks(cores, needs, expected):
    options = Workers(num_cpus=needs).options(cluster_with(CPU=cores), kcal.KCal())
    assert (options["num_cpus"], options["compute"].max_size) == expected


@pytest.mark.parametrize(
    ("workers", "resources", "num_gpus", "count"),
    [
        (Workers(), {"CPU": 16}, None, 16),
        (Workers(), {"CPU": 16, "GPU": 4}, 1.0, 4),  # a GPU for each
        (Workers(num_gpus=0.5), {"CPU": 16, "GPU": 4}, 0.5, 8),
        (Workers(num_gpus=0), {"CPU": 16, "GPU": 4}, None, 16),
        (Workers(count=2), {"CPU": 16, "GPU": 4}, 1.0, 2),
    ],
)
def test_the_workers_of_a_network_get_gpus_where_there_are_some(workers, resources, num_gpus, count):
    network = kcal.CalibratedClassifier(nn.Linear(2, 2))
    options = workers.options(cluster_with(**resources), network, n_tasks=100)
    assert (options["num_gpus"], options["compute"].max_size) == (num_gpus, count)
    assert workers.options(cluster_with(**resources), kcal.KCal(), 100)["num_gpus"] == (workers.num_gpus or None)


def test_shards_end_between_classes_where_one_is_near():
    codes = [0] * 48 + [1] * 52
    (first, second) = cut(np.array(codes), 2)
    assert (first.stop, first.first_class, first.stop_class) == (48, 0, 1)
    assert (second.start, second.stop, second.first_class, second.stop_class) == (48, 100, 1, 2)


def test_a_large_class_is_cut():
    shards = cut(np.array([0] * 10 + [1] * 90), 3)
    assert [(shard.start, shard.stop) for shard in shards] == [(0, 33), (33, 66), (66, 100)]
    assert [(shard.first_class, shard.stop_class) for shard in shards] == [(0, 2), (1, 2), (1, 2)]
