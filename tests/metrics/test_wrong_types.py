"""Every argument of every function, replaced by wrong objects: an error that names the argument, or a value."""

import inspect

import numpy as np
import pytest
import torch

from kcal import metrics
from kcal.errors import InvalidInputError

generator = np.random.default_rng(0)
PROBS, LABELS = generator.dirichlet(np.ones(3), 24), generator.integers(0, 3, 24)
VALUES = {"uncalibrated": generator.random(6), "a": generator.random(6)}
RANKS = metrics.average_ranks({"task": {"a": 1.0, "b": 2.0}})

VALID = {
    "probs": PROBS, "labels": LABELS, "metric": metrics.accuracy, "first": VALUES["a"], "second": VALUES["a"],
    "values": VALUES, "accuracies": VALUES, "tasks": {"task": {"a": 1.0}}, "metrics": {"ece": RANKS},
    "n_calibration": 10, "n_test": 10, "resamples": 20, "confidence": 0.9,
}  # fmt: skip
WRONG = [
    None, "text", object(), {}, {"a": 1}, {"a": {}}, {"a": "b"}, {1: 2}, [], [None], (), {1}, len, int, np.nan, -1, 0,
    2.5, 1e30, 10**30, True, 1j, np.array(1), np.zeros((0, 3)), np.full((24, 3), np.nan), np.array(["a"] * 24),
    np.ma.masked_array(PROBS, PROBS > 0.5), np.ma.masked_array(LABELS, LABELS > 1), np.array([None] * 24, dtype=object),
    torch.zeros(24, 3).to_sparse(), torch.zeros(24, 3, device="meta"),
    iter([1]), lambda: 1, np.datetime64("2020-01-01"), Exception, slice(3),
]  # fmt: skip
FUNCTIONS = [name for name in metrics.__all__ if inspect.isfunction(getattr(metrics, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_argument_of_the_wrong_type_is_named(name):
    function = getattr(metrics, name)
    parameters = inspect.signature(function).parameters
    valid = {key: VALID[key] for key in parameters if key in VALID}
    function(**valid)
    unnamed = []
    for parameter in parameters:
        for value in WRONG:
            try:
                function(**{**valid, parameter: value})
            except InvalidInputError as error:
                if parameter not in str(error) or not error.expected:
                    unnamed.append((parameter, value, str(error)))
    assert unnamed == []
