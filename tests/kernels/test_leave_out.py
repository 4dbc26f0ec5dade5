"""Leave-one-out and leave-group-out: masked by index, and one loss however it is computed."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from kernel_oracle import DTYPES, cloud, slow_posteriors

from kcal.kernels import (
    KERNELS,
    LeaveOutLoss,
    class_posteriors,
    leave_out_posteriors,
    leave_out_rule,
    sort_support,
)

CLIP = -math.log(1e-12)


def slow_loss(points, codes, n_classes, bandwidth, kernel, *, weights=None, keys=None):
    keys = list(range(len(points))) if keys is None else [int(key) for key in keys]
    rows = slow_posteriors(
        points, points, codes, n_classes, bandwidth,
        kernel=kernel, weights=weights, hidden=lambda query, row: keys[query] == keys[row],
    )  # fmt: skip
    own = rows[np.arange(len(points)), codes.numpy()]
    return float(np.average(-np.log(np.clip(own, 1e-12, None)), weights=weights))


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_leave_out_posteriors_equal_the_double_loop_in_the_original_order(kernel, dtype, keyed):
    points, codes, weights = cloud(70, 45, 3, 4, dtype=dtype, weighted=True)
    keys = torch.arange(45) % 6 if keyed else torch.arange(45)
    support = sort_support(points, codes, 5, weights)
    computed = leave_out_posteriors(support, 0.5, kernel=KERNELS[kernel], keys=keys if keyed else None)
    slow = slow_posteriors(
        points, points, codes, 5, 0.5,
        kernel=kernel, weights=weights, hidden=lambda query, row: keys[query] == keys[row],
    )  # fmt: skip
    np.testing.assert_allclose(computed, slow, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-11)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kept_streamed_sampled_and_slow_losses_are_one(kernel, dtype, weighted):
    points, codes, weights = cloud(71, 43, 2, 3, dtype=dtype, weighted=weighted)
    support, tolerance = sort_support(points, codes, 4, weights), 1e-5 if dtype == torch.float32 else 1e-11
    for keys in (None, torch.arange(43) % 5):
        make = partial(LeaveOutLoss, support, kernel=KERNELS[kernel], keys=keys)
        for bandwidth in (0.05, 0.3, 1.0, 10.0):
            slow = slow_loss(points, codes, 4, bandwidth, kernel, weights=weights, keys=keys)
            for loss in (make(), make(memory_budget=0), make(n_predicted=43)):
                assert loss(bandwidth) == pytest.approx(slow, abs=tolerance)
                assert loss.at([2.0, bandwidth])[1] == loss(bandwidth)


@pytest.mark.parametrize("kernel", KERNELS)
def test_duplicates_count_and_the_sample_itself_does_not(kernel):
    """Every point occurs twice, with different labels: at a small bandwidth each belongs to its twin's class."""
    points = cloud(73, 12, 3, 1)[0]
    codes = torch.arange(12) % 3
    support = sort_support(torch.cat([points, points]), torch.cat([codes, (codes + 1) % 3]), 3)
    expected = torch.nn.functional.one_hot(torch.cat([(codes + 1) % 3, codes]), 3).double()
    computed = leave_out_posteriors(support, 1e-3, kernel=KERNELS[kernel])
    torch.testing.assert_close(computed, expected, rtol=0, atol=1e-12)
    assert LeaveOutLoss(support, kernel=KERNELS[kernel])(1e-3) == pytest.approx(CLIP, rel=1e-12)


@pytest.mark.parametrize("budget", [0, 10**9])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_only_member_of_a_class_costs_the_clip_at_every_bandwidth(kernel, budget):
    """Two clouds so far apart that all the others are certain: the mean loss is the lonely sample's share."""
    points = torch.cat([cloud(78, 10, 2, 1)[0] / 10, 1e4 + cloud(79, 10, 2, 1)[0] / 10, torch.tensor([[0.0, 1e4]])])
    codes = torch.tensor([0] * 10 + [1] * 10 + [2])
    loss = LeaveOutLoss(sort_support(points, codes, 3), kernel=KERNELS[kernel], memory_budget=budget)
    for bandwidth in (0.1, 1.0, 10.0):
        assert 21 * loss(bandwidth) == pytest.approx(CLIP, rel=1e-12)


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


@pytest.mark.parametrize("kernel", ["epanechnikov", "triweight"])
def test_ties_beyond_the_reach_are_shared(kernel):
    support = sort_support(torch.tensor([[0.0], [1.0], [-1.0]], dtype=torch.float64), torch.tensor([0, 0, 1]), 2)
    for bandwidth in (0.01, 0.1):
        # the middle one is torn between two, the right one right, the left one wrong
        expected = (math.log(2) + 0.0 - math.log(1e-12)) / 3
        for budget in (10**9, 0):
            loss = LeaveOutLoss(support, kernel=KERNELS[kernel], memory_budget=budget)
            assert loss(bandwidth) == pytest.approx(expected, rel=1e-12)


def normal_support(n: int = 400, d: int = 3, *, weighted: bool = False, spread: float = 1.2):
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(4, (n,), generator=generator)
    centres = spread * torch.randn(4, d, generator=generator, dtype=torch.float64)
    points = centres[codes] + torch.randn(n, d, generator=generator, dtype=torch.float64)
    weights = torch.rand(n, generator=generator, dtype=torch.float64) + 0.1 if weighted else None
    return sort_support(points, codes, 4, weights)


def test_samples_scatter_around_the_whole_loss_by_their_standard_error():
    points = normal_support(2_000)
    whole = LeaveOutLoss(points)(0.6)
    parts = [LeaveOutLoss(points, n_predicted=200, seed=seed) for seed in range(40)]
    deviations = [(part(0.6) - whole) / part.standard_error(0.6) for part in parts]
    # drawn without replacement from 2,000, so that they scatter by √0.9 of it
    assert 0.6 < np.std(deviations) < 1.3
    assert abs(np.mean(deviations)) < 0.6


@pytest.mark.parametrize("gap", [0.0, 1e3, 1e4])
def test_kept_distances_resolve_those_within_clusters_that_are_far_apart(gap):
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(400, 8)) + gap * generator.integers(0, 2, 400)[:, None] * np.eye(8)[0]
    codes = torch.from_numpy(generator.integers(0, 3, 400))
    support = sort_support(torch.from_numpy(rows).float(), codes, 3)
    kept, again = LeaveOutLoss(support), LeaveOutLoss(support, memory_budget=0)
    for bandwidth in (0.1, 0.3, 1.0):
        assert kept(bandwidth) == pytest.approx(again(bandwidth), abs=2e-4)
