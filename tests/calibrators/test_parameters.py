"""Parameters that cannot be meant are refused when a KCal is fitted, by their names."""

from __future__ import annotations

import numpy as np
import pytest

from kcal import FastRecipe, KCal
from kcal.errors import InvalidInputError

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seed", -1, "seed must be an integer from 0"),
        ("seed", 2**64, "seed must be an integer"),
        ("seed", 1.5, "seed must be an integer"),
        ("smoothing", NAN, "smoothing must be a number between 0 and 1; got nan"),
        (
            "bandwidth",
            np.array([1.0, 2.0]),
            r'bandwidth must be "cv", "published", "rule" or a positive number; got ndarray of shape \(2,\)',
        ),
        ("bandwidth", 10**400, 'bandwidth must be "cv", "published", "rule" or a positive number'),
        ("dimension", np.array([1, 2]), "dimension must be"),
        ("projection", np.array([1, 2]), "projection must be"),
        ("bandwidth_interval", ("a", "b"), "bandwidth_interval must be a pair of two positive, finite numbers; got"),
        ("bandwidth_interval", (NAN, 1), "bandwidth_interval must be a pair of two positive"),
        (
            "bandwidth_reference",
            (1, INFINITY),
            "bandwidth_reference must be a pair of two positive, finite numbers; got",
        ),
        ("bandwidth_reference", (1, None), "bandwidth_reference must be a pair of two positive"),
        ("bandwidth_reference", (1,), "bandwidth_reference must be a pair"),
        ("bandwidth_exponent", 0.5, "bandwidth_exponent must be a number between -1 and 0; got 0.5"),
        ("prior", ["a", "b", "c"], "prior must be one number per class; got"),
        ("prior", {0: "a", 1: "b", 2: "c"}, "prior must be one number per class"),
        ("prior", [[1], [1, 2]], "prior must be one number per class"),
    ],
)
def test_a_parameter_that_cannot_be_meant_is_named(problem, name, value, message):
    with pytest.raises(InvalidInputError, match=message):
        KCal(**{"projection": "identity", name: value}).fit(problem.embeddings, problem.labels)


def test_the_rule_needs_its_reference(problem):
    with pytest.raises(InvalidInputError, match="needs bandwidth_reference="):
        KCal(projection="identity", bandwidth="rule").fit(problem.embeddings, problem.labels)


def test_numbers_of_numpy_serve_as_parameters(problem):
    def probabilities(integer, real):
        calibrator = KCal(
            dimension=integer(2), seed=integer(3), folds=integer(4), smoothing=real(0.25), recipe=FastRecipe(integer(3))
        )
        rows = {"train_embeddings": problem.train_embeddings, "train_labels": problem.train_labels}
        return calibrator.fit(problem.embeddings, problem.labels, **rows).predict_proba(problem.test_embeddings)

    np.testing.assert_array_equal(probabilities(np.int64, np.float64), probabilities(int, float))


def test_the_largest_seed_trains(problem):
    recipe = FastRecipe(steps=1, batch_size=50)
    rows = {"train_embeddings": problem.train_embeddings, "train_labels": problem.train_labels}
    assert KCal(seed=2**64 - 1, recipe=recipe).fit(problem.embeddings, problem.labels, **rows).bandwidth_ > 0
