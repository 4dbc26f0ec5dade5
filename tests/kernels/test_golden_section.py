"""The published search: its interval, its tolerance, its clip, and a word at the edge."""

import math
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from kcal.errors import BandwidthWarning
from kcal.kernels import LEAST_PROB, LeaveOutLoss, SampledLeaveOutLoss, leave_out_loss, search_published, sort_support


@pytest.mark.parametrize("best", [0.101, 0.3, 2.0, 9.7])
def test_the_minimum_is_found_to_the_published_tolerance(best):
    asked = []

    def loss(bandwidth):
        asked.append(2 * bandwidth**2)
        return abs(math.log(asked[-1] / best)) ** 1.5

    notes = []
    curve = search_published(loss, after_each=notes.append)
    assert abs(2 * curve.bandwidth**2 - best) < 1e-4
    assert curve.loss == min(curve.losses)
    assert not curve.at_edge
    assert min(asked) > 0.1
    assert max(asked) < 10
    # each evaluation narrows the bracket by the golden ratio: 9.9·φ^n < 1e-4 after 24, and two to begin with
    assert len(asked) == len(notes) == len(curve.losses) == 26
    assert np.all(np.diff(curve.bandwidths) > 0)


@pytest.mark.parametrize(("slope", "edge"), [(1.0, 0.1), (-1.0, 10.0)])
def test_the_interval_is_kept_and_its_edge_is_told(slope, edge):
    with pytest.warns(BandwidthWarning, match="edge of its interval .0.224, 2.24."):
        curve = search_published(lambda bandwidth: slope * bandwidth)
    assert curve.at_edge
    assert 2 * curve.bandwidth**2 == pytest.approx(edge, abs=1e-4)


def test_it_agrees_with_another_minimiser_on_a_leave_out_loss():
    generator = np.random.default_rng(0)
    codes = np.arange(90) % 3
    points = torch.from_numpy(2.0 * generator.normal(size=(90, 3)) + 1.5 * np.eye(3)[codes])
    loss = LeaveOutLoss(sort_support(points, torch.from_numpy(codes), 3), keys=torch.arange(90) % 20)
    curve = search_published(loss)
    other = minimize_scalar(lambda h: loss(math.sqrt(h / 2)), bounds=(0.1, 10), method="bounded")
    assert 2 * curve.bandwidth**2 == pytest.approx(other.x, abs=1e-3)


def test_the_only_member_of_a_class_costs_the_published_clip_at_every_bandwidth():
    """23.03 = −log 1e-10."""
    points, codes = torch.randn(7, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 0, 1, 1, 1, 2])
    support = sort_support(points, codes, 3)
    for make in (LeaveOutLoss, partial(SampledLeaveOutLoss, n_predicted=7), leave_out_loss):
        default, published = make(support), make(support, least_prob=LEAST_PROB)
        for bandwidth in (0.5, 2.0):
            assert 7 * (default(bandwidth) - published(bandwidth)) == pytest.approx(math.log(100), rel=1e-9)


def test_nothing_is_said_within_the_interval():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search_published(lambda bandwidth: (bandwidth - 1.0) ** 2)
