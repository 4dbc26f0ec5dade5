"""The table of kernels: densities that integrate to 1, one variance for all, and scikit-learn's estimator."""

import math

import numpy as np
import pytest
import torch
from kernel_oracle import COMPACT, cloud, log_densities
from scipy.integrate import quad
from sklearn.neighbors import KernelDensity

from kcal.kernels import KERNELS, class_posteriors, sort_support


def at_origin(d):
    """One support point at 0: its density is the kernel itself."""
    return sort_support(torch.zeros(1, d, dtype=torch.float64), torch.zeros(1, dtype=torch.long), 1)


def radial_moment(kernel, d, bandwidth, power):
    """∫ ‖u‖^power·density(u) du over ℝᵈ, by quadrature over the radius."""
    area = 2 * math.pi ** (d / 2) / math.gamma(d / 2)
    support = at_origin(d)

    def integrand(radius):
        query = torch.zeros(1, d, dtype=torch.float64)
        query[0, 0] = radius
        return area * radius ** (d - 1 + power) * math.exp(log_densities(query, support, bandwidth, kernel=kernel))

    reach = bandwidth * math.sqrt(d)
    if kernel.is_compact:
        upper = reach * math.sqrt(d + {"epanechnikov": 4, "biweight": 6, "triweight": 8}[kernel.name])
        return quad(integrand, 0, upper, epsabs=1e-11, epsrel=1e-11)[0]
    near, far = (quad(integrand, *ends, epsabs=1e-11)[0] for ends in ((0, 3 * reach), (3 * reach, 60 * reach)))
    return near + far


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_densities_integrate_to_one(kernel, d):
    assert radial_moment(kernel, d, 0.7, 0) == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_the_second_moment_in_each_direction_is_d_b_squared(kernel, d):
    assert radial_moment(kernel, d, 0.7, 2) / d == pytest.approx(d * 0.7**2, rel=1e-8)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_profiles_start_at_one_and_never_rise(kernel):
    t = torch.linspace(0, 30, 301, dtype=torch.float64)
    for d in (1, 4, 32):
        values = kernel.log_profile(t, d).exp()
        assert values[0] == 1.0
        assert bool((values.diff() <= 0).all())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("d", [1, 3, 10])
def test_log_densities_equal_those_of_scikit_learn(d, weighted):
    points, codes, weights = cloud(62, 200, d, 3, weighted=weighted)
    queries = 2 * cloud(63, 30, d, 1)[0]
    for bandwidth in (0.2, 1.0, 4.0):
        # one leaf: with more, its bounds cancel and log densities are off by up to 6
        reference = KernelDensity(kernel="gaussian", bandwidth=bandwidth * math.sqrt(d), leaf_size=200)
        reference.fit(points.numpy(), sample_weight=None if weights is None else weights.numpy())
        np.testing.assert_allclose(
            log_densities(queries, sort_support(points, codes, 3, weights), bandwidth),
            reference.score_samples(queries.numpy()),
            rtol=0,
            atol=1e-9,
        )


def test_the_epanechnikov_density_equals_that_of_scikit_learn():
    points, codes, weights = cloud(64, 100, 2, 3, weighted=True)
    queries = cloud(65, 20, 2, 1)[0]
    reference = KernelDensity(kernel="epanechnikov", bandwidth=0.5 * math.sqrt(2 * 6), leaf_size=100)
    reference.fit(points.numpy(), sample_weight=weights.numpy())
    computed = log_densities(queries, sort_support(points, codes, 3, weights), 0.5, kernel=KERNELS["epanechnikov"])
    np.testing.assert_allclose(computed, reference.score_samples(queries.numpy()), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kernel", COMPACT)
def test_beyond_the_reach_of_a_compact_kernel_the_nearest_point_decides_and_the_density_is_zero(kernel):
    points = torch.tensor([[0.0], [1.0], [8.0]], dtype=torch.float64)
    support = sort_support(points, torch.tensor([0, 0, 1]), 2)
    reach = 0.5 * math.sqrt({"epanechnikov": 5, "biweight": 7, "triweight": 9}[kernel])
    queries = torch.tensor([[4.0], [5.0], [8.0 + 1.001 * reach], [8.0 + 0.999 * reach]], dtype=torch.float64)
    computed = class_posteriors(queries, support, 0.5, kernel=KERNELS[kernel])
    assert computed.tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]
    densities = log_densities(queries, support, 0.5, kernel=KERNELS[kernel])
    assert torch.isneginf(densities[:3]).all()
    assert torch.isfinite(densities[3])
