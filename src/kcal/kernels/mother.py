"""Mother kernels: spherical, with a finite second moment; one small table.

With t = ‖u‖² / (d·b²), the squared distance averaged over the d dimensions in units of the bandwidth b:

=============  ===========================================  ==========================
name           φ(t)                                         scale
=============  ===========================================  ==========================
rbf            exp(−t/2)
laplace        exp(−r)                                      r = √((d+1)·t)
matern32       (1 + r)·exp(−r)                              r = √((d+3)·t)
matern52       (1 + r + r²/3)·exp(−r)                       r = √((d+5)·t)
epanechnikov   max(0, 1 − s)                                s = t / (d+4)
biweight       max(0, 1 − s)²                               s = t / (d+6)
triweight      max(0, 1 − s)³                               s = t / (d+8)
=============  ===========================================  ==========================

The scales give every kernel the variance d·b² in each direction, so that a bandwidth means the same width
for every kernel, and one search interval serves them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import lgamma, log, pi

import torch

from kcal.errors import InvalidInputError

FARTHEST = 1e15
"""Stands for infinity where inf − inf would give NaN; exp(−1e15) is 0 in every precision."""


@dataclass(frozen=True)
class MotherKernel:
    """A spherical kernel: log profile, log integral over ℝᵈ, and what the engine may rely on."""

    name: str
    log_profile: Callable[[torch.Tensor, int], torch.Tensor]
    """Maps t (any shape) and d to log φ, which never rises; −inf beyond the reach of a compact kernel."""
    log_unit_volume: Callable[[int], float]
    """Maps d to log ∫ φ(‖v‖²) dv over ℝᵈ, v being u in units of b·√d."""
    is_compact: bool = False
    """φ is 0 beyond a finite distance."""
    log_linear: bool = False
    """log φ(t) = −t/2.

    Then a matrix product gives exponents directly, what all points share with a query can be taken out of it, powers of
    the kernel are the kernel at smaller bandwidths, and single precision is enough. Other profiles need float64: roots
    magnify the rounding of small distances, and so does the rim of a compact kernel.
    """

    def __reduce__(self) -> tuple[Callable[[str], MotherKernel], tuple[str]]:
        return get_kernel, (self.name,)  # functions of a table cannot be pickled

    def log_volume(self, bandwidth: float, dimension: int) -> float:
        """Return log ∫ φ(‖u‖²/(d·b²)) du, which turns a mean of kernel values into a density."""
        return dimension * (log(bandwidth) + 0.5 * log(dimension)) + self.log_unit_volume(dimension)


def _exponential(name: str, shift: int, quadratic: float | None, moment: Callable[[int], float]) -> MotherKernel:
    """Return exp(−r) if ``quadratic`` is None, otherwise (1 + r + quadratic·r²)·exp(−r), with r = √((d + shift)·t)."""

    def log_profile(t: torch.Tensor, dimension: int) -> torch.Tensor:
        r = torch.sqrt((dimension + shift) * t).clamp_max(FARTHEST)
        if quadratic is None:
            return -r
        return torch.log1p(r + quadratic * r * r) - r

    def log_unit_volume(dimension: int) -> float:
        # ∫ r^(d−1)·exp(−c·r) dr = Γ(d)/c^d; the polynomial in front multiplies it by `moment(d)`.
        radial = lgamma(dimension) - 0.5 * dimension * log(dimension + shift) + log(moment(dimension))
        return _log_sphere_area(dimension) + radial

    return MotherKernel(name, log_profile, log_unit_volume)


def _compact(name: str, power: int) -> MotherKernel:
    """Return max(0, 1 − s)^power, with s = t/(d + 2·power + 2)."""

    def log_profile(t: torch.Tensor, dimension: int) -> torch.Tensor:
        return power * torch.log((1.0 - t / (dimension + 2 * power + 2)).clamp_min(0.0))

    def log_unit_volume(dimension: int) -> float:
        # ∫₀ᴿ r^(d−1)·(1 − r²/R²)^p dr = R^d·½·Beta(d/2, p+1)
        half = 0.5 * dimension
        log_beta = lgamma(half) + lgamma(power + 1) - lgamma(half + power + 1)
        radial = half * log(dimension + 2 * power + 2) - log(2.0) + log_beta
        return _log_sphere_area(dimension) + radial

    return MotherKernel(name, log_profile, log_unit_volume, is_compact=True)


def _log_sphere_area(dimension: int) -> float:
    return log(2.0) + 0.5 * dimension * log(pi) - lgamma(0.5 * dimension)


KERNELS: dict[str, MotherKernel] = {
    kernel.name: kernel
    for kernel in (
        MotherKernel("rbf", lambda t, d: -0.5 * t, lambda d: 0.5 * d * log(2.0 * pi), log_linear=True),
        _exponential("laplace", 1, None, lambda d: 1.0),
        _exponential("matern32", 3, 0.0, lambda d: 1.0 + d),
        _exponential("matern52", 5, 1 / 3, lambda d: 1.0 + d + d * (d + 1) / 3),
        _compact("epanechnikov", 1),
        _compact("biweight", 2),
        _compact("triweight", 3),
    )
}


def get_kernel(kernel: str | MotherKernel) -> MotherKernel:
    """Return a kernel by name, or the kernel itself."""
    if isinstance(kernel, MotherKernel):
        return kernel
    if not isinstance(kernel, str) or kernel not in KERNELS:
        raise InvalidInputError("kernel", f"must be one of {', '.join(KERNELS)}", got=repr(kernel))
    return KERNELS[kernel]
