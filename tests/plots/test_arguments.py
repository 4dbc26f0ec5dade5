"""Every argument of every plot that the library reads: an error that names an argument, or a plot."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from drawn_figures import overconfident
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kcal import plots
from kcal.errors import InvalidInputError
from kcal.kernels import BandwidthCurve
from kcal.metrics import AverageRanks, accuracy_rejection, average_ranks, canonical_cells, evaluate, reliability
from kcal.projection import TrainingCurve

BAD: list[Any] = [-1, 2.5, b"x", [], {"a": None}, {"a": [1]}, object(), float("nan"), 10**30, np.zeros((2, 2, 2))]
PROBS, LABELS = overconfident(60, 3)
BINS = [reliability(PROBS, LABELS, of=k, adaptive=False) for k in range(3)]
CURVE = BandwidthCurve(np.ones(1), np.ones(1), 1.0, 1.0, at_edge=False)
OPTIONS = {"minimum_count": 15, "confidence": 0.9}
CALLS: dict[Callable[..., Any], dict[str, Any]] = {
    plots.reliability_diagram: {"predictions": BINS[0], "labels": None, "of": None, **OPTIONS},
    plots.reliability_grid: {"rows": {"a": BINS[:1]}, "class_names": ["a"], **OPTIONS},
    plots.class_reliability_grid: {
        "predictions": BINS[:1], "labels": None, "class_names": ["a"], "limit": 20, **OPTIONS,
    },
    plots.rank_plot: {"ranks": average_ranks({"task": {"a": 1, "b": 2}})},
    plots.subgroup_plot: {"subgroups": evaluate(PROBS, LABELS, by=LABELS, resamples=20)},
    plots.rejection_curve: {"curves": {"a": accuracy_rejection(PROBS, LABELS)}, "minimum_count": 15},
    plots.simplex_plot: {"cells": canonical_cells(PROBS, LABELS, bins=5), "class_names": None, "minimum_count": 3},
    plots.bandwidth_curve: {"curve": CURVE},
    plots.training_curve: {"curve": TrainingCurve((1,), (0.5,), (0.1,))},
    plots.wealth_curves: {"curves": {"a": np.ones(3)}, "alpha": 0.05, "changes": (1,)},
}  # fmt: skip


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
    assert {function.__name__ for function in CALLS} == set(plots.__all__) - {"explanation"}
    for function, arguments in CALLS.items():
        if function in (plots.reliability_grid, plots.class_reliability_grid):
            given = Figure()
            assert function(**arguments, figure=given).flat[0].get_figure(root=True) is given
        else:
            ax = Figure().add_subplot()
            assert function(**arguments, ax=ax) is ax


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("labels", lambda: plots.reliability_diagram(BINS[0], LABELS)),
        ("of", lambda: plots.reliability_diagram(BINS[0], of=1)),
        ("predictions", lambda: plots.reliability_diagram(PROBS)),
        (r"rows\['a'\]", lambda: plots.reliability_grid({"a": BINS[:2]}, list("abc"))),
        ("rows", lambda: plots.reliability_grid({str(k): BINS for k in range(1000)}, list("abc"))),
        ("labels", lambda: plots.class_reliability_grid(BINS, LABELS)),
        ("class_names", lambda: plots.class_reliability_grid(PROBS, LABELS, class_names=["a"])),
        ("ranks", lambda: plots.rank_plot(AverageRanks({}))),
        ("cells", lambda: plots.simplex_plot(canonical_cells([[0.4, 0.6]], [0]))),
        (r"curves\['a'\]", lambda: plots.wealth_curves({"a": [[0.0]]})),
    ],
)
def test_arguments_that_do_not_fit_raise(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInputError, match=f"^{name} must"):
        call()
