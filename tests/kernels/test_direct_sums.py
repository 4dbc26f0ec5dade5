"""Class sums by one product equal those of the blocked loop."""

from __future__ import annotations

import pytest
import torch

from kcal.kernels import KERNELS, DirectSums, PreparedSupport, sort_support


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_sums_and_densities_are_those_of_the_blocked_loop(name: str, weighted: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(60, 3, generator=generator, dtype=torch.float64) + 5.0
    codes = torch.randint(0, 4, (60,), generator=generator)
    codes[codes == 2] = 1  # one class has no points
    weights = torch.rand(60, generator=generator, dtype=torch.float64).round(decimals=1) if weighted else None
    support, bandwidths = sort_support(points, codes, 4, weights), [0.2, 0.5, 1.0]
    queries = torch.cat([points[:20], points[:20] * 3, points[:20] * 1e3, points[:20] * 1e15])
    prepared = PreparedSupport(support, bandwidths, KERNELS[name])
    direct = DirectSums(support, bandwidths, KERNELS[name])
    expected, found = prepared.class_sums(queries), direct(queries)
    torch.testing.assert_close(found.posteriors(), expected.posteriors(), rtol=1e-7, atol=1e-7)
    densities = prepared.log_densities(queries)
    for index, density in enumerate(densities):
        torch.testing.assert_close(direct.log_densities(direct(queries), index), density, rtol=1e-7, atol=1e-7)
