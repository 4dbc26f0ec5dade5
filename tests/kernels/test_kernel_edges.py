"""Edges where sums of kernels go wrong: far queries, points of weight 0, many points, nothing to see."""

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch
from kernel_oracle import COMPACT, DTYPES, class_sums, cloud, exact_posteriors, log_densities, slow_log_sums

from kcal.kernels import (
    KERNELS,
    LeaveOutLoss,
    class_posteriors,
    leave_out_rule,
    mean_log_loss,
    numerics,
    search_bandwidth,
    sort_support,
)

ROOTED = ("laplace", "matern32", "matern52")


def far_problem(seed, distance, *, n=20, d=5):
    """Points around the origin, and queries in all directions at a distance."""
    points, codes, _ = cloud(seed, n, d, 3)
    directions = torch.nn.functional.normalize(cloud(seed + 1, 6, d, 1)[0], dim=1)
    return distance * directions, points, codes


def nearest_class(query, points, codes):
    """The class of the nearest point, by rational numbers."""
    query = [Fraction(float(value)) for value in query]
    order = [
        sum(Fraction(float(a)) ** 2 - 2 * Fraction(float(a)) * b for a, b in zip(point, query, strict=True))
        for point in points
    ]
    return int(codes[order.index(min(order))])


@cache
def nearest_classes_of_far_problem(seed, distance, d):
    """A row a query, all of it at the class of the nearest point: the same for every kernel."""
    queries, points, codes = far_problem(seed, distance, d=d)
    nearest = torch.tensor([nearest_class(query, points, codes) for query in queries])
    return torch.nn.functional.one_hot(nearest, 3).double()


@pytest.mark.parametrize("distance", [1e6, 1e12, 1e16, 1e18])
@pytest.mark.parametrize("kernel", ["rbf", *COMPACT])
def test_however_far_a_query_belongs_to_its_nearest_point(kernel, distance):
    for seed in (100, 102, 104):
        for d in (2, 5, 32):
            queries, points, codes = far_problem(seed, distance, d=d)
            support = sort_support(points, codes, 3)
            together = class_posteriors(queries, support, 1.0, kernel=KERNELS[kernel])
            nearest = nearest_classes_of_far_problem(seed, distance, d)
            for query, row, expected in zip(queries, together, nearest, strict=True):
                assert torch.equal(row, expected)
                # alone, a query goes another way through the matrix product
                assert torch.equal(class_posteriors(query[None], support, 1.0, kernel=KERNELS[kernel])[0], expected)


@pytest.mark.parametrize("distance", [1e6, 1e12, 1e18])
def test_a_query_in_single_precision_may_be_far_too(distance):
    for seed in (106, 108):
        queries, points, codes = far_problem(seed, distance, d=8)
        queries, points = queries.float(), points.float()
        for query in queries:
            row = class_posteriors(query[None], sort_support(points, codes, 3), 0.5)[0]
            assert int(row.argmax()) == nearest_class(query, points, codes)
            assert float(row.max()) == 1.0


@pytest.mark.parametrize("distance", [1e4, 1e6, 1e8, 1e10])
@pytest.mark.parametrize("kernel", ROOTED)
def test_however_far_a_query_of_a_rooted_kernel_gets_what_the_formula_says(kernel, distance):
    """Their posteriors do not end at the nearest point: they tend to a limit that depends on the direction."""
    queries, points, codes = far_problem(110, distance, d=3)
    computed = class_posteriors(queries[:2], sort_support(points, codes, 3), 1.0, kernel=KERNELS[kernel])
    exact = exact_posteriors(queries[:2], points, codes, 3, 1.0, kernel=kernel)
    np.testing.assert_allclose(computed, exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
def test_duplicates_of_two_classes_share_a_far_query(kernel):
    queries, points, _ = far_problem(112, 1e12, n=1)
    support = sort_support(torch.cat([points, points]), torch.tensor([0, 1]), 2)
    for query in queries[:, None]:
        torch.testing.assert_close(
            class_posteriors(query, support, 1.0, kernel=KERNELS[kernel]),
            torch.full((1, 2), 0.5, dtype=torch.float64),
            rtol=0,
            atol=1e-12,
        )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kernel", ROOTED)
def test_log_sums_far_away_keep_weights_and_distances(kernel, weighted):
    points, codes, weights = cloud(114, 8, 2, 2, weighted=weighted)
    queries = torch.tensor([[1e5, 0.0], [0.0, -1e7]], dtype=torch.float64)
    sums = class_sums(queries, sort_support(points, codes, 2, weights), [1.0], kernel=KERNELS[kernel])
    slow = slow_log_sums(queries, points, codes, 2, 1.0, kernel=kernel, weights=weights)
    np.testing.assert_allclose(sums.log()[0], slow, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_support_of_one_point_works_at_every_distance(kernel):
    support = sort_support(torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.long), 2)
    queries = torch.tensor([[0.0], [0.5], [1e6]], dtype=torch.float64)
    rows = class_posteriors(queries, support, 1.0, kernel=KERNELS[kernel])
    assert rows.tolist() == [[1.0, 0.0]] * 3
    slow = slow_log_sums(queries[:2], support.points, [0], 1, 1.0, kernel=kernel)[:, 0]
    densities = log_densities(queries[:2], support, 1.0, kernel=KERNELS[kernel])
    np.testing.assert_allclose(densities + KERNELS[kernel].log_volume(1.0, 1), slow, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", COMPACT)
def test_a_query_just_beyond_a_wide_reach_belongs_to_its_nearest_point(kernel):
    """The bandwidth is 1e5 times the support's radius, and the query lies several bandwidths away."""
    support = sort_support(torch.tensor([[-1.0], [1.0]], dtype=torch.float64), torch.tensor([0, 1]), 2)
    query = torch.tensor([[1e6]], dtype=torch.float64)
    assert class_posteriors(query, support, 1e5, kernel=KERNELS[kernel]).tolist() == [[0.0, 1.0]]
    assert torch.isneginf(log_densities(query, support, 1e5, kernel=KERNELS[kernel])).all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("query", [0.0, -1e6, -1e18])
def test_a_weightless_point_never_decides(kernel, query):
    support = sort_support(
        torch.tensor([[0.0], [100.0]], dtype=torch.float64),
        torch.tensor([0, 1]),
        2,
        torch.tensor([0.0, 1.0], dtype=torch.float64),
    )
    row = class_posteriors(torch.tensor([[query]], dtype=torch.float64), support, 1.0, kernel=KERNELS[kernel])
    assert row.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("budget", [0, 10**9])
@pytest.mark.parametrize("bandwidth", [0.05, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_weightless_neighbour_does_not_touch_the_loss(kernel, bandwidth, budget):
    """The second point coincides with the first but counts for nothing; the others are far away."""
    points = torch.tensor([[0.0], [0.0], [10.0], [10.1]], dtype=torch.float64)
    codes, weights = torch.tensor([0, 1, 0, 0]), torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    kept = weights > 0
    with_it = LeaveOutLoss(sort_support(points, codes, 2, weights), kernel=KERNELS[kernel], memory_budget=budget)
    without = LeaveOutLoss(sort_support(points[kept], codes[kept], 2), kernel=KERNELS[kernel], memory_budget=budget)
    assert with_it(bandwidth) == pytest.approx(without(bandwidth), abs=1e-12)


@pytest.mark.parametrize("factor", [1e9, 1e-9])
def test_large_and_small_weights_are_weights_in_single_precision(factor):
    points, codes, _ = cloud(116, 10, 2, 2, dtype=torch.float32)
    weights = torch.arange(1, 11, dtype=torch.float64)
    torch.testing.assert_close(
        class_posteriors(points, sort_support(points, codes, 2, factor * weights), 1.0),
        class_posteriors(points, sort_support(points, codes, 2, weights), 1.0),
        rtol=0,
        atol=1e-5,
    )


@pytest.mark.parametrize("kernel", COMPACT)
def test_the_kept_loss_shares_ties_beyond_the_reach_as_the_streamed_one_does(kernel):
    support = sort_support(torch.tensor([[0.0], [1.0], [-1.0]], dtype=torch.float64), torch.tensor([0, 0, 1]), 2)
    for bandwidth in (0.01, 0.1):
        kept, streamed = (
            LeaveOutLoss(support, kernel=KERNELS[kernel], memory_budget=budget)(bandwidth) for budget in (10**9, 0)
        )
        # the middle one is torn between two, the right one right, the left one wrong
        expected = (math.log(2) + 0.0 - math.log(1e-12)) / 3
        assert kept == pytest.approx(expected, rel=1e-12)
        assert streamed == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("budget", [0, 10**9])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_sample_that_may_see_nothing_knows_nothing(kernel, budget):
    """All in one group, or all alone: the loss is that of even odds, and the sample's own label does not help."""
    points, codes, _ = cloud(118, 9, 2, 3)
    support = sort_support(points, codes, 3)
    loss = LeaveOutLoss(support, kernel=KERNELS[kernel], keys=torch.zeros(9, dtype=torch.long), memory_budget=budget)
    assert loss(1.0) == pytest.approx(math.log(3), rel=1e-12)
    alone = sort_support(points[:1], codes[:1], 3)
    row = class_posteriors(alone.points, alone, 1.0, kernel=KERNELS[kernel], leave_out=leave_out_rule(alone))
    np.testing.assert_allclose(row, [[1 / 3] * 3], rtol=1e-12)


@pytest.mark.parametrize("bandwidth", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_small_bandwidth_and_more_points_than_pilots_give_valid_rows(dtype, bandwidth):
    """The pilots miss the nearest point by far, so that sums are huge before they are made shares."""
    points, codes, _ = cloud(120, 4 * numerics.PILOT_POINTS, 8, 3, dtype=dtype)
    queries = cloud(121, 100, 8, 1, dtype=dtype)[0]
    computed = class_posteriors(queries, sort_support(points, codes, 3), bandwidth).double()
    distances = torch.cdist(queries.double(), points.double()) ** 2
    exponents = -(distances - distances.amin(dim=1, keepdim=True)) / (2 * 8 * bandwidth**2)
    masses = torch.stack([exponents.exp()[:, codes == k].sum(dim=1) for k in range(3)], dim=1)
    torch.testing.assert_close(computed, masses / masses.sum(dim=1, keepdim=True), rtol=0, atol=1e-4)


@pytest.mark.parametrize("bandwidth", [0.01, 0.03, 0.1])
def test_the_two_losses_agree_in_single_precision_with_more_points_than_pilots(bandwidth):
    support = sort_support(*cloud(122, 4 * numerics.PILOT_POINTS, 8, 3, dtype=torch.float32)[:2], 3)
    kept, streamed = (LeaveOutLoss(support, memory_budget=budget)(bandwidth) for budget in (10**9, 0))
    assert kept == pytest.approx(streamed, rel=1e-4)


def test_sums_over_many_points_keep_their_precision():
    generator = torch.Generator().manual_seed(0)
    points, queries = torch.randn(600_000, 2, generator=generator), torch.randn(4, 2, generator=generator)
    codes = (torch.rand(600_000, generator=generator) < 0.3).long()
    frequency = float(codes.double().mean())
    computed = class_posteriors(queries, sort_support(points, codes, 2), 1e6).double()
    np.testing.assert_allclose(computed[:, 1], frequency, rtol=0, atol=1e-6)


def test_logarithms_of_counts_and_clips_are_exact_in_double_precision():
    assert mean_log_loss(torch.tensor([-math.inf], dtype=torch.float64)) == -math.log(1e-12)
    support = sort_support(torch.zeros(1000, 2, dtype=torch.float64), torch.zeros(1000, dtype=torch.long), 1)
    density = log_densities(torch.zeros(1, 2, dtype=torch.float64), support, 0.5)
    assert float(density) == pytest.approx(-math.log(2 * math.pi * 2 * 0.5**2), rel=1e-14)


def test_a_loss_that_is_nan_is_no_minimum():
    curve = search_bandwidth(lambda bandwidth: math.nan if bandwidth < 0.3 else math.log(bandwidth) ** 2)
    assert curve.bandwidth == pytest.approx(1.0, rel=5e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_equal_points_of_two_classes_share_a_query_at_any_bandwidth(kernel, dtype):
    points, _, _ = cloud(120, 2500, 7, 1, dtype=dtype)  # several blocks: a point and its double lie far apart in memory
    points = torch.cat([points, points])
    codes = torch.arange(5000) // 2500
    support = sort_support(points, codes, 2)
    queries = torch.cat([points[:40] + 0.01, 1e3 * points[:40]])
    for bandwidth in (1e-12, 1e-9, 1e-7, 1e-5, 1e-3, 0.1):
        computed = class_posteriors(queries, support, bandwidth, kernel=KERNELS[kernel])
        tolerance = 1e-3 if bandwidth < 1e-3 else 2e-4
        np.testing.assert_allclose(computed, np.full((80, 2), 0.5), rtol=0, atol=tolerance)
    triplets = sort_support(torch.cat([points[:300]] * 3), torch.arange(900) // 300, 3)
    for budget in (0, 10**9):  # a point left out still has two doubles, both of other classes
        for bandwidth in (1e-30, 1e-9, 1e-5, 1e-2):
            loss = LeaveOutLoss(triplets, kernel=KERNELS[kernel], memory_budget=budget)(bandwidth)
            assert loss == pytest.approx(-math.log(1e-12))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bandwidth", [0.3, 0.03, 0.01, 0.001])
def test_classes_too_far_to_count_have_no_mass_at_all(bandwidth, dtype):
    points, codes, weights = cloud(121, 60, 3, 3, dtype=dtype, weighted=True)
    points = points + 30 * codes[:, None]
    computed = class_posteriors(points, sort_support(points, codes, 4, weights), bandwidth)
    expected = torch.nn.functional.one_hot(codes, 4).to(dtype)
    assert torch.equal(computed, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_unit_of_length_does_not_matter(kernel, dtype):
    points, codes, _ = cloud(123, 60, 80, 3, dtype=dtype)
    support, queries = sort_support(points, codes, 3), cloud(124, 9, 80, 1, dtype=dtype)[0]
    rows = class_posteriors(queries, support, 0.7, kernel=KERNELS[kernel])
    loss = LeaveOutLoss(support, kernel=KERNELS[kernel])(0.7)
    for unit in (2.0**59, 2.0**-59):  # whose squares do not fit in single precision
        scaled = sort_support(unit * points, codes, 3)
        computed = class_posteriors(unit * queries, scaled, 0.7 * unit, kernel=KERNELS[kernel])
        tolerance = 1e-12 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(computed, rows, rtol=0, atol=tolerance)
        assert LeaveOutLoss(scaled, kernel=KERNELS[kernel])(0.7 * unit) == pytest.approx(loss, abs=tolerance)
