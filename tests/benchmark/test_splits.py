"""Every split covers the whole pool, and no row or group is on both sides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcal.benchmark.tasks import group_splits, row_splits
from kcal.errors import InvalidInputError

steady = settings(deadline=None, max_examples=50)


@steady
@given(st.integers(2, 60), st.floats(0.01, 0.99), st.integers(0, 100))
def test_every_row_is_on_one_side_and_the_share_is_kept(n: int, share: float, seed: int) -> None:
    splits = row_splits(n, share, 4, seed)
    for split in splits:
        both = np.concatenate([split.calibration, split.test])
        assert sorted(both.tolist()) == list(range(n))
        assert len(split.calibration) == min(max(round(share * n), 1), n - 1)
    assert [split.index for split in splits] == [0, 1, 2, 3]


def test_more_splits_begin_with_the_same_ones() -> None:
    groups = np.arange(40) % 8
    for make in (lambda n: row_splits(40, 0.3, n, 7), lambda n: group_splits(groups, 0.3, n, 7)):
        few, many = make(3), make(9)
        for one, other in zip(few, many[:3], strict=True):
            np.testing.assert_array_equal(one.calibration, other.calibration)


def test_of_five_patients_two_calibrate_and_all_ten_combinations_are_used() -> None:
    groups = np.repeat([f"patient {i}" for i in range(5)], 6)
    splits = group_splits(groups, 0.1, 10, 0)
    chosen = {tuple(sorted(set(groups[split.calibration]))) for split in splits}
    assert len(splits) == len(chosen) == 10
    assert all(len(pair) == 2 for pair in chosen)
    assert len(group_splits(groups, 0.1, 50, 0)) == 10


@steady
@given(st.integers(3, 30), st.floats(0.05, 0.9), st.integers(0, 50))
def test_groups_are_never_on_both_sides_and_all_splits_differ(n_groups: int, share: float, seed: int) -> None:
    groups = np.random.default_rng(seed).permutation(np.arange(4 * n_groups) % n_groups)
    splits = group_splits(groups, share, 6, seed)
    for split in splits:
        assert not set(groups[split.calibration]) & set(groups[split.test])
        assert len(split.calibration) + len(split.test) == len(groups)
        assert len(split.test) > 0
    assert len({split.calibration.tobytes() for split in splits}) == len(splits)


def test_too_few_rows_or_groups_are_an_error() -> None:
    with pytest.raises(InvalidInputError, match="groups must have at least 3 different values; got 2"):
        group_splits(np.arange(10) % 2, 0.5, 3, 0)
    with pytest.raises(InvalidInputError, match="n_samples must be at least 2"):
        row_splits(1, 0.5, 3, 0)
