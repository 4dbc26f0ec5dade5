"""Every reshuffle deals out the whole pool, and no row or group stands on both sides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcal.benchmark.reshuffles import reshuffles_by_group, reshuffles_by_row
from kcal.errors import InvalidInputError

steady = settings(deadline=None, max_examples=50)


@steady
@given(st.integers(2, 60), st.floats(0.01, 0.99), st.integers(0, 100))
def test_rows_are_dealt_whole_and_by_share(n: int, share: float, seed: int) -> None:
    found = reshuffles_by_row(n, share, 4, seed)
    for reshuffle in found:
        both = np.concatenate([reshuffle.calibration, reshuffle.test])
        assert sorted(both.tolist()) == list(range(n))
        assert len(reshuffle.calibration) == min(max(round(share * n), 1), n - 1)
    assert [reshuffle.index for reshuffle in found] == [0, 1, 2, 3]


def test_more_reshuffles_begin_with_the_same_ones() -> None:
    groups = np.arange(40) % 8
    for make in (lambda n: reshuffles_by_row(40, 0.3, n, 7), lambda n: reshuffles_by_group(groups, 0.3, n, 7)):
        few, many = make(3), make(9)
        for one, other in zip(few, many[:3], strict=True):
            np.testing.assert_array_equal(one.calibration, other.calibration)


def test_of_five_patients_two_calibrate_and_all_ten_choices_are_taken() -> None:
    groups = np.repeat([f"patient {i}" for i in range(5)], 6)
    found = reshuffles_by_group(groups, 0.1, 10, 0)
    chosen = {tuple(sorted(set(groups[reshuffle.calibration]))) for reshuffle in found}
    assert len(found) == len(chosen) == 10
    assert all(len(pair) == 2 for pair in chosen)
    assert len(reshuffles_by_group(groups, 0.1, 50, 0)) == 10


@steady
@given(st.integers(3, 30), st.floats(0.05, 0.9), st.integers(0, 50))
def test_groups_are_never_on_both_sides_and_choices_never_the_same(n_groups: int, share: float, seed: int) -> None:
    groups = np.random.default_rng(seed).permutation(np.arange(4 * n_groups) % n_groups)
    found = reshuffles_by_group(groups, share, 6, seed)
    for reshuffle in found:
        assert not set(groups[reshuffle.calibration]) & set(groups[reshuffle.test])
        assert len(reshuffle.calibration) + len(reshuffle.test) == len(groups)
        assert len(reshuffle.test) > 0
    assert len({reshuffle.calibration.tobytes() for reshuffle in found}) == len(found)


def test_too_little_to_deal_is_told() -> None:
    with pytest.raises(InvalidInputError, match="at least 3 groups; got 2"):
        reshuffles_by_group(np.arange(10) % 2, 0.5, 3, 0)
    with pytest.raises(InvalidInputError, match="at least 2 samples"):
        reshuffles_by_row(1, 0.5, 3, 0)
