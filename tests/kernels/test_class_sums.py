"""Class sums, posteriors and densities against a double loop, whatever the blocks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_oracle import COMPACT, DTYPES, ENDLESS, class_sums, cloud, log_kernel, slow_log_sums, slow_posteriors

from kcal.kernels import KERNELS, PreparedSupport, class_posteriors, leave_out_rule, numerics, sort_support

steady = settings(deadline=None, derandomize=True, max_examples=60)

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}


def set_blocks(monkeypatch, support, query, pilots=2):
    """Make every block so small that a handful of points crosses many of them."""
    monkeypatch.setattr(numerics, "SUPPORT_BLOCK", support)
    monkeypatch.setattr(numerics, "QUERY_BLOCK", query)
    monkeypatch.setattr(numerics, "MOST_SUPPORT_BLOCKS", 1)
    monkeypatch.setattr(numerics, "PILOT_POINTS", pilots)


@pytest.fixture
def small_blocks(monkeypatch):
    set_blocks(monkeypatch, support=5, query=3)


def log_sums_of(queries, support, bandwidth, kernel):
    sums = class_sums(queries, support, [bandwidth], kernel=KERNELS[kernel])
    return unclamped_log(sums).numpy()


def unclamped_log(sums):
    """log S at the first bandwidth, (n_query, n_classes), −inf where a class has no mass."""
    return sums.sums[0].T.log().double() + sums.offsets[0].double()[:, None]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_log_sums_equal_the_double_loop(kernel, dtype, weighted):
    points, codes, weights = cloud(1, 43, 3, 4, dtype=dtype, weighted=weighted)
    codes[codes == 2] = 3  # class 2 is empty, and so is class 4
    queries = cloud(2, 17, 3, 1, dtype=dtype)[0]
    computed = log_sums_of(queries, sort_support(points, codes, 5, weights), 0.8, kernel)
    slow = slow_log_sums(queries, points, codes, 5, 0.8, kernel=kernel, weights=weights)
    assert np.isneginf(computed[:, [2, 4]]).all()
    np.testing.assert_allclose(computed, slow, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.usefixtures("small_blocks")
def test_posteriors_equal_the_double_loop_over_many_blocks(kernel, dtype):
    points, codes, weights = cloud(3, 47, 2, 6, dtype=dtype, weighted=True)
    codes[codes == 0] = 1
    queries = cloud(4, 23, 2, 1, dtype=dtype)[0]
    support = sort_support(points, codes, 7, weights)
    computed = class_posteriors(queries, support, 0.3, kernel=KERNELS[kernel])
    slow = slow_posteriors(queries, points, codes, 7, 0.3, kernel=kernel, weights=weights)
    assert computed.dtype == dtype
    np.testing.assert_allclose(computed, slow, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_size_of_the_blocks_does_not_matter(kernel, monkeypatch):
    points, codes, weights = cloud(5, 60, 3, 4, weighted=True)
    queries = cloud(6, 31, 3, 1)[0]
    support = sort_support(points, codes, 4, weights)
    whole = class_posteriors(queries, support, 0.7, kernel=KERNELS[kernel])
    for block in (1, 7, 31, 59, 60, 61):
        set_blocks(monkeypatch, block, block, pilots=block)
        parts = class_posteriors(queries, support, 0.7, kernel=KERNELS[kernel])
        torch.testing.assert_close(parts, whole, rtol=0, atol=1e-13)


def test_real_block_sizes_are_crossed():
    support_size, query_size = numerics.SUPPORT_BLOCK + 3, numerics.QUERY_BLOCK + 5
    points, codes, _ = cloud(7, support_size, 2, 3, dtype=torch.float32)
    queries = cloud(8, query_size, 2, 1, dtype=torch.float32)[0]
    computed = class_posteriors(queries, sort_support(points, codes, 3), 0.5)
    last = slice(query_size - 8, query_size)
    slow = slow_posteriors(queries[last], points, codes, 3, 0.5, kernel="rbf")
    np.testing.assert_allclose(computed[last], slow, rtol=0, atol=1e-5)
    alone = class_posteriors(queries[:8], sort_support(points, codes, 3), 0.5)
    torch.testing.assert_close(computed[:8], alone, rtol=0, atol=1e-6)


def test_a_support_without_queries_gives_no_rows():
    support = sort_support(*cloud(9, 5, 2, 3)[:2], 3)
    for kernel in KERNELS.values():
        assert class_posteriors(torch.empty(0, 2, dtype=torch.float64), support, 1.0, kernel=kernel).shape == (0, 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_prepared_support_serves_any_number_of_queries(kernel, dtype, monkeypatch):
    points, codes, weights = cloud(91, 60, 4, 3, dtype=dtype, weighted=True)
    support = sort_support(points, codes, 3, weights)
    queries = torch.cat([cloud(92, 9, 4, 1, dtype=dtype)[0], torch.full((1, 4), 1e4, dtype=dtype)])
    for kept_numbers in (10**6, 0):  # scaled once, or block by block
        monkeypatch.setattr(numerics, "PREPARED_NUMBERS", kept_numbers)
        prepared = PreparedSupport(support, [0.5], KERNELS[kernel])
        together = class_posteriors(queries, support, 0.5, kernel=KERNELS[kernel])
        for row, query in zip(together, queries, strict=True):
            torch.testing.assert_close(prepared.posteriors(query[None])[0, 0], row, rtol=0, atol=TOLERANCE[dtype])


def test_where_a_compact_kernel_reaches_no_point_the_sums_are_the_weights_of_the_nearest():
    points = torch.tensor([[0.0], [4.0], [4.0]], dtype=torch.float64)
    support = sort_support(points, torch.tensor([0, 1, 2]), 3, torch.tensor([5.0, 1.0, 3.0], dtype=torch.float64))
    sums = class_sums(torch.tensor([[7.0]], dtype=torch.float64), support, [0.1], kernel=KERNELS["epanechnikov"])
    assert sums.sums[0, :, 0].tolist() == pytest.approx([0.0, 1.0, 3.0], rel=1e-12)
    assert torch.isneginf(sums.offsets).all()
    assert torch.isneginf(sums.log()).all()


GRID = st.integers(-12, 12).map(lambda value: value / 4)


@st.composite
def problems(draw, kernels=tuple(KERNELS), lowest_weight=1):
    d, n_classes = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    row = st.lists(GRID, min_size=d, max_size=d)
    points = draw(st.lists(row, min_size=1, max_size=14))
    queries = draw(st.lists(row, min_size=1, max_size=6))
    n = len(points)
    codes = draw(st.lists(st.integers(0, n_classes - 1), min_size=n, max_size=n))
    weights = draw(st.none() | st.lists(st.integers(lowest_weight, 4), min_size=n, max_size=n).filter(any))
    return {
        "points": torch.tensor(points, dtype=torch.float64),
        "queries": torch.tensor(queries, dtype=torch.float64),
        "codes": torch.tensor(codes),
        "weights": None if weights is None else torch.tensor(weights, dtype=torch.float64),
        "n_classes": n_classes,
        # a crooked bandwidth keeps grid points off a compact kernel's rim
        "bandwidth": draw(st.sampled_from([0.0712345, 0.412345, 1.312345, 7.712345])),
        "kernel": draw(st.sampled_from(kernels)),
        "blocks": (draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(st.integers(1, 4))),
    }


def in_small_blocks(blocks, compute):
    with pytest.MonkeyPatch.context() as monkeypatch:
        set_blocks(monkeypatch, *blocks)
        return compute()


@steady
@given(problem=problems())
def test_any_log_sums_equal_the_double_loop(problem):
    support = sort_support(problem["points"], problem["codes"], problem["n_classes"], problem["weights"])
    computed = in_small_blocks(
        problem["blocks"],
        lambda: log_sums_of(problem["queries"], support, problem["bandwidth"], problem["kernel"]),
    )
    slow = slow_log_sums(
        problem["queries"], problem["points"], problem["codes"], problem["n_classes"], problem["bandwidth"],
        kernel=problem["kernel"], weights=problem["weights"],
    )  # fmt: skip
    # beside a largest sum, one that is e^−700 times smaller may vanish
    faint = slow < slow.max(axis=1, keepdims=True) - 700
    slow[faint] = computed[faint] = -np.inf
    tolerance = 1e-12 * (1 + np.abs(slow, where=np.isfinite(slow), out=np.zeros_like(slow)).max())
    np.testing.assert_allclose(computed, slow, rtol=0, atol=10 * tolerance)


@steady
@given(problem=problems(kernels=ENDLESS, lowest_weight=0))
def test_any_posteriors_equal_the_double_loop(problem):
    support = sort_support(problem["points"], problem["codes"], problem["n_classes"], problem["weights"])
    kernel = KERNELS[problem["kernel"]]
    computed = in_small_blocks(
        problem["blocks"],
        lambda: class_posteriors(problem["queries"], support, problem["bandwidth"], kernel=kernel),
    )
    slow = slow_posteriors(
        problem["queries"], problem["points"], problem["codes"], problem["n_classes"], problem["bandwidth"],
        kernel=problem["kernel"], weights=problem["weights"],
    )  # fmt: skip
    np.testing.assert_allclose(computed, slow, rtol=0, atol=1e-6 if problem["kernel"] == "laplace" else 1e-9)


@steady
@given(problem=problems(kernels=COMPACT))
def test_compact_posteriors_equal_the_double_loop_or_lie_with_the_nearest_points(problem):
    points, codes, queries, n_classes = (problem[name] for name in ("points", "codes", "queries", "n_classes"))
    support = sort_support(points, codes, n_classes, problem["weights"])
    kernel = KERNELS[problem["kernel"]]
    computed = in_small_blocks(
        problem["blocks"], lambda: class_posteriors(queries, support, problem["bandwidth"], kernel=kernel)
    )
    options = {"kernel": problem["kernel"], "weights": problem["weights"]}
    log_sums = slow_log_sums(queries, points, codes, n_classes, problem["bandwidth"], **options)
    slow = slow_posteriors(queries, points, codes, n_classes, problem["bandwidth"], **options)
    reached = ~np.isneginf(log_sums).all(axis=1)
    np.testing.assert_allclose(computed[reached], slow[reached], rtol=0, atol=1e-9)
    np.testing.assert_allclose(computed.sum(dim=1), 1.0, rtol=0, atol=1e-12)
    # rounding may break a tie between points that are equally near, but a class of none of them gets nothing
    assert not computed.numpy()[~reached][slow[~reached] == 0].any()


@pytest.mark.parametrize("kernel", ENDLESS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_point_of_weight_zero_is_absent(kernel, dtype):
    points, codes, weights = cloud(10, 40, 3, 3, dtype=dtype, weighted=True)
    weights[::3] = 0.0
    kept = weights > 0
    queries = cloud(11, 12, 3, 1, dtype=dtype)[0]
    with_them = sort_support(points, codes, 3, weights)
    without = sort_support(points[kept], codes[kept], 3, weights[kept])
    for bandwidth in (0.05, 0.5, 5.0):
        torch.testing.assert_close(
            class_posteriors(queries, with_them, bandwidth, kernel=KERNELS[kernel]),
            class_posteriors(queries, without, bandwidth, kernel=KERNELS[kernel]),
            rtol=0,
            atol=3e-4 if dtype == torch.float32 else 1e-12,
        )


@pytest.mark.usefixtures("small_blocks")
def test_pilots_of_weight_zero_do_not_spoil_the_shift():
    points = cloud(12, 20, 2, 1)[0]
    weights = torch.zeros(20, dtype=torch.float64)
    weights[7] = weights[8] = 1.0  # the two pilots are the first and the last point
    queries = cloud(13, 6, 2, 1)[0]
    computed = class_posteriors(queries, sort_support(points, torch.arange(20) // 8, 3, weights), 0.4)
    slow = slow_posteriors(queries, points, torch.arange(20) // 8, 3, 0.4, kernel="rbf", weights=weights)
    np.testing.assert_allclose(computed, slow, rtol=0, atol=1e-12)


def test_a_sum_that_overflows_is_taken_again():
    """The pilots (first and last) are so far away that the shift they give lets the nearest point overflow."""
    points = torch.full((300, 1), 60.0)
    points[150] = 0.0
    codes = torch.arange(300) // 100
    with pytest.MonkeyPatch.context() as monkeypatch:
        set_blocks(monkeypatch, 64, 64)
        for dtype in DTYPES:
            support = sort_support(points.to(dtype), codes, 3)
            sums = class_sums(torch.tensor([[0.0]], dtype=dtype), support, [0.7])
            assert torch.isfinite(sums.sums.log()[0, 1, 0])
            assert float(sums.log()[0, 0, 1]) == pytest.approx(0.0, abs=1e-3)
            assert torch.equal(
                class_posteriors(torch.tensor([[0.0]], dtype=dtype), support, 0.7),
                torch.tensor([[0.0, 1.0, 0.0]], dtype=dtype),
            )


@pytest.mark.parametrize("bandwidth", [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
def test_single_precision_keeps_its_promise_about_the_exponents(bandwidth):
    """Just where float64 takes over, the classes' log-odds may be off by twice RESOLUTION."""
    points, codes, _ = cloud(14, 400, 8, 4, dtype=torch.float32)
    queries = 2 * cloud(15, 200, 8, 1, dtype=torch.float32)[0]
    single = class_posteriors(queries, sort_support(points, codes, 4), bandwidth).log().double()
    double = class_posteriors(queries.double(), sort_support(points.double(), codes, 4), bandwidth).log()
    seen = double > -20
    assert float((single - double)[seen].abs().max()) < 2 * numerics.RESOLUTION


@pytest.mark.parametrize("kernel", KERNELS)
def test_far_offsets_and_small_bandwidths_do_not_cancel_in_single_precision(kernel):
    points, codes, weights = cloud(16, 120, 4, 3, weighted=True)
    points = (points * 64).round() / 64 + 10_000  # exact in both precisions
    queries = (cloud(17, 30, 4, 1)[0] * 64).round() / 64 + 10_000
    double = sort_support(points, codes, 3, weights)
    single = double.to(dtype=torch.float32)
    for bandwidth in (0.02, 0.1, 0.5):
        torch.testing.assert_close(
            class_posteriors(queries.float(), single, bandwidth, kernel=KERNELS[kernel]).double(),
            class_posteriors(queries, double, bandwidth, kernel=KERNELS[kernel]),
            rtol=0,
            atol=1e-4,
        )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.usefixtures("small_blocks")
def test_left_out_points_are_not_summed(kernel):
    points, codes, weights = cloud(18, 26, 2, 3, weighted=True)
    support = sort_support(points, codes, 3, weights)
    sums = class_sums(support.points, support, [0.6], kernel=KERNELS[kernel], leave_out=leave_out_rule(support))
    computed = support.in_original_order(unclamped_log(sums))
    slow = slow_log_sums(
        points, points, codes, 3, 0.6, kernel=kernel, weights=weights, hidden=lambda query, row: query == row
    )
    np.testing.assert_allclose(computed, slow, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_oracle_and_the_table_share_no_code_but_agree(kernel):
    t = torch.linspace(0, 20, 81, dtype=torch.float64)
    for d in (1, 2, 7):
        slow = [log_kernel(kernel, float(value), d) for value in t]
        slow = [-np.inf if value is None else value for value in slow]
        np.testing.assert_allclose(KERNELS[kernel].log_profile(t, d), slow, rtol=1e-13, atol=1e-13)
