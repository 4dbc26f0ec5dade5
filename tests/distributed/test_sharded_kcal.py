"""A sharded KCal equals one on a single machine, with shards in this process in place of Ray's actors."""

from __future__ import annotations

import pickle
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.base import clone

import kcal
from kcal.distributed import ShardedKCal, sharded_kcal


class Actor:
    """An actor whose methods are called at once."""

    def __init__(self, instance: Any) -> None:
        self.instance = instance

    def __getattr__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(remote=getattr(self.instance, name))


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = SimpleNamespace(
        get=lambda value: value,
        put=lambda value: pickle.loads(pickle.dumps(value)),  # what an actor gets is a copy
        remote=lambda **_: lambda kind: SimpleNamespace(remote=lambda *given: Actor(kind(*given))),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(sharded_kcal, "connect", lambda _: ray)


@pytest.mark.parametrize("projection", ["identity", "unit"])
@pytest.mark.parametrize("bandwidth", ["cv", 0.5])
def test_shards_whose_rows_have_no_length_are_as_one_machine(projection: str, bandwidth: str | float) -> None:
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 40)
    rows = generator.normal(size=(160, 5)) + labels[:, None]
    rows[labels == 0] *= 1e-3 if projection == "unit" else 0.0
    options: dict[str, Any] = {"projection": projection, "bandwidth": bandwidth, "progress": False}
    one = kcal.KCal(**options).fit(rows, labels)
    many = ShardedKCal(n_shards=4, **options).fit(rows, labels)
    assert many.shard_sizes_ == (40, 40, 40, 40)  # the first has the rows of class 0 alone
    assert many.bandwidth_ == pytest.approx(one.bandwidth_, rel=1e-6)
    queries = generator.normal(size=(30, 5))
    np.testing.assert_allclose(many.predict_proba(queries), one.predict_proba(queries), atol=1e-9)
    np.testing.assert_allclose(many.log_evidence(queries), one.log_evidence(queries), atol=1e-9)
    np.testing.assert_allclose(many.evidence(queries), one.evidence(queries), atol=1e-9)


@pytest.mark.parametrize("column", ["label", "patient"])
def test_missing_labels_and_groups_of_files_are_no_class_of_their_own(column: str, tmp_path: Any) -> None:
    columns: dict[str, list[Any]] = {"e": [[0.0], [1.0], [2.0]], "label": list("aab"), "patient": list("xyz")}
    columns[column][1] = None
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    with pytest.raises(kcal.InvalidInputError, match=f"column '{column}'; got 1 missing"):
        ShardedKCal(n_shards=1).fit_files(tmp_path, features=["e"], group="patient")


def test_the_search_by_folds_is_that_of_one_machine() -> None:
    generator = np.random.default_rng(2)
    labels = generator.integers(0, 3, 1_500)
    embeddings = generator.normal(size=(1_500, 6)) + 2.0 * np.eye(3, 6)[labels]
    # the projection ignores the lengths of embeddings, but the evidence does not
    options: dict[str, Any] = {"projection": "unit", "folds": 5, "prior": "uniform", "progress": False}
    one = kcal.KCal(**options).fit(embeddings, labels)
    many = ShardedKCal(n_shards=2, **options).fit(embeddings, labels)
    assert many.bandwidth_ == pytest.approx(one.bandwidth_, rel=1e-6)
    assert many.bandwidth_curve_.loss == pytest.approx(one.bandwidth_curve_.loss, abs=1e-6)
    queries = generator.normal(size=(300, 6))
    np.testing.assert_allclose(many.predict_proba(queries), one.predict_proba(queries), atol=1e-6)
    np.testing.assert_allclose(many.evidence(queries), one.evidence(queries), atol=1e-6)
    with pytest.raises(kcal.KcalError, match=f"cannot be saved.* Fit again with bandwidth={many.bandwidth_!r}"):
        pickle.dumps(many)
    assert clone(many).get_params() == many.get_params()
