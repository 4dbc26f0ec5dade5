"""The loss on a random part of a large support: its queries are predicted from the whole support."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kcal.kernels import KERNELS, LeaveOutLoss, SampledLeaveOutLoss, leave_out_loss, search_bandwidth, sort_support


def support(n: int = 400, d: int = 3, *, weighted: bool = False, spread: float = 1.2):
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(4, (n,), generator=generator)
    centres = spread * torch.randn(4, d, generator=generator, dtype=torch.float64)
    points = centres[codes] + torch.randn(n, d, generator=generator, dtype=torch.float64)
    weights = torch.rand(n, generator=generator, dtype=torch.float64) + 0.1 if weighted else None
    return sort_support(points, codes, 4, weights)


@pytest.mark.parametrize("kernel", ["rbf", "laplace", "epanechnikov"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_sample_of_all_points_has_the_loss_and_the_error_of_all(kernel, weighted, grouped):
    points = support(weighted=weighted)
    keys = torch.arange(400) % 9 if grouped else None
    whole = LeaveOutLoss(points, kernel=KERNELS[kernel], keys=keys)
    sampled = SampledLeaveOutLoss(points, n_predicted=400, kernel=KERNELS[kernel], keys=keys)
    for bandwidth in (0.3, 0.8):
        assert sampled(bandwidth) == pytest.approx(whole(bandwidth), rel=1e-10)
        assert sampled.standard_error(bandwidth) == pytest.approx(whole.standard_error(bandwidth), rel=1e-9)


def test_the_standard_error_is_that_of_a_mean():
    points = support()
    loss = LeaveOutLoss(points)
    losses = -np.log(loss.own_shares(0.6).numpy())
    assert loss.standard_error(0.6) == pytest.approx(losses.std() / math.sqrt(len(losses)), rel=1e-10)


def test_samples_scatter_around_the_whole_loss_by_their_standard_error():
    points = support(2_000)
    whole = LeaveOutLoss(points)(0.6)
    parts = [SampledLeaveOutLoss(points, n_predicted=200, seed=seed) for seed in range(40)]
    deviations = [(part(0.6) - whole) / part.standard_error(0.6) for part in parts]
    # drawn without replacement from 2,000, so that they scatter by √0.9 of it
    assert 0.6 < np.std(deviations) < 1.3
    assert abs(np.mean(deviations)) < 0.6


def test_only_large_supports_are_sampled():
    assert isinstance(leave_out_loss(support(), max_predicted=400), LeaveOutLoss)
    assert isinstance(leave_out_loss(support(), max_predicted=399), SampledLeaveOutLoss)


def test_the_bandwidth_of_a_sample_is_close_to_that_of_all():
    points = support(6_000, spread=0.8)
    whole = search_bandwidth(LeaveOutLoss(points)).bandwidth
    sampled = search_bandwidth(leave_out_loss(points)).bandwidth
    assert sampled == pytest.approx(whole, rel=0.03)
