"""Class sums of parts of a support add up to those of the whole."""

from __future__ import annotations

import pytest
import torch

from kcal.kernels import (
    KERNELS,
    ClassSums,
    LeaveOut,
    PreparedSupport,
    SortedSupport,
    add_sums,
    leave_out_rule,
    sort_support,
)

BANDWIDTHS = [0.6, 1.1]


def make_support(dtype: torch.dtype, *, weighted: bool) -> SortedSupport:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 4, (600,), generator=generator)
    points = torch.randn(600, 5, generator=generator) + 3.0 + codes[:, None]
    weights = torch.rand(600, generator=generator).round(decimals=1) if weighted else None  # some are 0
    return sort_support(points.to(dtype), codes, 4, weights)


def part_of(support: SortedSupport, rows: slice) -> SortedSupport:
    """Return some points, with the centre of all."""
    weights = None if support.log_weights is None else support.log_weights[rows]
    return SortedSupport(
        support.points[rows], support.codes[rows], weights, support.order[rows], support.n_classes, support.centre
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kernel", ["rbf", "laplace"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_posteriors_of_parts_are_those_of_the_whole(dtype, tolerance, kernel, weighted):
    support = make_support(dtype, weighted=weighted)
    queries = torch.cat([support.points[::7] + 0.1, support.points[:3] + 40.0])  # some are far from every point
    whole = PreparedSupport(support, BANDWIDTHS, KERNELS[kernel]).posteriors(queries)
    cuts = [slice(0, 100), slice(100, 420), slice(420, 600)]  # 100 and 420 are within classes
    parts = [PreparedSupport(part_of(support, rows), BANDWIDTHS, KERNELS[kernel], is_part=True) for rows in cuts]
    total = add_sums([part.class_sums(queries) for part in parts])
    assert (total.posteriors() - whole).abs().max() < tolerance


def test_parts_in_single_precision_do_not_round_more_than_the_whole():
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 3, (60_000,), generator=generator)
    points = torch.randn(60_000, 4, generator=generator) + codes[:, None]
    support, queries = sort_support(points, codes, 3), points[:1_024] + 0.1
    whole = PreparedSupport(support, [0.4]).posteriors(queries)
    parts = [part_of(support, slice(start, start + 30_000)) for start in (0, 30_000)]
    total = add_sums([PreparedSupport(part, [0.4], is_part=True).class_sums(queries) for part in parts])
    assert (total.posteriors() - whole).abs().max() < 1e-6


def test_a_sample_left_out_of_its_own_part_is_left_out_of_the_whole():
    support = make_support(torch.float64, weighted=False)
    rule = leave_out_rule(support)
    whole = PreparedSupport(support, BANDWIDTHS).posteriors(support.points, leave_out=rule)
    sums = []
    for rows in (slice(0, 250), slice(250, 600)):
        part = part_of(support, rows)
        own = LeaveOut(rule.query_keys - rows.start, torch.arange(len(part)), grouped=False)
        sums.append(PreparedSupport(part, BANDWIDTHS, is_part=True).class_sums(support.points, leave_out=own))
    assert (add_sums(sums).posteriors() - whole).abs().max() < 1e-13


def test_a_part_that_the_kernel_does_not_reach_adds_nothing():
    near = ClassSums(torch.tensor([[[2.0], [0.0]]]), torch.tensor([[-3.0]]))
    beyond = ClassSums(torch.tensor([[[0.0], [5.0]]]), torch.tensor([[-torch.inf]]))
    total = add_sums([near, beyond])
    assert total.sums.flatten().tolist() == [2.0, 0.0]
    assert total.offsets.item() == -3.0
    nothing = add_sums([beyond, beyond])
    assert nothing.sums.abs().sum() == 0
    assert torch.isneginf(nothing.offsets).all()
