"""Leave-one-out and leave-group-out: masked by index, and one loss however it is computed."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_oracle import COMPACT, DTYPES, cloud, slow_posteriors

from kcal.kernels import (
    KERNELS,
    LeaveOutLoss,
    class_posteriors,
    leave_out_posteriors,
    mean_log_loss,
    numerics,
    sort_support,
)

steady = settings(deadline=None, derandomize=True, max_examples=30)

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
def test_the_kept_the_streamed_and_the_slow_loss_are_one(kernel, dtype, weighted, monkeypatch):
    monkeypatch.setattr(numerics, "SUPPORT_BLOCK", 16)
    monkeypatch.setattr(numerics, "QUERY_BLOCK", 10)
    points, codes, weights = cloud(71, 43, 2, 3, dtype=dtype, weighted=weighted)
    for keys in (None, torch.arange(43) % 5):
        support = sort_support(points, codes, 4, weights)
        kept = LeaveOutLoss(support, kernel=KERNELS[kernel], keys=keys)
        streamed = LeaveOutLoss(support, kernel=KERNELS[kernel], keys=keys, memory_budget=0)
        assert kept.kept
        assert not streamed.kept
        for bandwidth in (0.05, 0.3, 1.0, 10.0):
            slow = slow_loss(points, codes, 4, bandwidth, kernel, weights=weights, keys=keys)
            tolerance = 1e-5 if dtype == torch.float32 else 1e-11
            assert kept(bandwidth) == pytest.approx(slow, abs=tolerance)
            assert streamed(bandwidth) == pytest.approx(slow, abs=tolerance)
            assert kept(bandwidth) == pytest.approx(streamed(bandwidth), abs=1e-5 if dtype == torch.float32 else 1e-11)


def test_distances_are_kept_exactly_when_they_fit():
    support = sort_support(*cloud(72, 20, 2, 2)[:2], 2)
    assert LeaveOutLoss(support, memory_budget=20 * 20 * 8).kept
    assert not LeaveOutLoss(support, memory_budget=20 * 20 * 8 - 1).kept
    assert LeaveOutLoss(support.to(dtype=torch.float32), memory_budget=20 * 20 * 4).kept


def test_a_loss_knows_what_it_leaves_out():
    support = sort_support(*cloud(72, 20, 2, 2)[:2], 2)
    by_sample, by_group = LeaveOutLoss(support), LeaveOutLoss(support, keys=torch.arange(20) % 6)
    assert (by_sample.n_keys, by_sample.grouped) == (20, False)
    assert (by_group.n_keys, by_group.grouped) == (6, True)
    assert by_sample.support is support


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


def test_three_coincident_samples_see_the_other_two():
    points = torch.tensor([[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]], dtype=torch.float64)
    computed = leave_out_posteriors(sort_support(points, torch.tensor([0, 0, 1]), 2), 1.0)
    assert computed.tolist() == [[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]]


@pytest.mark.parametrize("bandwidth", [0.05, 0.3, 1.0])
def test_labels_of_pure_noise_are_predicted_at_chance(bandwidth):
    """A leak of the sample itself would lift the accuracy; 4 standard deviations of a binomial are allowed."""
    generator = torch.Generator().manual_seed(74)
    points = 5.0 + torch.randn(1000, 6, generator=generator)
    codes = torch.randint(5, (1000,), generator=generator)
    predicted = leave_out_posteriors(sort_support(points, codes, 5), bandwidth).argmax(dim=1)
    accuracy = float((predicted == codes).double().mean())
    assert abs(accuracy - 0.2) < 4 * math.sqrt(0.2 * 0.8 / 1000)


def test_a_leak_would_be_seen_by_the_test_at_chance():
    points, codes, _ = cloud(75, 300, 6, 5, dtype=torch.float32)
    leaking = class_posteriors(points, sort_support(points, codes, 5), 0.05).argmax(dim=1)
    assert float((leaking == codes).double().mean()) == 1.0


@pytest.mark.parametrize("kernel", KERNELS)
def test_leaving_out_a_group_equals_deleting_it(kernel):
    points, codes, weights = cloud(76, 40, 2, 3, weighted=True)
    groups = torch.randint(5, (40,), generator=torch.Generator().manual_seed(1))
    support = sort_support(points, codes, 3, weights)
    computed = leave_out_posteriors(support, 0.4, kernel=KERNELS[kernel], keys=groups)
    for group in range(5):
        inside = groups == group
        rest = sort_support(points[~inside], codes[~inside], 3, weights[~inside])
        expected = class_posteriors(points[inside], rest, 0.4, kernel=KERNELS[kernel])
        torch.testing.assert_close(computed[inside], expected, rtol=0, atol=1e-12)


def test_groups_of_one_are_leave_one_out():
    points, codes, _ = cloud(77, 30, 2, 3)
    support = sort_support(points, codes, 3)
    names = torch.randperm(30, generator=torch.Generator().manual_seed(2)) * 1000 - 7
    assert torch.equal(leave_out_posteriors(support, 0.4, keys=names), leave_out_posteriors(support, 0.4))
    assert LeaveOutLoss(support, keys=names)(0.4) == LeaveOutLoss(support)(0.4)


@pytest.mark.parametrize("budget", [0, 10**9])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_only_member_of_a_class_costs_the_clip_at_every_bandwidth(kernel, budget):
    """Two clouds so far apart that all the others are certain: the mean loss is the lonely sample's share."""
    points = torch.cat([cloud(78, 10, 2, 1)[0] / 10, 1e4 + cloud(79, 10, 2, 1)[0] / 10, torch.tensor([[0.0, 1e4]])])
    codes = torch.tensor([0] * 10 + [1] * 10 + [2])
    loss = LeaveOutLoss(sort_support(points, codes, 3), kernel=KERNELS[kernel], memory_budget=budget)
    for bandwidth in (0.1, 1.0, 10.0):
        assert 21 * loss(bandwidth) == pytest.approx(CLIP, rel=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_two_losses_agree_at_small_bandwidths_far_from_the_origin(dtype):
    points, codes, _ = cloud(80, 80, 3, 3)
    points = ((points * 64).round() / 64 + 10_000).to(dtype)
    support = sort_support(points, codes, 3)
    for kernel in ("rbf", "laplace", *COMPACT):
        kept = LeaveOutLoss(support, kernel=KERNELS[kernel])
        streamed = LeaveOutLoss(support, kernel=KERNELS[kernel], memory_budget=0)
        for bandwidth in (0.01, 0.1, 1.0):
            assert kept(bandwidth) == pytest.approx(streamed(bandwidth), abs=2e-4 if dtype == torch.float32 else 1e-9)


@steady
@given(
    seed=st.integers(0, 10**6), n=st.integers(2, 25), n_classes=st.integers(1, 4), bandwidth=st.floats(0.02, 20.0),
    kernel=st.sampled_from(sorted(KERNELS)), weighted=st.booleans(),
)  # fmt: skip
def test_any_loss_equals_the_double_loop(seed, n, n_classes, bandwidth, kernel, weighted):
    points, codes, weights = cloud(seed, n, 2, n_classes, weighted=weighted)
    support = sort_support(points, codes, n_classes, weights)
    slow = slow_loss(points, codes, n_classes, bandwidth, kernel, weights=weights)
    for budget in (0, 10**9):
        loss = LeaveOutLoss(support, kernel=KERNELS[kernel], memory_budget=budget)
        assert loss(bandwidth) == pytest.approx(slow, rel=1e-8)


def test_the_mean_log_loss_clips_and_weighs():
    rows = torch.tensor([math.log(0.5), -math.inf, 0.0], dtype=torch.float64)
    assert mean_log_loss(rows) == pytest.approx((math.log(2) + CLIP) / 3, rel=1e-14)
    weights = torch.tensor([2.0, 1.0, 5.0], dtype=torch.float64)
    assert mean_log_loss(rows, weights.log()) == pytest.approx((2 * math.log(2) + CLIP) / 8, rel=1e-14)
    assert mean_log_loss(rows[[0, 2]]) == pytest.approx(math.log(2) / 2, rel=1e-15)
