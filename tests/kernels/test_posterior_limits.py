"""What posteriors must do at the limits of the bandwidth, of the distance and under exact changes of the data."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_oracle import (
    COMPACT,
    DTYPES,
    ENDLESS,
    cloud,
    exact_posteriors,
    log_densities,
    slow_nearest,
    slow_posteriors,
)

from kcal.kernels import KERNELS, class_posteriors, leave_out_posteriors, sort_support

steady = settings(deadline=None, derandomize=True, max_examples=40)


def posteriors(queries, points, codes, n_classes, bandwidth, kernel, weights=None):
    support = sort_support(points, codes, n_classes, weights)
    return class_posteriors(queries, support, bandwidth, kernel=KERNELS[kernel])


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
    np.testing.assert_array_equal(computed, slow)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_tiny_bandwidth_shares_between_coincident_points_by_their_weight(kernel):
    points = torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 1.0]], dtype=torch.float64)
    weights = torch.tensor([1.0, 3.0, 50.0], dtype=torch.float64)
    query = torch.tensor([[0.25, -0.5]], dtype=torch.float64)
    computed = posteriors(query, points, torch.tensor([0, 2, 1]), 3, 1e-3, kernel, weights)
    np.testing.assert_allclose(computed, [[0.25, 0.0, 0.75]], rtol=0, atol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_limit_of_small_bandwidths_follows_on_what_is_resolved(kernel):
    points, codes, weights = cloud(24, 40, 3, 3, weighted=True)
    queries = cloud(25, 20, 3, 1)[0]
    support = sort_support(points, codes, 3, weights)
    resolved = class_posteriors(queries, support, 1e-5, kernel=KERNELS[kernel])
    slow = np.array([slow_nearest(query, points, codes, 3, weights) for query in queries])
    for bandwidth in (1e-7, 1e-9, 1e-30):  # beyond float64
        limit = class_posteriors(queries, support, bandwidth, kernel=KERNELS[kernel])
        torch.testing.assert_close(limit, resolved, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(limit, slow)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_translation_changes_nothing(kernel, dtype):
    points, codes, weights = cloud(26, 40, 3, 3, weighted=True)
    points, queries = (points * 32).round() / 32, (cloud(27, 15, 3, 1)[0] * 32).round() / 32
    shift = torch.tensor([4096.0, -2048.0, 17.0], dtype=torch.float64)  # all sums are exact in float32
    here = posteriors(queries.to(dtype), points.to(dtype), codes, 3, 0.4, kernel, weights)
    there = posteriors((queries + shift).to(dtype), (points + shift).to(dtype), codes, 3, 0.4, kernel, weights)
    torch.testing.assert_close(there, here, rtol=0, atol=1e-9 if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_length_has_no_unit(kernel):
    points, codes, _ = cloud(28, 40, 3, 3)
    queries = cloud(29, 15, 3, 1)[0]
    torch.testing.assert_close(
        posteriors(queries, points, codes, 3, 0.4, kernel),
        posteriors(1024 * queries, 1024 * points, codes, 3, 1024 * 0.4, kernel),
        rtol=0,
        atol=1e-13,
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_doubling_every_sample_changes_nothing(kernel):
    points, codes, weights = cloud(30, 35, 3, 4, weighted=True)
    queries = cloud(31, 12, 3, 1)[0]
    twice = [torch.cat([value, value]) for value in (points, codes, weights)]
    torch.testing.assert_close(
        posteriors(queries, twice[0], twice[1], 4, 0.6, kernel, twice[2]),
        posteriors(queries, points, codes, 4, 0.6, kernel, weights),
        rtol=0,
        atol=1e-13,
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_integer_weights_equal_repetition(kernel):
    points, codes, weights = cloud(32, 35, 3, 4, integer_weights=True)
    queries = cloud(33, 12, 3, 1)[0]
    times = weights.long()
    repeated = sort_support(points.repeat_interleave(times, dim=0), codes.repeat_interleave(times), 4)
    weighted = sort_support(points, codes, 4, weights)
    for compute in (class_posteriors, log_densities):
        torch.testing.assert_close(
            compute(queries, weighted, 0.6, kernel=KERNELS[kernel]),
            compute(queries, repeated, 0.6, kernel=KERNELS[kernel]),
            rtol=1e-11,
            atol=1e-13,
        )


@pytest.mark.parametrize("factor", [1e-12, 0.5, 7.0, 1e12])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_common_factor_of_the_weights_cancels(kernel, factor):
    points, codes, weights = cloud(34, 35, 3, 4, weighted=True)
    queries = cloud(35, 12, 3, 1)[0]
    torch.testing.assert_close(
        posteriors(queries, points, codes, 4, 0.6, kernel, factor * weights),
        posteriors(queries, points, codes, 4, 0.6, kernel, weights),
        rtol=0,
        atol=1e-12,
    )


@steady
@given(permutation=st.permutations(range(5)), kernel=st.sampled_from(sorted(KERNELS)))
def test_permuting_the_classes_permutes_the_columns(permutation, kernel):
    points, codes, weights = cloud(36, 30, 2, 5, weighted=True)
    queries = cloud(37, 10, 2, 1)[0]
    permutation = torch.tensor(permutation)
    torch.testing.assert_close(
        posteriors(queries, points, permutation[codes], 5, 0.4, kernel, weights)[:, permutation],
        posteriors(queries, points, codes, 5, 0.4, kernel, weights),
        rtol=0,
        atol=1e-13,
    )


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
    torch.testing.assert_close(
        leave_out_posteriors(shuffled, 0.4, kernel=KERNELS[kernel]),
        leave_out_posteriors(support, 0.4, kernel=KERNELS[kernel])[order],
        rtol=0,
        atol=1e-13,
    )


def far_problem(seed, dtype, distance):
    points, codes, _ = cloud(seed, 14, 3, 3, dtype=dtype)
    directions = torch.nn.functional.normalize(cloud(seed + 1, 6, 3, 1)[0], dim=1)
    return (distance * directions).to(dtype), points, codes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_query_a_million_away_gets_what_the_formula_says(kernel, dtype):
    for seed in (40, 42, 44):
        queries, points, codes = far_problem(seed, dtype, 1e6)
        computed = posteriors(queries, points, codes, 3, 1.0, kernel)
        exact = exact_posteriors(queries, points, codes, 3, 1.0, kernel=kernel)
        np.testing.assert_allclose(computed, exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", ["rbf", *COMPACT])
def test_a_query_a_million_away_belongs_to_its_nearest_point_alone(kernel, dtype):
    queries, points, codes = far_problem(46, dtype, 1e6)
    nearest = [int(codes[((points.double() - query.double()) ** 2).sum(dim=1).argmin()]) for query in queries]
    computed = posteriors(queries, points, codes, 3, 0.5, kernel)
    assert torch.equal(computed, torch.nn.functional.one_hot(torch.tensor(nearest), 3).to(dtype))


@pytest.mark.parametrize("distance", [1e2, 1e4, 1e8, 1e10])
@pytest.mark.parametrize("dtype", DTYPES)
def test_far_queries_of_the_default_kernel_get_what_the_formula_says(dtype, distance):
    queries, points, codes = far_problem(48, dtype, distance)
    computed = posteriors(queries, points, codes, 3, 1.0, "rbf")
    exact = exact_posteriors(queries, points, codes, 3, 1.0, kernel="rbf")
    np.testing.assert_allclose(computed, exact, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-5)


@pytest.mark.parametrize("kernel", ENDLESS)
def test_the_exact_oracle_agrees_with_the_double_loop_where_both_work(kernel):
    points, codes, _ = cloud(50, 12, 2, 3)
    queries = cloud(51, 5, 2, 1)[0]
    np.testing.assert_allclose(
        exact_posteriors(queries, points, codes, 3, 0.5, kernel=kernel),
        slow_posteriors(queries, points, codes, 3, 0.5, kernel=kernel),
        rtol=0,
        atol=1e-13,
    )


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
