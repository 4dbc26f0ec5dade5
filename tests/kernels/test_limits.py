"""What posteriors must do at the limits of bandwidth and distance, and under exact changes of the data."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_oracle import (
    COMPACT,
    DTYPES,
    class_sums,
    cloud,
    exact_posteriors,
    slow_log_sums,
    slow_nearest,
)

from kcal.kernels import (
    KERNELS,
    LeaveOutLoss,
    class_posteriors,
    sort_support,
)

steady = settings(deadline=None, derandomize=True, max_examples=40)
ROOTED = ("laplace", "matern32", "matern52")


def posteriors(queries, points, codes, n_classes, bandwidth, kernel, weights=None):
    support = sort_support(points, codes, n_classes, weights)
    return class_posteriors(queries, support, bandwidth, kernel=KERNELS[kernel])


def far_problem(seed, dtype, distance, *, n=14, d=3):
    """Queries in all directions at a distance from points around the origin, these, and their classes."""
    points, codes, _ = cloud(seed, n, d, 3, dtype=dtype)
    directions = torch.nn.functional.normalize(cloud(seed + 1, 6, d, 1)[0], dim=1)
    return (distance * directions).to(dtype), points, codes


def excess(query, points):
    """How much farther than the nearest point each point is from a far query, by rational numbers."""
    query = [Fraction(float(value)) for value in query]
    squares = [
        sum(Fraction(float(a)) ** 2 - 2 * Fraction(float(a)) * b for a, b in zip(point, query, strict=True))
        for point in points
    ]
    length = float(sum(value * value for value in query)) ** 0.5
    return torch.tensor([float(square - min(squares)) / (2.0 * length) for square in squares])


@pytest.mark.parametrize("distance", [1e3, 1e6, 1e12, 1e18])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", ["rbf", *COMPACT])
def test_however_far_a_query_belongs_to_its_nearest_points(kernel, dtype, distance):
    """To the nearest one, but for those that are as near within rounding; alone as among others."""
    for seed, d in ((100, 2), (102, 5), (104, 32)):
        queries, points, codes = far_problem(seed, dtype, distance, n=20, d=d)
        support = sort_support(points, codes, 3)
        together = class_posteriors(queries, support, 1.0, kernel=KERNELS[kernel])
        for query, row in zip(queries, together, strict=True):
            near = torch.zeros(3, dtype=torch.bool)
            near[codes[excess(query, points) < 1e-6 * points.norm(dim=1).max() + 400.0 * d / distance]] = True
            for found in (row, class_posteriors(query[None], support, 1.0, kernel=KERNELS[kernel])[0]):
                assert (found[~near] < 1e-30).all()
                assert float(found.sum()) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_huge_bandwidth_gives_the_class_frequencies(kernel, dtype, weighted):
    points, codes, weights = cloud(20, 50, 4, 3, dtype=dtype, weighted=weighted)
    queries = 3 * cloud(21, 9, 4, 1, dtype=dtype)[0]
    mass = np.bincount(codes, weights=None if weights is None else weights.double().numpy(), minlength=4)
    computed = posteriors(queries, points, codes, 4, 1e12, kernel, weights)
    expected = np.tile(mass / mass.sum(), (9, 1))
    np.testing.assert_allclose(computed, expected, rtol=0, atol=1e-10 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_tiny_bandwidth_gives_the_nearest_neighbour(kernel, dtype):
    points, codes, weights = cloud(22, 60, 2, 4, dtype=dtype, weighted=True)
    queries = cloud(23, 25, 2, 1, dtype=dtype)[0]
    computed = posteriors(queries, points, codes, 5, 1e-6, kernel, weights)
    slow = np.array([slow_nearest(query, points, codes, 5) for query in queries])
    assert np.isin(slow, (0.0, 1.0)).all()
    np.testing.assert_allclose(computed, slow, rtol=0, atol=1e-20)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_translation_changes_nothing(kernel, dtype):
    points, codes, weights = cloud(26, 40, 3, 3, weighted=True)
    points, queries = (points * 32).round() / 32, (cloud(27, 15, 3, 1)[0] * 32).round() / 32
    shift = torch.tensor([4096.0, -2048.0, 17.0], dtype=torch.float64)  # all sums are exact in float32
    here = posteriors(queries.to(dtype), points.to(dtype), codes, 3, 0.4, kernel, weights)
    there = posteriors((queries + shift).to(dtype), (points + shift).to(dtype), codes, 3, 0.4, kernel, weights)
    torch.testing.assert_close(there, here, rtol=0, atol=1e-9 if dtype == torch.float64 else 1e-4)


@steady
@given(seed=st.integers(0, 10**6), kernel=st.sampled_from(sorted(KERNELS)))
def test_the_order_of_the_support_does_not_matter(seed, kernel):
    points, codes, weights = cloud(38, 30, 2, 5, weighted=True)
    queries = cloud(39, 10, 2, 1)[0]
    order = torch.randperm(30, generator=torch.Generator().manual_seed(seed))
    shuffled = sort_support(points[order], codes[order], 5, weights[order])
    support = sort_support(points, codes, 5, weights)
    torch.testing.assert_close(
        class_posteriors(queries, shuffled, 0.4, kernel=KERNELS[kernel]),
        class_posteriors(queries, support, 0.4, kernel=KERNELS[kernel]),
        rtol=0,
        atol=1e-13,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_query_a_million_away_gets_what_the_formula_says(kernel, dtype):
    for seed in (40, 42, 44):
        queries, points, codes = far_problem(seed, dtype, 1e6)
        computed = posteriors(queries, points, codes, 3, 1.0, kernel)
        exact = exact_posteriors(queries, points, codes, 3, 1.0, kernel=kernel)
        np.testing.assert_allclose(computed, exact, rtol=0, atol=1e-5)


@steady
@given(
    exponent=st.floats(-3, 6),
    log_bandwidth=st.floats(-4, 4),
    seed=st.integers(0, 1000),
    kernel=st.sampled_from(sorted(KERNELS)),
    dtype=st.sampled_from(DTYPES),
)
def test_every_row_is_a_probability_vector(exponent, log_bandwidth, seed, kernel, dtype):
    queries, points, codes = far_problem(seed, dtype, 10.0**exponent)
    rows = posteriors(queries, points, codes, 4, 10.0**log_bandwidth, kernel)
    assert bool((rows >= 0).all())
    torch.testing.assert_close(rows.sum(dim=1), torch.ones(6, dtype=dtype), rtol=0, atol=1e-5)
    assert not rows[:, 3].any()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kernel", ROOTED)
def test_log_sums_far_away_keep_weights_and_distances(kernel, weighted):
    points, codes, weights = cloud(114, 8, 2, 2, weighted=weighted)
    queries = torch.tensor([[1e5, 0.0], [0.0, -1e7]], dtype=torch.float64)
    sums = class_sums(queries, sort_support(points, codes, 2, weights), [1.0], kernel=KERNELS[kernel])
    slow = slow_log_sums(queries, points, codes, 2, 1.0, kernel=kernel, weights=weights)
    np.testing.assert_allclose(sums.log()[0], slow, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_equal_points_of_two_classes_share_a_query_at_any_bandwidth(kernel, dtype):
    points, _, _ = cloud(120, 2500, 7, 1, dtype=dtype)  # a point and its double are in different blocks
    points = torch.cat([points, points])
    codes = torch.arange(5000) // 2500
    support = sort_support(points, codes, 2)
    queries = torch.cat([points[:40] + 0.01, 1e3 * points[:40]])
    for bandwidth in (1e-12, 1e-9, 1e-7, 1e-5, 1e-3, 0.1):
        computed = class_posteriors(queries, support, bandwidth, kernel=KERNELS[kernel])
        tolerance = 1e-3 if bandwidth < 1e-3 else 2e-4
        np.testing.assert_allclose(computed, np.full((80, 2), 0.5), rtol=0, atol=tolerance)
    triplets = sort_support(torch.cat([points[:300]] * 3), torch.arange(900) // 300, 3)
    loss = LeaveOutLoss(triplets, kernel=KERNELS[kernel])  # a point left out has two doubles, both of other classes
    for bandwidth in (1e-30, 1e-9, 1e-5, 1e-2):
        assert loss(bandwidth) == pytest.approx(-math.log(1e-12))


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
