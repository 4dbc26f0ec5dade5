"""The support points that carry class sums, against double loops over all of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from kernel_oracle import cloud, log_kernel, squared_distance

from kcal.kernels import KERNELS, Contributions, PreparedSupport, largest_contributions, sort_support

BANDWIDTHS = (0.4, 0.8)


def contributions_of(kernel: str, *, shift: float = 0.0, dtype: torch.dtype = torch.float64) -> tuple[Any, ...]:
    """Return contributions of 60 weighted points, some without weight, to 7 queries; the points, codes and weights."""
    points, codes, weights = cloud(3, 60, 4, 3, dtype=dtype, weighted=True)
    weights = torch.where(torch.arange(60) % 9 == 0, 0.0, weights)
    queries = cloud(4, 7, 4, 3, dtype=dtype)[0] + shift
    support = sort_support(points, codes, 3, weights)
    return Contributions(PreparedSupport(support, BANDWIDTHS, KERNELS[kernel]), queries), points, codes, weights


@pytest.mark.parametrize("kernel", ["rbf", "laplace", "triweight"])
@pytest.mark.parametrize("k", [1, 4, 53, 60])
def test_the_largest_contributions_are_those_of_a_double_loop(kernel: str, k: int) -> None:
    """Also with more points asked for than have a weight."""
    found, points, codes, weights = contributions_of(kernel)
    support, offsets = found.prepared.support, found.class_sums().offsets
    factors = torch.rand(2, 3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    factors[:, 2] = 0.0  # points without a total, of which the nearest come first
    positions, totals = largest_contributions(found, factors, k)
    counted = [i for i in range(60) if weights[i] > 0]
    assert positions.shape == totals.shape == (7, min(k, len(counted)))
    for q, query in enumerate(found.queries.tolist()):
        expected = {}
        for i in counted:
            distance = squared_distance(query, points[i].tolist())
            total = 0.0
            for j, bandwidth in enumerate(BANDWIDTHS):
                value = log_kernel(kernel, distance / (4 * bandwidth**2), 4)
                if value is not None and math.isfinite(offsets[j, q]):
                    relative = math.exp(value - float(offsets[j, q]))
                    total += float(factors[j, codes[i], q]) * float(weights[i]) * relative
            expected[i] = (total, -distance)
        ranked = sorted(expected, key=lambda i: expected[i], reverse=True)[:k]
        assert support.order[positions[q]].tolist() == ranked
        np.testing.assert_allclose(totals[q], [expected[i][0] for i in ranked], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kernel", ["rbf", "matern52", "biweight"])
@pytest.mark.parametrize("shift", [1e3, 1e12])
def test_far_from_all_points_the_nearest_one_carries_everything(kernel: str, shift: float) -> None:
    """Whether or not the kernel reaches it, and where float64 does not resolve the bandwidth."""
    found, points, _, weights = contributions_of(kernel, shift=shift)
    sums = found.class_sums().sums
    factors = torch.where(sums > 0, 1.0 / sums, 0.0)
    positions, totals = largest_contributions(found, factors, 60)
    assert torch.isfinite(totals).all()
    by_class = torch.zeros(7, 3).double().scatter_add_(1, found.prepared.support.codes[positions], totals)
    torch.testing.assert_close(by_class, (sums > 0).sum(dim=0).T.double())
    if shift == 1e3 and kernel != "matern52":  # whose weights decide
        nearest = torch.cdist(found.queries, points[weights > 0]).argmin(dim=1)
        carried = found.prepared.support.order[largest_contributions(found, torch.ones_like(factors), 1)[0]]
        assert carried[:, 0].tolist() == weights.nonzero()[nearest, 0].tolist()


def test_distances_do_not_suffer_from_the_size_of_coordinates() -> None:
    points = torch.tensor([[1e8, 0.0], [1e8, 1e-3]], dtype=torch.float64)
    support = sort_support(points, torch.tensor([0, 1]), 2)
    found = Contributions(PreparedSupport(support, [1.0]), points[:1])
    assert found.distances(torch.tensor([[0, 1]])).tolist() == [[0.0, 1e-3]]
