"""Step functions and piecewise linear functions equal numpy's."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from kcal.calibrators.piecewise import interpolate, places, step_values

VALUES = st.floats(-3, 3, width=16)
BOUNDS = st.lists(st.lists(VALUES, max_size=20).map(sorted), min_size=3, max_size=3)
KNOTS = st.sets(VALUES, min_size=1, max_size=20).map(sorted)
SCORES = st.lists(VALUES, min_size=6, max_size=6).map(lambda scores: np.array(scores).reshape(2, 3))


@given(BOUNDS, SCORES, st.booleans())
def test_every_column_is_searched_in_bounds_of_its_own(
    bounds: list[list[float]], scores: np.ndarray, equal: bool
) -> None:
    parts = tuple(torch.tensor(part, dtype=torch.float64) for part in bounds)
    expected = [np.searchsorted(bounds[k], scores[:, k], side="right" if equal else "left") for k in range(3)]
    found = places(parts, torch.from_numpy(scores), or_equal=equal)
    np.testing.assert_array_equal(found, np.stack(expected, axis=1))
    heights = tuple(torch.arange(len(part) + 1) + 100 * k for k, part in enumerate(bounds))
    values = step_values(parts, heights, torch.from_numpy(scores), or_equal=equal)
    np.testing.assert_array_equal(values, found + torch.tensor([0, 100, 200]))


@given(KNOTS, SCORES, st.integers(0, 9))
def test_one_function_for_all_columns_is_that_of_numpy(knots: list[float], scores: np.ndarray, seed: int) -> None:
    heights = np.random.default_rng(seed).normal(size=len(knots))
    parts = (torch.tensor(knots, dtype=torch.float64),), (torch.from_numpy(heights),)
    found = interpolate(*parts, torch.from_numpy(scores))
    np.testing.assert_allclose(found, np.interp(scores, knots, heights), rtol=1e-12, atol=1e-12)
