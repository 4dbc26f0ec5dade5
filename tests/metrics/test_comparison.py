"""Marks of methods over splits: by hand, against rows of the KCal paper's tables, and at the edges."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kcal.errors import InvalidInputError
from kcal.metrics.comparison import SplitSummary, compare_methods

steady = settings(deadline=None, max_examples=40)  # a slow run is not a failure

METHODS = ["uncalibrated", "temperature", "dirichlet", "imax", "focal", "spline", "iop", "gp", "mmce", "kcal"]


def printed(row):
    """Read a row of a printed table, over 10 splits; "-" is a missing method."""
    entries = [None if entry == "-" else [float(part) for part in entry.split("±")] for entry in row.split()]
    return {name: entry and SplitSummary(entry[0], entry[1], 10) for name, entry in zip(METHODS, entries, strict=True)}


# Rows of the accuracy and class-wise error tables; what is marked there is listed below each.
IMAGENET_ACCURACY = printed(
    "80.44±0.24 80.44±0.24 79.55±0.24 80.34±0.28 - 80.22±0.27 80.44±0.24 80.44±0.24 - 79.64±0.24"
)
IMAGENET_ERROR = printed("2.96±0.02 3.25±0.07 5.60±0.23 2.82±0.19 - 2.17±0.06 2.30±0.14 2.42±0.06 - 1.94±0.04")
MIXER_ACCURACY = printed(
    "98.17±0.08 98.17±0.08 98.03±0.09 98.13±0.08 96.98±0.08 98.17±0.08 98.17±0.08 98.16±0.08 98.15±0.06 98.14±0.06"
)
MIXER_ERROR = printed(
    "3.11±0.02 1.45±0.12 1.23±0.10 1.24±0.17 6.70±0.03 1.28±0.09 1.30±0.07 1.21±0.07 1.43±0.19 1.17±0.10"
)


def test_marks_are_those_of_the_paper_where_a_method_loses_accuracy():
    comparison = compare_methods(IMAGENET_ERROR, IMAGENET_ACCURACY)
    assert set(METHODS) - set(comparison.summaries) == {"focal", "mmce"}
    assert set(comparison.summaries) - set(comparison.pooled.accuracy_preserving) == {"dirichlet", "kcal"}
    assert comparison.pooled.best == ("spline",)
    assert comparison.pooled.underlined == "kcal"
    assert comparison.corrected is None


def test_marks_are_those_of_the_paper_where_several_are_best():
    comparison = compare_methods(MIXER_ERROR, MIXER_ACCURACY)
    assert set(comparison.summaries) - set(comparison.pooled.accuracy_preserving) == {"dirichlet", "focal"}
    assert comparison.pooled.best == ("kcal", "imax", "gp")
    assert comparison.pooled.underlined is None, "dirichlet is inaccurate, but not the lowest of all"


def test_best_accuracies_are_those_of_the_paper():
    comparison = compare_methods(IMAGENET_ACCURACY, IMAGENET_ACCURACY, better="higher")
    assert set(comparison.pooled.best) == {"uncalibrated", "temperature", "imax", "spline", "iop", "gp"}


def random_data(seed, better):
    generator = np.random.default_rng(seed)
    names = ["uncalibrated", "a", "b", "c", "d"]
    values = {name: generator.normal(generator.normal(0, 1), 1, size=10) for name in names}
    accuracies = {name: generator.normal(generator.normal(0, 1), 1, size=10) for name in names}
    return values, accuracies, better


def marks_slow(values, accuracies, better, p_higher, level=0.01):
    preserving = [name for name in values if not p_higher(accuracies["uncalibrated"], accuracies[name]) < level]
    sign = 1 if better == "lower" else -1
    best = min(preserving, key=lambda name: sign * np.mean(values[name]))
    together = {n for n in preserving if not p_higher(sign * values[n], sign * values[best]) < level}
    leader = min(values, key=lambda name: sign * np.mean(values[name]))
    return preserving, best, together, None if leader in preserving else leader


@steady
@given(seed=st.integers(0, 10_000), better=st.sampled_from(["lower", "higher"]))
def test_marks_equal_those_from_the_tests_of_scipy(seed, better):
    values, accuracies, better = random_data(seed, better)
    comparison = compare_methods(values, accuracies, better=better, n_calibration=50, n_test=25)

    def pooled(first, second):
        return stats.ttest_ind(first, second, alternative="greater").pvalue

    def corrected(first, second):
        differences = first - second
        if not differences.any():
            return 0.5
        t = differences.mean() / math.sqrt(differences.var(ddof=1) * (1 / len(differences) + 25 / 50))
        return stats.t.sf(t, len(differences) - 1)

    for marks, test in ((comparison.pooled, pooled), (comparison.corrected, corrected)):
        preserving, best, together, underlined = marks_slow(values, accuracies, better, test)
        assert list(marks.accuracy_preserving) == preserving
        assert marks.best[0] == best
        assert set(marks.best) == together
        assert marks.underlined == underlined


def test_equal_values_over_all_splits_are_compared_exactly():
    values = {"uncalibrated": [0.3] * 10, "a": [0.2] * 10, "b": [0.2] * 10, "c": [0.1] * 10}
    accuracies = {"uncalibrated": [0.9] * 10, "a": [0.9] * 10, "b": [0.95] * 10, "c": [0.8] * 10}
    comparison = compare_methods(values, accuracies, n_calibration=10, n_test=10)
    for marks in (comparison.pooled, comparison.corrected):
        assert marks.accuracy_preserving == ("uncalibrated", "a", "b")
        assert marks.best == ("a", "b")
        assert marks.underlined == "c"


@pytest.mark.parametrize("n_splits", [1, 3, 9])
def test_fewer_than_ten_splits_call_no_method_best(n_splits):
    noise = np.random.default_rng(0).normal(0, 0.02, (4, n_splits))
    values = dict(zip(["uncalibrated", "a", "b", "c"], np.array([[0.11], [0.08], [0.09], [0.01]]) + noise, strict=True))
    accuracies = dict.fromkeys(values, np.full(n_splits, 0.9)) | {"c": np.full(n_splits, 0.8)}
    comparison = compare_methods(values, accuracies, n_calibration=10, n_test=10)
    for marks in (comparison.pooled, comparison.corrected):
        assert marks.best == ()
        assert marks.underlined is None
        assert math.isnan(marks.p_values["b"]) == (n_splits == 1)
    assert "best" not in str(comparison).rpartition("\n")[0]
    assert f"10 splits are needed to call methods best, not {n_splits}" in str(comparison)


def test_where_no_method_preserves_accuracy_none_is_best():
    values = {"a": [0.2, 0.21] * 5, "b": [0.3, 0.31] * 5}
    accuracies = {"a": [0.1] * 10, "b": [0.2] * 10, "none": [0.9] * 10}
    marks = compare_methods(values, accuracies, baseline="none").pooled
    assert marks.accuracy_preserving == marks.best == ()
    assert marks.underlined == "a"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("better", {"better": "smaller"}),
        ("level", {"level": 0}),
        ("values", {"values": {"a": None}}),
        ("values", {"values": {"a": [0.1, float("inf")]}}),
        ("accuracies", {"accuracies": {"a": [0.9, 0.9]}}),
        ("n_calibration", {"n_test": 10}),
    ],
)
def test_invalid_arguments_are_named(name, change):
    arguments = {"values": {"a": [0.1, 0.2]}, "accuracies": {"a": [0.9, 0.9], "uncalibrated": [0.9, 0.9]}} | change
    with pytest.raises(InvalidInputError, match=f"^{name}.* must"):
        compare_methods(**arguments)
