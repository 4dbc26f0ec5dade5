"""Smooth ECE and KDE-ECE against direct sums on a dense grid, and where the value is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_predictions import random_predictions
from scipy.integrate import trapezoid
from scipy.optimize import brentq

from kcal.metrics import kde_calibration_error, smooth_calibration_error

few = settings(deadline=None, max_examples=15)  # the oracles are slow
ERRORS = [smooth_calibration_error, kde_calibration_error]
GRID = np.linspace(0, 1, 2001)


def event(probs, labels, of):
    if of == "confidence":
        return probs.max(axis=1), (probs.argmax(axis=1) == labels).astype(float)
    return probs[:, of], (labels == of).astype(float)


def smooth_error_slow(values, outcomes):
    def integral(width):
        heights = np.zeros_like(GRID)
        for value, outcome in zip(values, outcomes, strict=True):
            images = np.array([[2 * m + sign * value] for m in range(-3, 4) for sign in (1, -1)])
            kernel = np.exp(-0.5 * ((GRID - images) / width) ** 2).sum(axis=0) / (width * np.sqrt(2 * np.pi))
            heights += (outcome - value) * kernel
        return trapezoid(np.abs(heights), GRID) / len(values)

    return brentq(lambda width: integral(width) - width, 1e-3, 1.0, xtol=1e-7)


def kde_error_slow(values, outcomes):
    n = len(values)
    half_width = min(3 * 1.06 * np.std(values) * n**-0.2, 1)
    centre, spread = (values.min() + values.max()) / 2, np.ptp(values) / 2 + half_width
    grid = np.linspace(max(0, centre - spread), min(1, centre + spread), 20_001)
    density, occurred = np.zeros_like(grid), np.zeros_like(grid)
    for value, outcome in zip(values, outcomes, strict=True):
        for image in (value, -value, 2 - value):
            u = (grid - image) / half_width
            kernel = np.where(np.abs(u) <= 1, 35 / 32 * (1 - u**2) ** 3, 0) / half_width / n
            density += kernel
            occurred += outcome * kernel
    frequency = np.divide(occurred, density, out=grid.copy(), where=density > 0)
    return trapezoid(np.abs(frequency - grid) * density, grid)


@few
@given(data=random_predictions(), of=st.sampled_from(["confidence", 0, 1]))
def test_smooth_error_equals_direct_sums(data, of):
    values, outcomes = event(*data, of)
    if np.mean(np.abs(outcomes - values)) > 0.01:  # the dense grid does not resolve smaller widths
        expected = smooth_error_slow(values, outcomes)
        assert smooth_calibration_error(*data, of=of) == pytest.approx(expected, abs=2e-5)


@few
@given(data=random_predictions(), of=st.sampled_from(["confidence", 0, 1]))
def test_kde_error_equals_direct_sums(data, of):
    values, outcomes = event(*data, of)
    if np.std(values) > 1e-3:
        assert kde_calibration_error(*data, of=of) == pytest.approx(kde_error_slow(values, outcomes), abs=2e-5)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("rate", [0.0, 0.25, 0.75, 1.0])
def test_equal_predictions_cost_their_distance_from_the_observed_frequency(error, rate):
    # One residual of one sign: smoothing moves it, but its integral stays.
    probs = np.tile([0.6, 0.4], (8, 1))
    labels = (np.arange(8) >= 8 * rate).astype(int)
    assert error(probs, labels) == pytest.approx(abs(rate - 0.6), abs=1e-6)
    assert error(probs, labels, of=1) == pytest.approx(abs(1 - rate - 0.4), abs=1e-6)


def test_one_sample_that_is_nearly_right_has_its_own_gap():
    """The width of its smoothing is less than a step of the grid."""
    gap = 2.8459886e-05
    found = smooth_calibration_error(np.array([[1 - gap, gap]]), np.array([0]))
    assert found == pytest.approx(gap, abs=1e-12)
