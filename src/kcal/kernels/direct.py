"""Class sums of a few queries by one product, as a torch module without branches that depend on numbers.

    P = z·q − ½‖z‖²,   t = −2·(P − ½‖q‖²) / (d·b²),   S_k(q; b) = Σ_{i: y_i = k} w_i·φ(t_i)

The product is computed in float64 and held for all points and queries at once, and the exact largest exponent of each
query is its shift; exponentials and sums are in the precision of the support. ``PreparedSupport`` computes the same
sums in blocks, in the precision that each query needs. Where float64 does not resolve the bandwidth, the nearest points
decide, as there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from kcal.kernels import numerics
from kcal.kernels.mother import KERNELS, MotherKernel
from kcal.kernels.numerics import in_double
from kcal.kernels.sums import ClassSums
from kcal.kernels.support import SortedSupport


class DirectSums(nn.Module):
    """Class sums, (n_query, d) to (n_bandwidths, n_classes, n_query); parameters as of ``PreparedSupport``.

    The points are held once, in float64; those of weight 0 are left out. A matrix of the weights of points and classes
    makes the sums a product, unless it has more than ``PREPARED_NUMBERS`` entries.
    """

    points: torch.Tensor  # (n_support, d), centred
    centre: torch.Tensor  # (d,)
    half_squares: torch.Tensor  # (n_support,), −½‖z‖²
    codes: torch.Tensor  # (n_support,)
    weights: torch.Tensor  # (n_support, n_classes), 0 outside the class of the point; (n_support,) if that is too large
    rates: torch.Tensor  # (n_bandwidths,), 1/(d·b²)
    log_volumes: torch.Tensor  # (n_bandwidths,), log of the weight of all points times the integral of the kernel

    def __init__(
        self, support: SortedSupport, bandwidths: Sequence[float], kernel: MotherKernel = KERNELS["rbf"]
    ) -> None:
        super().__init__()
        self.kernel, self.dimension, self.n_classes = kernel, support.dimension, support.n_classes
        self.radius = support.radius
        counted, centre = support.counted.to(support.points.device), in_double(support.centre).clone()
        points = in_double(support.points[counted]) - centre
        codes = support.codes[counted].to(points.device)
        weights = torch.ones_like(points[:, 0])
        if support.log_weights is not None:
            weights = in_double(support.log_weights[counted]).exp()
        if len(points) * self.n_classes <= numerics.PREPARED_NUMBERS:
            weights = nn.functional.one_hot(codes, self.n_classes) * weights[:, None]
        lengths = [self.dimension * bandwidth**2 for bandwidth in bandwidths]
        volumes = [support.log_total_weight + kernel.log_volume(b, self.dimension) for b in bandwidths]
        buffers = {
            "points": points.T.contiguous().T,  # stored by feature: the product with one query is twice as fast
            "centre": centre,
            "half_squares": -0.5 * points.square().sum(dim=1),
            "codes": codes,
            "weights": weights.to(support.points.dtype),
            "rates": 1.0 / points.new_tensor(lengths),
            "log_volumes": points.new_tensor(volumes),
        }
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)

    def forward(self, queries: torch.Tensor) -> ClassSums:
        """Return the class sums of queries in two parts, in the precision of the support."""
        centred = queries.double() - self.centre
        products = torch.addmm(self.half_squares, centred, self.points.T)  # (n_query, n_support)
        largest = products.amax(dim=1, keepdim=True)
        lengths = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
        below, nearest = products - largest, (largest - 0.5 * lengths.square()).clamp_max(0.0)
        finest, rates = finest_rates(lengths, self.radius), self.rates[:, None, None]
        exponents, offsets = shifted_exponents(
            self.kernel, self.dimension, below, nearest, finest, rates, dtype=self.weights.dtype
        )
        # exponentials that are not normal numbers are many times slower
        lowest = numerics.lowest_exponent(self.weights.dtype)
        values = torch.threshold(exponents.to(self.weights), lowest, -torch.inf).exp_()
        return ClassSums(self._by_class(values).transpose(1, 2), offsets[..., 0].to(self.weights))

    def log_densities(self, sums: ClassSums, index: int) -> torch.Tensor:
        """Return the log density of the support at queries, (n_query,), for one of the bandwidths, from their sums."""
        chosen = ClassSums(sums.sums[index : index + 1], sums.offsets[index : index + 1])
        return chosen.log_densities(self.log_volumes[index].to(self.weights))[0]

    def _by_class(self, values: torch.Tensor) -> torch.Tensor:
        """Return Σ w_i·φ of each class, (n_bandwidths, n_query, n_classes), from kernel values."""
        if self.weights.ndim == 2:
            return values @ self.weights
        sums = values.new_zeros(*values.shape[:2], self.n_classes)
        return sums.scatter_add(2, self.codes.expand(values.shape), values * self.weights)


def finest_rates(lengths: torch.Tensor, radius: float) -> torch.Tensor:
    """Return the largest rates 1/(d·b²) at which rounding in float64 moves no exponent by more than the resolution.

    ``lengths`` are the distances of queries from the centre of the support, ``radius`` is that of its points.
    """
    radius = max(radius, torch.finfo(torch.float64).tiny ** 0.5)
    return numerics.RESOLUTION / torch.finfo(torch.float64).eps / radius / (lengths + radius)


def shifted_exponents(
    kernel: MotherKernel,
    dimension: int,
    below: torch.Tensor,
    nearest: torch.Tensor,
    finest: torch.Tensor,
    rates: torch.Tensor,
    *,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log φ of points and queries less that of the nearest points, and the latter.

    ``below`` is −½‖z − q‖² less that of the nearest point, ``nearest``; both and ``finest`` are broadcast. ``rates``
    are 1/(d·b²), (n_bandwidths, 1, 1). Where a profile reaches no point, or a rate is beyond ``finest``, only the
    nearest points count. ``dtype`` is the precision of the exponents of a log-linear kernel.
    """
    if kernel.log_linear:
        return below.to(dtype) * torch.minimum(rates, finest).to(dtype), nearest * rates
    profile = kernel.log_profile(-2.0 * rates * (below + nearest), dimension)
    offsets = kernel.log_profile(-2.0 * rates * nearest, dimension)
    is_reached = torch.isfinite(offsets)
    shifted = profile - torch.where(is_reached, offsets, 0.0)
    return torch.where(is_reached & (rates <= finest), shifted, below * finest), offsets
