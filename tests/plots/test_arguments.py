"""Every argument of every plot: a kcal error that names an argument, or a plot."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pictures import overconfident

from kcal import plots
from kcal.errors import InvalidInputError
from kcal.kernels import BandwidthCurve
from kcal.metrics import AverageRanks, accuracy_rejection, average_ranks, canonical_cells, evaluate, reliability
from kcal.projection import TrainingCurve

BAD: list[Any] = [
    -1,
    2.5,
    b"x",
    [],
    {"a": None},
    {"a": [1]},
    object(),
    float("nan"),
    10**30,
    np.zeros((2, 2, 2)),
    iter([1]),
]
PROBS, LABELS = overconfident(60, 3)
BINS = [reliability(PROBS, LABELS, of=k, adaptive=False) for k in range(3)]
CURVE = BandwidthCurve(np.ones(1), np.ones(1), 1.0, 1.0, at_edge=False)
OPTIONS = {"minimum_count": 15, "confidence": 0.9, "title": None}
CALLS: dict[Callable[..., Any], dict[str, Any]] = {
    plots.reliability_diagram: {
        "predictions": BINS[0],
        "labels": None,
        "of": None,
        "ax": None,
        "class_name": None,
        "legend": False,
        **OPTIONS,
    },
    plots.reliability_grid: {"rows": {"a": BINS[:1]}, "class_names": ["a"], "figure": None, **OPTIONS},
    plots.class_reliability_grid: {
        "predictions": BINS[:1],
        "labels": None,
        "class_names": ["a"],
        "limit": 20,
        "figure": None,
        **OPTIONS,
    },
    plots.rank_plot: {"ranks": average_ranks({"task": {"a": 1, "b": 2}}), "ax": None, "title": None},
    plots.subgroup_plot: {"subgroups": evaluate(PROBS, LABELS, by=LABELS, resamples=20), "ax": None, "title": None},
    plots.rejection_curve: {"curves": {"a": accuracy_rejection(PROBS, LABELS)}, "ax": None, "minimum_count": 15},
    plots.simplex_plot: {"cells": canonical_cells(PROBS, LABELS, bins=5), "class_names": None, "minimum_count": 3},
    plots.bandwidth_curve: {"curve": CURVE, "ax": None, "title": None},
    plots.training_curve: {"curve": TrainingCurve((1,), (0.5,), (0.1,)), "ax": None, "title": None},
    plots.wealth_curves: {
        "curves": {"a": np.ones(3)},
        "alpha": 0.05,
        "changes": (1,),
        "ax": None,
        "title": None,
    },
}


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)
def test_invalid_argument_is_named_or_drawn(function: Callable[..., Any]) -> None:
    arguments = CALLS[function]
    for name in arguments:
        for value in BAD:
            parameter = name
            try:
                assert isinstance(function(**{**arguments, name: value}), Axes | np.ndarray)
            except InvalidInputError as error:
                parameter = error.parameter.partition("[")[0]
            assert parameter in arguments, (name, value)


def test_every_plot_draws_on_what_is_given() -> None:
    assert {function.__name__ for function in CALLS} == set(plots.__all__) - {
        "explanation"
    }  # which has a test of its own
    for function, arguments in CALLS.items():
        if "figure" in arguments:
            given = Figure()
            assert function(**{**arguments, "figure": given}).flat[0].get_figure(root=True) is given
        else:
            ax = Figure().add_subplot()
            assert function(**{**arguments, "ax": ax}) is ax


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("labels", lambda: plots.reliability_diagram(BINS[0], LABELS)),
        ("of", lambda: plots.reliability_diagram(BINS[0], of=1)),
        ("predictions", lambda: plots.reliability_diagram(PROBS)),
        ("confidence", lambda: plots.reliability_diagram(BINS[0], confidence=95)),
        ("legend", lambda: plots.reliability_diagram(BINS[0], legend="yes")),
        (r"rows\['a'\]", lambda: plots.reliability_grid({"a": BINS[:2]}, list("abc"))),
        ("rows", lambda: plots.reliability_grid({str(k): BINS for k in range(1000)}, list("abc"))),
        ("labels", lambda: plots.class_reliability_grid(BINS, LABELS)),
        ("class_names", lambda: plots.class_reliability_grid(PROBS, LABELS, class_names=["a"])),
        ("limit", lambda: plots.class_reliability_grid(BINS, limit=0)),
        ("curve", lambda: plots.bandwidth_curve(None)),
        ("curve", lambda: plots.training_curve(None)),
        (r"curves\['a'\]", lambda: plots.rejection_curve({"a": [0.5, 0.6]})),
        ("ranks", lambda: plots.rank_plot(AverageRanks({}))),
        ("cells", lambda: plots.simplex_plot(canonical_cells([[0.4, 0.6]], [0]))),
        ("alpha", lambda: plots.wealth_curves({"a": [0.0]}, alpha=0)),
        (r"curves\['a'\]", lambda: plots.wealth_curves({"a": [[0.0]]})),
    ],
)
def test_invalid_arguments_raise(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInputError, match=f"^{name} must"):
        call()
