"""The tests over splits against scipy and against the formula by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kcal.errors import InvalidInputError
from kcal.metrics.comparison import SplitSummary, corrected_resampled_t_test, pooled_t_test

steady = settings(deadline=None, max_examples=50)  # a slow run is not a failure
# Scipy warns about samples without variance; those are tested by themselves.
samples = st.lists(st.integers(-50, 50), min_size=2, max_size=12).filter(lambda sample: len(set(sample)) > 1)


@steady
@given(
    means=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    stds=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)),
    sizes=st.tuples(st.integers(2, 20), st.integers(2, 20)),
)
def test_pooled_test_of_summaries_is_that_of_scipy(means, stds, sizes):
    expected = stats.ttest_ind_from_stats(
        means[0], stds[0], sizes[0], means[1], stds[1], sizes[1], equal_var=True, alternative="greater"
    ).pvalue
    first, second = (SplitSummary(*entry) for entry in zip(means, stds, sizes, strict=True))
    assert pooled_t_test(first, second) == pytest.approx(expected, abs=1e-12)


def test_corrected_test_by_hand():
    # Differences .01, .03, .02, .02: mean .02, variance 2e-4/3. Factor 1/4 + 300/100 = 3.25, 3 degrees of freedom.
    first, second = np.array([0.11, 0.23, 0.12, 0.32]), np.array([0.10, 0.20, 0.10, 0.30])
    t = 0.02 / math.sqrt(2e-4 / 3 * 3.25)
    expected = stats.t.sf(t, df=3)
    assert corrected_resampled_t_test(first, second, n_calibration=100, n_test=300) == pytest.approx(expected)
    assert corrected_resampled_t_test(second, first, n_calibration=100, n_test=300) == pytest.approx(1 - expected)


def corrected(first, second):
    return corrected_resampled_t_test(first, second, n_calibration=10, n_test=90)


@pytest.mark.parametrize("test", [pooled_t_test, corrected])
def test_values_without_variance_differ_surely_or_not_at_all(test):
    assert test([0.2] * 5, [0.1] * 5) < 1e-9
    assert test([0.1] * 5, [0.2] * 5) > 1 - 1e-9
    assert test([0.1] * 5, [0.1] * 5) == 0.5
    assert test([0.0] * 5, [0.0] * 5) == 0.5


@pytest.mark.parametrize("test", [pooled_t_test, corrected])
def test_one_split_cannot_be_tested(test):
    assert math.isnan(test([0.2], [0.1]))


@pytest.mark.parametrize("values", [[], 0.5, ["a", "b"], [0.5, float("nan")]])
def test_invalid_splits_are_named(values):
    with pytest.raises(InvalidInputError, match=r"^first.* must"):
        pooled_t_test(values, [0.1, 0.2])


@pytest.mark.parametrize("values", [[0.1, 0.2], SplitSummary(0.1, 0.1, 3)])
def test_corrected_test_needs_pairs(values):
    with pytest.raises(InvalidInputError, match=r"^values must"):
        corrected(values, [0.1, 0.2, 0.3])
