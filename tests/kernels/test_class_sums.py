"""Class sums, posteriors and densities against a double loop; the blocked loop against the dense product."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_oracle import COMPACT, DTYPES, class_sums, cloud, log_densities, slow_log_sums, slow_posteriors

from kcal.kernels import (
    KERNELS,
    RESOLUTION,
    ClassSums,
    LeaveOut,
    PreparedSupport,
    add_sums,
    class_posteriors,
    leave_out_rule,
    sort_support,
)

steady = settings(deadline=None, derandomize=True, max_examples=60)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}
BANDWIDTHS = (1.8, 0.9, 0.5, 0.45)


def exact_log(sums):
    """log S, (n_bandwidths, n_query, n_classes) in float64, −inf where a class has no mass."""
    return (sums.sums.double().log() + sums.offsets.double()[:, None]).transpose(1, 2)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_log_sums_equal_the_double_loop_at_every_bandwidth(kernel, dtype, weighted):
    points, codes, weights = cloud(1, 43, 3, 4, dtype=dtype, weighted=weighted)
    codes[codes == 2] = 3  # class 2 is empty, and so is class 4
    queries = cloud(2, 17, 3, 1, dtype=dtype)[0]
    computed = exact_log(
        class_sums(queries, sort_support(points, codes, 5, weights), BANDWIDTHS, kernel=KERNELS[kernel])
    )
    assert torch.isneginf(computed[..., [2, 4]]).all()
    for found, bandwidth in zip(computed, BANDWIDTHS, strict=True):
        slow = slow_log_sums(queries, points, codes, 5, bandwidth, kernel=kernel, weights=weights)
        np.testing.assert_allclose(found, slow, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("keyed", [None, False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_dense_product_equals_blocked_loop(kernel, dtype, weighted, keyed):
    """Near and far; without leaving out, leave-one-out, and by groups."""
    points, codes, weights = cloud(3, 60, 3, 4, dtype=dtype, weighted=weighted)
    codes[codes == 2] = 1
    weights = None if weights is None else weights * (torch.arange(60) % 7 > 0)
    support = sort_support(points + 5.0, codes, 4, weights)
    prepared = PreparedSupport(support, [0.2, 0.5, 1.0], KERNELS[kernel])
    rule = None if keyed is None else leave_out_rule(support, torch.arange(60) % 7 if keyed else None)
    for factor in (1.0, 3.0, 1e3, 1e15):
        queries = factor * support.points + 0.1
        blocked = prepared.class_sums(queries, leave_out=rule)
        dense = prepared.class_sums(queries.clone().requires_grad_(), leave_out=rule)
        assert dense.sums.requires_grad
        tolerance = 1e-5 if dtype == torch.float32 or factor > 1e3 else 1e-10
        torch.testing.assert_close(dense.posteriors().detach(), blocked.posteriors(), rtol=0, atol=tolerance)
        log_totals = [(sums.sums.sum(dim=1).log() + sums.offsets).detach() for sums in (dense, blocked)]
        torch.testing.assert_close(*log_totals, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bandwidths", [[0.3], [0.3, 0.6, 3.0]])
def test_points_of_later_blocks_may_be_much_nearer(bandwidths, dtype):
    """Sorted by class, each of which is far from the others; some queries see no point of the first block."""
    codes = torch.arange(3_000) // 1_000
    points = 40.0 * codes[:, None] + cloud(6, 3_000, 3, 1, dtype=dtype)[0]
    support = sort_support(points, codes, 3)
    queries = points[::50] + 0.1
    keys = (torch.arange(3_000) >= 1_500).long()
    rule = LeaveOut(torch.arange(60) % 3, keys, grouped=True)  # a third sees the last points only, and one all
    prepared = PreparedSupport(support, bandwidths)
    blocked, dense = (f(queries, leave_out=rule) for f in (prepared.class_sums, prepared.dense_sums))
    torch.testing.assert_close(blocked.posteriors(), dense.posteriors(), rtol=0, atol=TOLERANCE[dtype])
    log_totals = [sums.sums.sum(dim=1).log() + sums.offsets for sums in (blocked, dense)]
    torch.testing.assert_close(*log_totals, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_are_those_of_differences(kernel):
    points, codes, weights = cloud(5, 30, 2, 3, weighted=True)
    prepared = PreparedSupport(sort_support(points, codes, 3, weights), [1.1], KERNELS[kernel])
    queries = cloud(6, 4, 2, 1)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: prepared.class_sums(rows).posteriors(), queries, atol=1e-6)


def test_many_classes_are_summed_without_a_matrix_of_points_and_classes():
    points, codes, weights = cloud(7, 300, 2, 20_000, weighted=True)
    prepared = PreparedSupport(sort_support(points, codes, 20_000, weights), [0.5])
    queries = points[:5] + 0.1
    dense = prepared.posteriors(queries.clone().requires_grad_()).detach()
    torch.testing.assert_close(dense, prepared.posteriors(queries), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", ["rbf", "biweight"])
def test_exported_program_computes_the_same(kernel):
    points, codes, weights = cloud(8, 40, 3, 3, dtype=torch.float32, weighted=True)

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.prepared = PreparedSupport(sort_support(points, codes, 3, weights), [0.7], KERNELS[kernel]).prepare()

        def forward(self, queries):
            return self.prepared.posteriors(queries)

    module, queries = Module(), 3.0 * cloud(9, 9, 3, 1, dtype=torch.float32)[0]
    rows = torch.export.Dim("rows", min=1)
    program = torch.export.export(module, (queries[:2],), dynamic_shapes=({0: rows},), strict=False)
    torch.testing.assert_close(program.module()(queries), module(queries), rtol=0, atol=1e-5)


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("size", [(2_060, 2_050), (70_000, 3)])
def test_inference_mode_and_threads_change_nothing(size, n_threads):
    """Threads share the queries, or the points where these are many."""
    points, codes, _ = cloud(7, size[0], 2, 3, dtype=torch.float32)
    support, queries, threads = sort_support(points, codes, 3), points[: size[1]] + 0.1, torch.get_num_threads()
    expected = class_posteriors(queries, support, 0.5)
    torch.set_num_threads(n_threads)
    try:
        with torch.inference_mode():
            found = class_posteriors(queries, support, 0.5)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("n_support", "n_query"), [(1_027, 1_029), (33_000, 3), (2_050, 2)])
def test_block_sizes_are_crossed(n_support, n_query):
    """Threads share the queries, or the points where these are many."""
    points, codes, _ = cloud(7, n_support, 2, 3, dtype=torch.float32)
    queries, support = cloud(8, n_query, 2, 1, dtype=torch.float32)[0], sort_support(points, codes, 3)
    for bandwidth in (0.5, 0.02):  # with and without a shift of the exponents
        computed = class_posteriors(queries, support, bandwidth)
        assert computed.is_contiguous()
        slow = slow_posteriors(queries[-2:], points, codes, 3, bandwidth, kernel="rbf")
        np.testing.assert_allclose(computed[-2:], slow, rtol=0, atol=1e-5 if bandwidth == 0.5 else 1e-4)
        alone = class_posteriors(queries[:2], support, bandwidth)
        torch.testing.assert_close(computed[:2], alone, rtol=0, atol=1e-5)


def test_many_bandwidths_round_as_one():
    """Narrow kernels are squares of wide ones, at most six times in a row."""
    points, codes, _ = cloud(5, 60, 3, 3, dtype=torch.float32)
    queries = cloud(6, 9, 3, 1, dtype=torch.float32)[0]
    for bandwidths in ((1.0, 8.0, 64.0, 512.0), tuple(2.0**power for power in range(12)), (1.0, 1.1), (0.3, 2.0, 0.61)):
        log_sums = class_sums(queries, sort_support(points, codes, 3), bandwidths).log()
        for index, bandwidth in enumerate(bandwidths):
            slow = slow_log_sums(queries, points, codes, 3, bandwidth, kernel="rbf")
            np.testing.assert_allclose(log_sums[index].numpy(), slow, rtol=0, atol=5e-5)


def test_a_support_without_queries_gives_no_rows():
    support = sort_support(*cloud(9, 5, 2, 3)[:2], 3)
    for kernel in KERNELS.values():
        assert class_posteriors(torch.empty(0, 2, dtype=torch.float64), support, 1.0, kernel=kernel).shape == (0, 3)


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
    weights = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    points, queries = (torch.tensor(rows, dtype=torch.float64) for rows in (points, queries))
    # a crooked bandwidth keeps grid points off a compact kernel's rim
    bandwidth = draw(st.sampled_from([0.0712345, 0.412345, 1.312345, 7.712345]))
    options = {"kernel": draw(st.sampled_from(kernels)), "weights": weights}
    return queries, points, torch.tensor(codes), n_classes, bandwidth, options


@steady
@given(problem=problems())
def test_any_log_sums_equal_the_double_loop(problem):
    queries, points, codes, n_classes, bandwidth, options = problem
    support = sort_support(points, codes, n_classes, options["weights"])
    computed = exact_log(class_sums(queries, support, [bandwidth], kernel=KERNELS[options["kernel"]]))[0].numpy()
    slow = slow_log_sums(*problem[:-1], **options)
    # beside a largest sum, one that is e^−470 times smaller may vanish
    faint = slow < slow.max(axis=1, keepdims=True) - 470
    slow[faint] = computed[faint] = -np.inf
    tolerance = 1e-11 * (1 + np.abs(slow, where=np.isfinite(slow), out=np.zeros_like(slow)).max())
    np.testing.assert_allclose(computed, slow, rtol=0, atol=tolerance)


@steady
@given(problem=problems(kernels=COMPACT))
def test_compact_posteriors_equal_the_double_loop_or_lie_with_the_nearest_points(problem):
    queries, points, codes, n_classes, bandwidth, options = problem
    support = sort_support(points, codes, n_classes, options["weights"])
    computed = class_posteriors(queries, support, bandwidth, kernel=KERNELS[options["kernel"]])
    slow = slow_posteriors(*problem[:-1], **options)
    reached = ~np.isneginf(slow_log_sums(*problem[:-1], **options)).all(axis=1)
    np.testing.assert_allclose(computed[reached], slow[reached], rtol=0, atol=1e-9)
    np.testing.assert_allclose(computed.sum(dim=1), 1.0, rtol=0, atol=1e-12)
    # rounding may break a tie between points that are equally near, but a class of none of them gets nothing
    assert not computed.numpy()[~reached][slow[~reached] == 0].any()


@pytest.mark.parametrize("bandwidth", [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
def test_single_precision_keeps_its_promise_about_the_exponents(bandwidth):
    """Wherever float64 takes over, the classes' log-odds may be off by twice RESOLUTION."""
    points, codes, _ = cloud(14, 400, 8, 4, dtype=torch.float32)
    queries = 2 * cloud(15, 200, 8, 1, dtype=torch.float32)[0]
    single = class_posteriors(queries, sort_support(points, codes, 4), bandwidth).log().double()
    double = class_posteriors(queries.double(), sort_support(points.double(), codes, 4), bandwidth).log()
    seen = double > -20
    assert float((single - double)[seen].abs().max()) < 2 * RESOLUTION


@pytest.mark.parametrize("kernel", KERNELS)
def test_far_offsets_and_small_bandwidths_do_not_cancel_in_single_precision(kernel):
    points, codes, weights = cloud(16, 120, 4, 3, weighted=True)
    points = (points * 64).round() / 64 + 10_000  # exact in both precisions
    queries = (cloud(17, 30, 4, 1)[0] * 64).round() / 64 + 10_000
    double = sort_support(points, codes, 3, weights)
    single = sort_support(points.float(), codes, 3, weights.float())
    for bandwidth in (0.02, 0.1, 0.5):
        found = class_posteriors(queries.float(), single, bandwidth, kernel=KERNELS[kernel]).double()
        expected = class_posteriors(queries, double, bandwidth, kernel=KERNELS[kernel])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_sums_over_many_points_keep_their_precision():
    generator = torch.Generator().manual_seed(0)
    points, queries = torch.randn(600_000, 2, generator=generator), torch.randn(4, 2, generator=generator)
    codes = (torch.rand(600_000, generator=generator) < 0.3).long()
    computed = class_posteriors(queries, sort_support(points, codes, 2), 1e6).double()
    np.testing.assert_allclose(computed[:, 1], float(codes.double().mean()), rtol=0, atol=1e-6)


def part_of(support, rows):
    """Some points of a support, with the centre of all."""
    weights = None if support.log_weights is None else support.log_weights[rows]
    part = replace(support, points=support.points[rows], codes=support.codes[rows], log_weights=weights)
    return replace(part, order=support.order[rows], given_centre=support.centre)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kernel", ["rbf", "laplace"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_posteriors_of_parts_are_those_of_the_whole(dtype, tolerance, kernel, weighted):
    points, codes, weights = cloud(0, 600, 5, 4, dtype=dtype, weighted=weighted)
    weights = None if weights is None else weights * (torch.arange(600) % 7 > 0)
    support, kernel = sort_support(points + codes[:, None], codes, 4, weights), KERNELS[kernel]
    queries = torch.cat([support.points[::7] + 0.1, support.points[:3] + 40.0])  # some are far from every point
    whole = PreparedSupport(support, [0.6, 1.1], kernel).posteriors(queries)
    parts = [part_of(support, rows) for rows in (slice(0, 100), slice(100, 420), slice(420, 600))]  # cut within classes
    found = [PreparedSupport(part, [0.6, 1.1], kernel, is_part=True).class_sums(queries) for part in parts]
    assert found[0].sums.dtype == found[0].offsets.dtype == torch.float64
    assert (add_sums(found).posteriors() - whole).abs().max() < tolerance


def test_a_part_that_the_kernel_does_not_reach_adds_nothing():
    near = ClassSums(torch.tensor([[[2.0], [0.0]]]), torch.tensor([[-3.0]]))
    beyond = ClassSums(torch.tensor([[[0.0], [5.0]]]), torch.tensor([[-torch.inf]]))
    total = add_sums([near, beyond])
    assert total.sums.flatten().tolist() == [2.0, 0.0]
    assert total.offsets.item() == -3.0
    nothing = add_sums([beyond, beyond])
    assert nothing.sums.abs().sum() == 0
    assert torch.isneginf(nothing.offsets).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_point_of_weight_zero_is_absent_and_a_double_weight_is_a_double_point(kernel):
    points, codes, weights = cloud(10, 40, 3, 3, weighted=True)
    queries = cloud(11, 12, 3, 1)[0]
    weights[::3] = 0.0
    kept = (weights > 0).nonzero()[:, 0]
    doubled = torch.cat([kept, kept[:9]])
    halved = weights[doubled].clone()
    halved[:9] /= 2
    halved[-9:] /= 2
    supports = [sort_support(points, codes, 3, weights), sort_support(points[kept], codes[kept], 3, weights[kept])]
    supports += [sort_support(points[doubled], codes[doubled], 3, halved)]
    for bandwidth in (0.05, 0.5, 5.0):
        rows, *others = (class_posteriors(queries, support, bandwidth, kernel=KERNELS[kernel]) for support in supports)
        densities = [log_densities(queries, support, bandwidth, kernel=KERNELS[kernel]) for support in supports]
        for other, density in zip(others, densities[1:], strict=True):
            torch.testing.assert_close(rows, other, rtol=0, atol=1e-12)
            torch.testing.assert_close(densities[0], density, rtol=0, atol=1e-11)
