"""The loss as a function of the bandwidth is that of fitting by hand."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import convexity


def test_minima_and_the_convex_range_of_known_curves() -> None:
    at = np.linspace(-1, 3, 41)
    assert convexity.n_minima((at - 1) ** 2) == 1
    assert convexity.convex_range((at - 1) ** 2) == (0, 40)
    waves = np.cos(2 * np.pi * at) + 0.01 * at
    assert convexity.n_minima(waves) == 4
    low, high = convexity.convex_range(waves)
    assert at[high] - at[low] == pytest.approx(0.5, abs=0.25)
