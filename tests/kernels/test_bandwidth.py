"""The bandwidth searches against dense grids and other minimisers, and the power law."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kcal.errors import BandwidthWarning, InvalidInputError
from kcal.kernels import (
    INTERVAL,
    KERNELS,
    LeaveOutLoss,
    fit_bandwidth_law,
    search_bandwidth,
    search_near,
    search_published,
    size_of_rarest_class,
    sort_support,
)


def each(loss):
    """The losses of several bandwidths, from a function of one."""
    return lambda bandwidths: [loss(bandwidth) for bandwidth in bandwidths]


steady = settings(deadline=None, derandomize=True, max_examples=60)


def mixture(seed, *, spread, n=240, d=4, n_classes=4):
    """A Gaussian mixture, some of its labels wrong."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(n_classes, (n,), generator=generator)
    centres = spread * torch.randn(n_classes, d, generator=generator, dtype=torch.float64)
    points = centres[codes] + torch.randn(n, d, generator=generator, dtype=torch.float64)
    wrong = torch.rand(n, generator=generator) < 0.1
    codes[wrong] = torch.randint(n_classes, (int(wrong.sum()),), generator=generator)
    return sort_support(points, codes, n_classes)


@pytest.mark.parametrize("kernel", ["rbf", "laplace", "matern52"])
@pytest.mark.parametrize(("seed", "spread"), [(1, 1.0), (2, 2.0), (3, 4.0)])
def test_the_search_finds_the_minimum_of_a_dense_grid(seed, spread, kernel):
    loss = LeaveOutLoss(mixture(seed, spread=spread), kernel=KERNELS[kernel])
    curve = search_bandwidth(each(loss))
    wide = np.geomspace(0.05, 10.0, 50)
    around = int(np.argmin([loss(float(bandwidth)) for bandwidth in wide]))
    assert 0 < around < 49
    grid = np.geomspace(wide[around - 1], wide[around + 1], 30)  # dense where the minimum is
    losses = [loss(float(bandwidth)) for bandwidth in grid]
    best = int(np.argmin(losses))
    assert curve.loss <= losses[best] + 1e-6
    assert abs(math.log(curve.bandwidth / grid[best])) < 0.005 + math.log(grid[1] / grid[0])
    assert not curve.at_edge
    assert len(curve.losses) <= 15


@steady
@given(
    centre=st.floats(math.log(INTERVAL[0]), math.log(INTERVAL[1])), steepness=st.floats(0.1, 10), lean=st.floats(-1, 1)
)
def test_the_minimum_of_a_smooth_valley_is_found(centre, steepness, lean):
    def loss(bandwidth):
        x = steepness * (math.log(bandwidth) - centre)
        return math.cosh(x) + lean * (math.sinh(x) - x) / 2  # one valley, at the centre, steeper on one side

    curve = search_bandwidth(each(loss))
    assert math.log(curve.bandwidth) == pytest.approx(centre, abs=6e-3)


@pytest.mark.parametrize("deeper", [-1, 1])
def test_of_two_valleys_the_deeper_is_taken(deeper):
    def loss(bandwidth):
        x = math.log(bandwidth)
        left, right = (x + 1.1) ** 2, (x - 0.45) ** 2
        return min(left + (0.0 if deeper < 0 else 0.1), right + (0.0 if deeper > 0 else 0.1))

    curve = search_bandwidth(each(loss))
    assert math.log(curve.bandwidth) == pytest.approx(-1.1 if deeper < 0 else 0.45, abs=5e-3)


@pytest.mark.parametrize("minimum", [2e-3, 0.02, 0.15, 3.5, 40.0, 800.0])
def test_a_minimum_outside_the_interval_widens_it_without_a_word(minimum):
    curve = search_bandwidth(each(lambda bandwidth: math.log(bandwidth / minimum) ** 2))
    assert curve.bandwidth == pytest.approx(minimum, rel=5e-3)
    assert not curve.at_edge


@pytest.mark.parametrize(("loss", "edge"), [(lambda b: 1 / b, max), (lambda b: b, min)], ids=["falling", "rising"])
def test_a_monotone_loss_warns_at_the_edge_of_the_widened_search(loss, edge):
    with pytest.warns(BandwidthWarning, match="edge") as caught:
        curve = search_bandwidth(each(loss))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert curve.at_edge
    assert "at the edge" in str(curve)
    assert curve.bandwidth == edge(curve.bandwidths)
    assert curve.bandwidth == pytest.approx(1e3 * INTERVAL[1] if edge is max else 1e-3 * INTERVAL[0], rel=1.0)


@steady
@given(values=st.lists(st.floats(-10, 10), min_size=1, max_size=30))
def test_the_curve_is_what_was_seen(values):
    """Whatever the loss: ascending, every loss as it was, and the chosen one the least of all."""
    asked, calls = {}, []

    def loss(bandwidth):
        calls.append(bandwidth)
        return asked.setdefault(bandwidth, values[len(asked) % len(values)])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandwidthWarning)
        curve = search_bandwidth(each(loss))
    np.testing.assert_allclose(curve.bandwidths, sorted(calls), rtol=1e-12)
    assert curve.losses.tolist() == [asked[bandwidth] for bandwidth in sorted(calls)]
    assert curve.bandwidth in curve.bandwidths.tolist()
    assert curve.loss == curve.losses[curve.bandwidths == curve.bandwidth][0]
    assert curve.loss == min(curve.losses)


def test_a_flat_loss_ends_inside_what_was_looked_at_and_says_so():
    with pytest.warns(BandwidthWarning):
        curve = search_bandwidth(each(lambda bandwidth: 1.0))
    assert curve.bandwidths[0] < curve.bandwidth < curve.bandwidths[-1]
    assert INTERVAL[0] == pytest.approx(curve.bandwidth) or INTERVAL[0] < curve.bandwidth < INTERVAL[1]
    assert not curve.at_edge
    assert curve.loss == 1.0


@pytest.mark.parametrize(
    "interval", [(0.0, 1.0), (-1.0, 1.0), (1.0, 1.0), (2.0, 1.0), (1.0, math.inf), (math.nan, 1.0)]
)
def test_an_impossible_interval_is_refused(interval):
    with pytest.raises(InvalidInputError, match="interval"):
        search_bandwidth(each(lambda bandwidth: bandwidth), interval=interval)


@steady
@given(bandwidth=st.floats(1e-6, 1e6), reference=st.floats(0.5, 1e6), size=st.floats(0.5, 1e6), d=st.integers(1, 512))
def test_the_law_of_one_search_is_the_theory_through_it(bandwidth, reference, size, d):
    law = fit_bandwidth_law([bandwidth], [reference], dimension=d)
    assert law.exponent == -1 / (d + 4)
    expected = math.log(bandwidth) - (math.log(size) - math.log(reference)) / (d + 4)
    assert math.log(law(size)) == pytest.approx(expected, abs=1e-12)


@steady
@given(
    constant=st.floats(0.01, 100),
    exponent=st.floats(-0.24, -0.01),
    sizes=st.lists(st.integers(1, 10**6), min_size=2, max_size=6, unique=True),
)
def test_the_law_of_several_searches_finds_constant_and_exponent(constant, exponent, sizes):
    law = fit_bandwidth_law([constant * size**exponent for size in sizes], sizes)
    assert law.exponent == pytest.approx(exponent, abs=1e-6)
    assert law.constant == pytest.approx(constant, rel=1e-4)


def test_a_fitted_exponent_is_neither_above_zero_nor_below_a_quarter():
    assert fit_bandwidth_law([1.0, 2.0], [10, 100]).exponent == 0.0
    assert fit_bandwidth_law([2.0, 0.1], [10, 100]).exponent == -0.25


@pytest.mark.parametrize(
    ("bandwidths", "sizes", "message"),
    [
        ([0.0], [5], "bandwidths"),
        ([1.0], [0], "sizes"),
        ([1.0], [math.inf], "sizes"),
        ([], [], "bandwidths"),
        ([1.0, 2.0], [5], "sizes"),
        ([1.0, 2.0], [5, 5], "sizes"),
    ],
)
def test_the_law_refuses_searches_that_give_none(bandwidths, sizes, message):
    with pytest.raises(InvalidInputError, match=message):
        fit_bandwidth_law(bandwidths, sizes)


def test_the_size_of_the_rarest_class_is_effective():
    codes = np.repeat([0, 1, 3], [50, 40, 30])  # class 2 has no samples
    assert size_of_rarest_class(codes, np.ones(120), 4) == 30
    assert size_of_rarest_class(codes, np.full(120, 7.0), 4) == pytest.approx(30)
    weights = np.where(codes == 1, np.where(np.arange(120) % 2, 3.0, 1.0), 1.0)  # (20 + 60)² / (20 + 180) = 32
    assert size_of_rarest_class(codes, weights, 4) == 30
    assert size_of_rarest_class(codes[codes < 3], weights[codes < 3], 4) == pytest.approx(32)


@pytest.mark.parametrize("best", [0.101, 0.3, 2.0, 9.7])
def test_the_minimum_is_found_to_the_published_tolerance(best):
    asked = []

    def loss(bandwidth):
        asked.append(2 * bandwidth**2)
        return abs(math.log(asked[-1] / best)) ** 1.5

    notes = []
    curve = search_published(each(loss), after_each=notes.append)
    assert abs(2 * curve.bandwidth**2 - best) < 1e-4
    assert curve.loss == min(curve.losses)
    assert not curve.at_edge
    assert min(asked) > 0.1
    assert max(asked) < 10
    # each evaluation narrows the bracket by the golden ratio: 9.9·φ^n < 1e-4 after 24, and two to begin with
    assert len(asked) == len(notes) == len(curve.losses) == 26
    assert np.all(np.diff(curve.bandwidths) > 0)


@pytest.mark.parametrize(("slope", "edge"), [(1.0, 0.1), (-1.0, 10.0)])
def test_the_interval_is_kept_and_its_edge_is_told(slope, edge):
    with pytest.warns(BandwidthWarning, match="edge"):
        curve = search_published(each(lambda bandwidth: slope * bandwidth))
    assert curve.at_edge
    assert 2 * curve.bandwidth**2 == pytest.approx(edge, abs=1e-4)


def test_a_loss_that_is_nan_is_no_minimum():
    curve = search_bandwidth(each(lambda bandwidth: math.nan if bandwidth < 0.3 else math.log(bandwidth) ** 2))
    assert curve.bandwidth == pytest.approx(1.0, rel=5e-3)


def test_search_near_finds_the_minimum_wherever_it_begins():
    def loss(bandwidths):
        return [1.0 + 0.3 * np.log(bandwidth / 0.8) ** 2 for bandwidth in bandwidths]

    for expected in (0.01, 0.5, 0.8, 1.0, 60.0):
        curve = search_near(loss, expected)
        assert curve.bandwidth == pytest.approx(0.8)  # the loss is a parabola
        assert not curve.at_edge
    pulled = search_near(loss, 1.0, pull=0.6).bandwidth  # as strong as the loss itself: half way
    assert pulled == pytest.approx(0.8**0.5)
    assert search_near(lambda bandwidths: [1 / bandwidth for bandwidth in bandwidths], 1.0).at_edge


def test_search_near_with_an_interval_finds_the_lower_of_two_minima():
    def loss(bandwidths):
        logs = np.log(bandwidths)
        return np.minimum(1.0 + (logs + 1.5) ** 2, 1.5 + logs**2).tolist()

    assert search_near(loss, 1.1).bandwidth == pytest.approx(1.0)
    assert search_near(loss, 1.1, interval=(0.1, 2.0)).bandwidth == pytest.approx(np.exp(-1.5))
