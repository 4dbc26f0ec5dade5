"""Average ranks against scipy, by hand, and as the KCal paper averages them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from kcal.errors import InvalidInputError
from kcal.metrics import AverageRank, AverageRanks, average_ranks, overall_ranks

steady = settings(deadline=None, max_examples=50)  # a slow run is not a failure


def test_average_ranks_by_hand():
    # Task 1: a 1, b 2.5, c 2.5. Task 2, without c: b 1, a 2.
    tasks = {"one": {"a": 0.1, "b": 0.2, "c": 0.2}, "two": {"a": 0.3, "b": 0.1, "c": None}}
    averages = average_ranks(tasks)
    assert averages.ranks["a"] == AverageRank(1.5, pytest.approx(math.sqrt(0.5)))
    assert averages.ranks["b"] == AverageRank(1.75, pytest.approx(math.sqrt(2 * 0.75**2)))
    assert averages.ranks["c"].mean == 2.5
    assert math.isnan(averages.ranks["c"].std)
    assert averages.best == ("a",)
    assert str(averages).splitlines() == ["a  1.50 ± 0.71", "b  1.75 ± 1.06", "c  2.50 ± nan"]


@steady
@given(
    seed=st.integers(0, 10_000),
    n_tasks=st.integers(1, 6),
    n_splits=st.integers(1, 4),
    better=st.sampled_from(["lower", "higher"]),
)
def test_average_ranks_equal_those_of_scipy(seed, n_tasks, n_splits, better):
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 4, size=(n_tasks, 5, n_splits)).astype(float)  # ties are common
    values[generator.random(values.shape) < 0.2] = np.nan
    values[:, 0] = 2  # so that one is always there
    tasks = {str(t): {f"m{m}": values[t, m] for m in range(5)} for t in range(n_tasks)}
    ranks = rankdata(values if better == "lower" else -values, axis=1, nan_policy="omit")
    averages = average_ranks(tasks, better=better).ranks
    for m in range(5):
        by_task = [row[~np.isnan(row)] for row in ranks[:, m]]
        means = np.array([row.mean() for row in by_task if row.size])
        assert (f"m{m}" in averages) == (means.size > 0)
        if means.size:
            assert averages[f"m{m}"].mean == pytest.approx(means.mean())
            expected = means.std(ddof=1) if means.size > 1 else np.nan
            assert averages[f"m{m}"].std == pytest.approx(expected, nan_ok=True, abs=1e-12)


def test_spread_is_that_of_the_paper():
    # The paper's accuracy of the worst of 10 methods, 11 data sets of 10 splits: 9.99 ± 0.03. Pooled, it would be 0.10.
    values = {f"m{m}": np.full(10, float(m)) for m in range(10)}
    tasks = {str(t): dict(values) for t in range(10)}
    tasks["10"] = values | {"m9": np.where(np.arange(10) == 3, 7.5, 9.0)}  # second to last on one split
    rank = average_ranks(tasks).ranks["m9"]
    assert (round(rank.mean, 2), round(rank.std, 2)) == (9.99, 0.03)


def test_overall_average_is_that_of_the_paper():
    # ECE, accuracy, CECE and Brier of the uncalibrated predictions and of KCal; the table's last row is 7.16 and 2.61.
    printed = {"ece": (8.42, 3.84), "accuracy": (5.03, 2.70), "cece": (6.99, 1.83), "brier": (8.18, 2.05)}
    metrics = {
        metric: AverageRanks({"uncalibrated": AverageRank(u, 1.0), "kcal": AverageRank(k, 1.0)})
        for metric, (u, k) in printed.items()
    }
    overall = overall_ranks(metrics)
    assert overall["uncalibrated"] == pytest.approx(7.16, abs=0.006)
    assert overall["kcal"] == pytest.approx(2.61, abs=0.006)


@pytest.mark.parametrize(
    "tasks",
    [{}, {"t": {"a": None}}, {"t": {"a": "best"}}, {"t": {"a": [[1.0]]}}, {"t": {"a": [1.0, 2.0], "b": 1.0}}],
)
def test_invalid_tasks_are_named(tasks):
    with pytest.raises(InvalidInputError, match=r"^tasks.* must"):
        average_ranks(tasks)
