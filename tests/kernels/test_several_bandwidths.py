"""Class sums at several bandwidths are those of each bandwidth alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_oracle import DTYPES, class_sums, cloud, slow_log_sums

from kcal.kernels import KERNELS, class_posteriors, leave_out_rule, numerics, sort_support

BANDWIDTHS = (0.45, 0.9, 1.8)
TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-10}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bandwidths", [(0.1, 0.5, 2.0), (4.0, 1.0), (0.7,)])
def test_every_kernel_has_at_several_bandwidths_what_it_has_at_each(kernel, bandwidths):
    points, codes, weights = cloud(7, 50, 2, 3, weighted=True)
    support = sort_support(points, codes, 4, weights)
    queries = 2 * cloud(8, 20, 2, 1)[0]
    together = class_sums(queries, support, bandwidths, kernel=KERNELS[kernel])
    for index, bandwidth in enumerate(bandwidths):
        alone = class_sums(queries, support, [bandwidth], kernel=KERNELS[kernel])
        assert torch.equal(torch.isneginf(together.offsets[index]), torch.isneginf(alone.offsets[0]))
        torch.testing.assert_close(together.log()[index].exp(), alone.log()[0].exp(), rtol=1e-11, atol=1e-300)
        slow = slow_log_sums(queries, points, codes, 4, bandwidth, kernel=kernel, weights=weights)
        np.testing.assert_allclose(together.log()[index].exp(), np.exp(slow), rtol=1e-9, atol=1e-300)


def test_a_bandwidth_beyond_float64_does_not_disturb_the_others():
    points, codes, _ = cloud(9, 30, 3, 3)
    support, queries = sort_support(points, codes, 3), cloud(10, 8, 3, 1)[0]
    bandwidths = (0.5, 1e-9, 1.0)
    together = class_sums(queries, support, bandwidths)
    for index, bandwidth in enumerate(bandwidths):
        alone = class_sums(queries, support, [bandwidth])
        torch.testing.assert_close(together.log()[index], alone.log()[0], rtol=1e-12, atol=1e-12)
    exact = slow_log_sums(queries, points, codes, 3, 1e-9, kernel="rbf").max(axis=1)
    np.testing.assert_allclose(together.log()[1].amax(dim=1), exact, rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("small_blocks", [False, True])
def test_log_sums_equal_the_double_loop_at_every_bandwidth(dtype, weighted, small_blocks, monkeypatch):
    if small_blocks:
        monkeypatch.setattr(numerics, "QUERY_BLOCK", 3)
        monkeypatch.setattr(numerics, "PILOT_POINTS", 2)
        monkeypatch.setattr(numerics, "SUPPORT_BLOCK", 5)
    points, codes, weights = cloud(1, 43, 3, 4, dtype=dtype, weighted=weighted)
    queries = cloud(2, 17, 3, 1, dtype=dtype)[0]
    log_sums = class_sums(queries, sort_support(points, codes, 4, weights), BANDWIDTHS).log()
    assert log_sums.shape == (3, 17, 4)
    for index, bandwidth in enumerate(BANDWIDTHS):
        slow = slow_log_sums(queries, points, codes, 4, bandwidth, kernel="rbf", weights=weights)
        np.testing.assert_allclose(log_sums[index].numpy(), slow, rtol=0, atol=TOLERANCE[dtype])


def test_bandwidths_that_are_no_whole_multiples_are_as_good():
    points, codes, _ = cloud(1, 43, 3, 4)
    queries = cloud(2, 17, 3, 1)[0]
    bandwidths = (2.0, 0.61, 0.3, 0.1)  # in any order
    log_sums = class_sums(queries, sort_support(points, codes, 4), bandwidths).log()
    for index, bandwidth in enumerate(bandwidths):
        slow = slow_log_sums(queries, points, codes, 4, bandwidth, kernel="rbf")
        np.testing.assert_allclose(log_sums[index].numpy(), slow, rtol=0, atol=1e-9)


@pytest.mark.parametrize("by_group", [False, True])
def test_a_sample_is_left_out_of_its_own_sums(by_group):
    points, codes, _ = cloud(3, 30, 2, 3)
    points[7] = points[3]  # a true duplicate counts
    support = sort_support(points, codes, 3)
    keys = torch.arange(30) % 4 if by_group else None
    rule = leave_out_rule(support, keys)
    log_sums = class_sums(support.points, support, BANDWIDTHS, leave_out=rule).log()
    for index, bandwidth in enumerate(BANDWIDTHS):
        rows = support.in_original_order(log_sums[index])
        for row in range(30):
            others = torch.arange(30) != row if keys is None else keys != keys[row]
            slow = slow_log_sums(points[row : row + 1], points[others], codes[others], 3, bandwidth, kernel="rbf")
            np.testing.assert_allclose(rows[row].numpy(), slow[0], atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_query_that_is_nearer_to_some_point_than_to_any_pilot_gets_its_sums_too(dtype, monkeypatch):
    """With a shift from the pilots its narrow kernels overflow."""
    monkeypatch.setattr(numerics, "PILOT_POINTS", 2)
    points = torch.tensor([[-60.0], [0.0], [0.5], [60.0]], dtype=dtype)
    support = sort_support(points, torch.tensor([0, 0, 1, 1]), 2)
    queries = torch.tensor([[0.1], [0.4], [59.0]], dtype=dtype)
    bandwidths = (1.0, 2.0, 4.0)
    log_sums = class_sums(queries, support, bandwidths).log()
    for index, bandwidth in enumerate(bandwidths):
        slow = slow_log_sums(queries[:2], points, [0, 0, 1, 1], 2, bandwidth, kernel="rbf")
        np.testing.assert_allclose(log_sums[index, :2].numpy(), slow, rtol=0, atol=1e-4)
        assert log_sums[index, 2, 1] == pytest.approx(-0.5 / bandwidth**2, abs=1e-4)


@pytest.mark.parametrize("gap", [60.0, 75.0, 85.0, 88.0, 90.0])
def test_sums_leave_room_above_them(gap, monkeypatch):
    monkeypatch.setattr(numerics, "PILOT_POINTS", 2)
    points = torch.tensor([[-1.0], [0.0], [1.0]])
    bandwidth = (2.0 * gap) ** -0.5  # the pilots are so many natural units below the nearest point
    sums = class_sums(torch.zeros(1, 1), sort_support(points, torch.tensor([0, 0, 1]), 2), (bandwidth,))
    assert 0.9 < sums.sums[0, 0, 0] < 1e31
    assert sums.sums[0, 0, 0].log() + sums.offsets[0, 0] == pytest.approx(0.0, abs=1e-3)


def test_sums_that_need_double_precision_and_are_large_fit_into_single(monkeypatch):
    """Far from the pilots a shift leaves sums that only double precision holds."""
    monkeypatch.setattr(numerics, "PILOT_POINTS", 2)
    points, codes = torch.tensor([[-300.0], [0.0], [1000.0], [20.0], [300.0]]), [0, 0, 0, 1, 1]
    support = sort_support(points, torch.tensor(codes), 2)
    bandwidths = (8.0, 16.0, 32.0)
    queries = torch.tensor([[5.0]])
    assert torch.finfo(torch.float32).eps * (support.radius / 8.0) ** 2 > numerics.RESOLUTION
    log_sums = class_sums(queries, support, bandwidths).log()
    for index, bandwidth in enumerate(bandwidths):
        slow = slow_log_sums(queries, points, codes, 2, bandwidth, kernel="rbf")
        np.testing.assert_allclose(log_sums[index].numpy(), slow, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bandwidths", [(1.0, 2.0, 4.0), (1.0, 3.0, 9.0)])
def test_kernels_too_faint_for_a_number_stay_faint(dtype, bandwidths):
    points = torch.tensor([[0.0], [40.0], [400.0]], dtype=dtype)
    support = sort_support(points, torch.arange(3), 3)
    log_sums = class_sums(torch.zeros(1, 1, dtype=dtype), support, bandwidths).log()
    for index, bandwidth in enumerate(bandwidths):
        least = -80.0 if dtype == torch.float32 else -700.0
        assert log_sums[index, 0, 0] == pytest.approx(0.0, abs=1e-6)
        for column, distance in ((1, 40.0), (2, 400.0)):
            exact = -0.5 * (distance / bandwidth) ** 2
            if exact > least:
                assert log_sums[index, 0, column] == pytest.approx(exact, rel=1e-5)
            else:
                assert log_sums[index, 0, column] < least


@pytest.mark.parametrize("bandwidths", [(1.0, 8.0, 64.0, 512.0), tuple(2.0**power for power in range(12)), (1.0, 1.1)])
def test_rounding_does_not_grow_from_one_bandwidth_to_the_next(bandwidths):
    points, codes, _ = cloud(5, 60, 3, 3, dtype=torch.float32)
    queries = cloud(6, 9, 3, 1, dtype=torch.float32)[0]
    log_sums = class_sums(queries, sort_support(points, codes, 3), bandwidths).log()
    for index, bandwidth in enumerate(bandwidths):
        slow = slow_log_sums(queries, points, codes, 3, bandwidth, kernel="rbf")
        np.testing.assert_allclose(log_sums[index].numpy(), slow, rtol=0, atol=5e-5)


def test_a_query_gets_the_same_sums_whatever_comes_with_it():
    """A far query needs float64; those near it in the batch do not change for that."""
    points, codes, _ = cloud(3, 40, 3, 3, dtype=torch.float32)
    queries = torch.cat([cloud(4, 6, 3, 1, dtype=torch.float32)[0], torch.full((1, 3), 300.0)])
    support = sort_support(points, codes, 3)
    together = class_sums(queries, support, BANDWIDTHS).log()
    far = queries.norm(dim=1) > 100
    for chosen in (far, ~far):
        alone = class_sums(queries[chosen], support, BANDWIDTHS).log()
        torch.testing.assert_close(together[:, chosen], alone, rtol=0, atol=0)
    slow = slow_log_sums(queries[far], points, codes, 3, BANDWIDTHS[0], kernel="rbf")
    np.testing.assert_allclose(together[0, far].amax(), slow.max(), rtol=1e-6)


def test_who_may_see_nothing_gets_nothing():
    points, codes, _ = cloud(3, 6, 2, 2)
    support = sort_support(points, codes, 2)
    rule = leave_out_rule(support, torch.zeros(6, dtype=torch.int64))
    for kernel in KERNELS.values():
        sums = class_sums(support.points, support, (0.5, 1.0), kernel=kernel, leave_out=rule)
        assert torch.isneginf(sums.log()).all()
        assert not sums.sums.any()


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    distance=st.sampled_from([0.0, 3.0, 100.0, 1e4]),
    bandwidth=st.floats(0.05, 20.0),
    ratio=st.sampled_from([2.0, 3.0, 8**0.5, 200.0]),
    dtype=st.sampled_from(DTYPES),
)
def test_posteriors_are_those_of_one_bandwidth_near_and_far(seed, distance, bandwidth, ratio, dtype):
    points, codes, _ = cloud(seed, 25, 3, 3, dtype=dtype)
    queries = cloud(seed + 1, 5, 3, 1, dtype=dtype)[0] + distance
    support = sort_support(points, codes, 3)
    bandwidths = (bandwidth, ratio * bandwidth)
    log_sums = class_sums(queries, support, bandwidths).log()
    for index, b in enumerate(bandwidths):
        shares = torch.softmax(log_sums[index].double(), dim=1)
        assert torch.isfinite(shares).all()
        expected = class_posteriors(queries, support, b).double()
        if dtype == torch.float64 and distance <= 100:
            torch.testing.assert_close(shares, expected, atol=1e-6, rtol=0)
        elif distance <= 3:
            torch.testing.assert_close(shares, expected, atol=3e-3, rtol=0)
