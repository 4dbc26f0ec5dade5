"""What is wrong is said before any process starts; how many workers there are; how shards are cut and read."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch import nn

import kcal
from kcal.distributed import ShardedKCal, Workers, connect, engine


def test_missing_ray_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(kcal.MissingExtraError, match=r"pip install 'kcal\[ray\]'"):
        connect()


def test_failed_connection_names_the_address(monkeypatch):
    def init(**_: Any) -> None:
        raise ConnectionError("no token")

    ray = SimpleNamespace(init=init, is_initialized=lambda: False)
    monkeypatch.setattr(engine, "require_ray", lambda: ray)
    with pytest.raises(kcal.InvalidInputError, match=r"address .*; got host:1 \(no token\)"):
        connect("host:1")


@pytest.mark.parametrize(
    "parameters",
    [
        {"kernel": "box"},
        {"bandwidth": "rule"},
        {"folds": None, "bandwidth": "published"},
        {"n_shards": 0},
        {"n_predicted": 0},
        {"projection": "residual"},
    ],
)
def test_parameters_of_shards_are_checked_before_anything_starts(parameters):
    with pytest.raises(kcal.InvalidInputError, match=next(iter(parameters))):
        ShardedKCal(**parameters).fit(np.eye(3), [0, 1, 0])


def test_missing_columns_are_named(tmp_path):
    pq.write_table(pa.table({"e": [[1.0, 2.0]], "label": [0]}), tmp_path / "a.parquet")
    for options in ({"features": ["embedding"]}, {"group": "patient"}):
        with pytest.raises(kcal.InvalidInputError, match=r"a\.parquet has no column '(embedding|patient)'"):
            ShardedKCal().fit_files(tmp_path, **options)


@pytest.mark.parametrize(
    ("workers", "resources", "num_gpus"),
    [(Workers(), {"CPU": 16}, 0), (Workers(), {"CPU": 16, "GPU": 4}, 1.0), (Workers(num_gpus=0.5), {"GPU": 4}, 0.5)],
)
def test_workers_of_a_network_get_gpus(workers, resources, num_gpus):
    ray, network = SimpleNamespace(cluster_resources=lambda: resources), kcal.CalibratedClassifier(nn.Linear(2, 2))
    assert workers.needs(ray, network)["num_gpus"] == num_gpus
    assert workers.needs(ray, kcal.KCal())["num_gpus"] == (workers.num_gpus or 0)
