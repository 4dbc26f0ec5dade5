"""The bandwidth search against dense grids, and what it says when it meets an edge."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_oracle import cloud

from kcal.errors import BandwidthWarning, InvalidInputError
from kcal.kernels import INTERVAL, KERNELS, LeaveOutLoss, scaled_bandwidth, search_bandwidth, sort_support

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
    curve = search_bandwidth(loss)
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

    curve = search_bandwidth(loss)
    assert math.log(curve.bandwidth) == pytest.approx(centre, abs=6e-3)


@pytest.mark.parametrize("deeper", [-1, 1])
def test_of_two_valleys_the_deeper_is_taken(deeper):
    def loss(bandwidth):
        x = math.log(bandwidth)
        left, right = (x + 1.1) ** 2, (x - 0.45) ** 2
        return min(left + (0.0 if deeper < 0 else 0.1), right + (0.0 if deeper > 0 else 0.1))

    curve = search_bandwidth(loss)
    assert math.log(curve.bandwidth) == pytest.approx(-1.1 if deeper < 0 else 0.45, abs=5e-3)


@pytest.mark.parametrize("minimum", [2e-3, 0.02, 0.15, 3.5, 40.0, 800.0])
def test_a_minimum_outside_the_interval_widens_it_without_a_word(minimum):
    curve = search_bandwidth(lambda bandwidth: math.log(bandwidth / minimum) ** 2)
    assert curve.bandwidth == pytest.approx(minimum, rel=5e-3)
    assert not curve.at_edge


@pytest.mark.parametrize(("loss", "edge"), [(lambda b: 1 / b, max), (lambda b: b, min)], ids=["falling", "rising"])
def test_a_monotone_loss_warns_at_the_edge_of_the_widened_search(loss, edge):
    with pytest.warns(BandwidthWarning, match="edge of the widened search") as caught:
        curve = search_bandwidth(loss)
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
        curve = search_bandwidth(loss)
    np.testing.assert_allclose(curve.bandwidths, sorted(calls), rtol=1e-12)
    assert curve.losses.tolist() == [asked[bandwidth] for bandwidth in sorted(calls)]
    assert curve.bandwidth in curve.bandwidths.tolist()
    assert curve.loss == curve.losses[curve.bandwidths == curve.bandwidth][0]
    assert curve.loss == min(curve.losses)


def test_a_flat_loss_ends_inside_what_was_looked_at_and_says_so():
    with pytest.warns(BandwidthWarning, match="cannot choose"):
        curve = search_bandwidth(lambda bandwidth: 1.0)
    assert curve.bandwidths[0] < curve.bandwidth < curve.bandwidths[-1]
    assert INTERVAL[0] == pytest.approx(curve.bandwidth) or INTERVAL[0] < curve.bandwidth < INTERVAL[1]
    assert not curve.at_edge
    assert curve.loss == 1.0


def test_progress_is_told_once_an_evaluation():
    notes, calls = [], []

    def loss(bandwidth):
        calls.append(bandwidth)
        return math.log(bandwidth) ** 2

    search_bandwidth(loss, after_each=notes.append)
    assert len(notes) == len(calls)
    assert all(note.startswith("b = ") and ", loss " in note for note in notes)


def test_a_finer_tolerance_comes_closer():
    def loss(bandwidth):
        return math.exp(math.log(bandwidth) - 0.3) - math.log(bandwidth)

    errors = [abs(math.log(search_bandwidth(loss, tolerance=t).bandwidth) - 0.3) for t in (0.3, 1e-6)]
    assert errors[1] < 1e-5 < errors[0]


@pytest.mark.parametrize(
    "interval", [(0.0, 1.0), (-1.0, 1.0), (1.0, 1.0), (2.0, 1.0), (1.0, math.inf), (math.nan, 1.0)]
)
def test_an_impossible_interval_is_refused(interval):
    with pytest.raises(InvalidInputError, match="0 < low < high"):
        search_bandwidth(lambda bandwidth: bandwidth, interval=interval)


def test_the_interval_is_the_published_one():
    assert tuple(2 * bandwidth**2 for bandwidth in INTERVAL) == pytest.approx((0.1, 10.0), rel=1e-14)


def test_embeddings_that_tell_nothing_give_a_large_bandwidth():
    points, codes, _ = cloud(90, 400, 5, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandwidthWarning)
        assert search_bandwidth(LeaveOutLoss(sort_support(points, codes, 3))).bandwidth > 0.5


@steady
@given(
    bandwidth=st.floats(0.01, 100), reference=st.integers(1, 10**6), count=st.integers(1, 10**6), d=st.integers(1, 128)
)
def test_the_rule_is_the_power_law(bandwidth, reference, count, d):
    scaled = scaled_bandwidth((bandwidth, reference), count, d)
    assert math.log(scaled) == pytest.approx(
        math.log(bandwidth) - (math.log(count) - math.log(reference)) / (d + 4), abs=1e-12
    )
    assert scaled_bandwidth((scaled, count), reference, d) == pytest.approx(bandwidth, rel=1e-12)


def test_the_rule_keeps_its_reference_and_falls_with_the_count():
    assert scaled_bandwidth((0.8, 100), 100, 32) == 0.8
    assert scaled_bandwidth((1.0, 1), 32, 1) == pytest.approx(0.5, rel=1e-15)
    assert scaled_bandwidth((1.0, 10), 40, 8) < 1.0 < scaled_bandwidth((1.0, 10), 4, 8)


@pytest.mark.parametrize(("reference", "count"), [((0.0, 5), 5), ((1.0, 0), 5), ((1.0, 5), 0), ((-1.0, 5), 5)])
def test_the_rule_refuses_what_is_not_positive(reference, count):
    with pytest.raises(InvalidInputError, match="bandwidth_reference must be positive"):
        scaled_bandwidth(reference, count, 3)


@pytest.mark.parametrize("interval", [(5.0, 5.1), (1e2, 1.01e2), (1e-2, 1.1e-2)])
def test_a_narrow_interval_far_from_the_minimum_is_widened_in_growing_steps(interval):
    curve = search_bandwidth(lambda bandwidth: (math.log(bandwidth) - 0.3) ** 2, interval=interval)
    assert math.log(curve.bandwidth) == pytest.approx(0.3, abs=0.01)
    assert len(curve.losses) < 45
