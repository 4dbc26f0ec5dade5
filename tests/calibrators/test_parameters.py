"""Invalid parameters are refused by their names when a KCal is fitted."""

from __future__ import annotations

import numpy as np
import pytest

from kcal import FastRecipe, KCal
from kcal.errors import InvalidInputError

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("seed", value) for value in (-1, 2**64, 1.5)),
        ("kernel", "cosine"),
        ("recipe", "slow"),
        ("folds", 500),
        ("projection", "deep"),
        ("support", "some"),
        ("min_cluster_size", 0),
        ("bandwidth_interval", (2.0, 1.0)),
        *(("smoothing", value) for value in (NAN, 1.0)),
        *(("prior", value) for value in ([0.5, 0.4], [0.5, 0.4, 0.4], {7: 1.0}, {0: 0.7, 1: 0.3}, "flat")),
        *(("bandwidth", value) for value in (np.array([1.0, 2.0]), 10**400, 0, -1.0, "nope")),
        ("dimension", np.array([1, 2])),
        ("projection", np.array([1, 2])),
        *(("bandwidth_interval", value) for value in (("a", "b"), (NAN, 1), (1,))),
        *(("bandwidth_reference", value) for value in ((1, INFINITY), (1, None), (1,), (1.4, 300))),
        ("bandwidth_exponent", 0.5),
        *(("prior", value) for value in (["a", "b", "c"], {0: "a", 1: "b", 2: "c"}, [[1], [1, 2]])),
    ],
    ids=str,
)
def test_invalid_parameter_is_named(problem, name, value):
    with pytest.raises(InvalidInputError, match=f"^{name} ") as caught:
        KCal(**{"projection": "identity", name: value}).fit(problem.embeddings, problem.labels)
    assert caught.value.parameter == name


def test_rule_needs_its_reference(problem):
    with pytest.raises(InvalidInputError, match="bandwidth_reference="):
        KCal(projection="identity", bandwidth="rule").fit(problem.embeddings, problem.labels)


def test_largest_seed_trains(problem):
    recipe = FastRecipe(steps=1, batch_size=50)
    rows = {"train_embeddings": problem.train_embeddings, "train_labels": problem.train_labels}
    assert KCal(seed=2**64 - 1, recipe=recipe).fit(problem.embeddings, problem.labels, **rows).bandwidth_ > 0
