"""What is missing, wrong or cannot be reached is said before any process starts; how shards are cut and read."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kcal
from kcal.distributed import ShardedKCal, Workers, connect
from kcal.distributed.engine import check_address
from kcal.distributed.shards import cut, load_rows


def test_without_ray_the_message_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(kcal.MissingExtraError, match=r"pip install 'kcal\[ray\]'"):
        connect()


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_a_cluster_that_does_not_answer_is_named(form):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]  # bound, but nobody listens
        with pytest.raises(kcal.InvalidInputError, match=r"must be that of a Ray cluster that runs; got .*refused"):
            check_address(form.format(port))


def test_an_address_has_a_host_and_a_port():
    with pytest.raises(kcal.InvalidInputError, match='address must be "host:port"'):
        check_address("somewhere")
    check_address(None)
    check_address("auto")


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


@pytest.mark.parametrize(
    ("cores", "needs", "expected"), [(1, 1, (0, 1)), (2, 1, (1, 1)), (2, 0.5, (0.5, 2)), (4, 3, (3, 1))]
)
def test_workers_that_score_a_pipeline_leave_a_core_to_its_other_tasks(cores, needs, expected):
    class Cluster:
        data = SimpleNamespace(ActorPoolStrategy=SimpleNamespace)

        @staticmethod
        def cluster_resources() -> dict[str, float]:
            return {"CPU": cores}

    options = Workers(num_cpus=needs).options(Cluster, kcal.KCal())
    assert (options["num_cpus"], options["compute"].max_size) == expected


def test_shards_end_between_classes_where_one_is_near():
    codes = [0] * 48 + [1] * 52
    (first, second) = cut(np.array(codes), 2)
    assert (first.stop, first.first_class, first.stop_class) == (48, 0, 1)
    assert (second.start, second.stop, second.first_class, second.stop_class) == (48, 100, 1, 2)


def test_a_large_class_is_cut():
    shards = cut(np.array([0] * 10 + [1] * 90), 3)
    assert [(shard.start, shard.stop) for shard in shards] == [(0, 33), (33, 66), (66, 100)]
    assert [(shard.first_class, shard.stop_class) for shard in shards] == [(0, 2), (1, 2), (1, 2)]
