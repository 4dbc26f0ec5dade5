"""Densities with a bump around the origin, and the exact mean squared error of their kernel estimates.

A share w of the samples comes from the bump. The others are so far away that the kernel is exactly 0 there: only their
number matters, and m samples cost w·m points. With w small, the term −(E φ_b)²/m of the variance, which no rate has,
is small as well.

    E ĝ = E φ_b,   Var ĝ = (E φ_b² − (E φ_b)²)/m,   E φ_b² = (4πb²)^(−d/2) · E φ_{b/√2}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import lgamma, log, pi, sqrt

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.stats import chi2

from experiments.theory.estimates import Array, Labels


@dataclass(frozen=True)
class Bump(ABC):
    """A radial density of d dimensions with the share w of all samples."""

    dimension: int
    share: float = 1.0

    @property
    @abstractmethod
    def queries(self) -> Array:
        """Points of equal distance from the origin at which the density is estimated, (n_query, d)."""

    @abstractmethod
    def smoothed(self, bandwidth: float) -> float:
        """Return E φ_b at a query: the density convolved with the kernel; 0 gives the density."""

    @abstractmethod
    def points(self, n: int, generator: np.random.Generator) -> Array:
        """Draw n points of the bump, (n, d)."""

    @property
    def density(self) -> float:
        """The density at a query."""
        return self.smoothed(0.0)

    def draw(self, m: int, n_draws: int, generator: np.random.Generator) -> tuple[Array, Labels]:
        """Return the points of the bump in ``n_draws`` samples of size ``m``, and the draw of each."""
        counts = generator.binomial(m, self.share, n_draws) if self.share < 1 else np.full(n_draws, m)
        return self.points(int(counts.sum()), generator), np.repeat(np.arange(n_draws), counts)

    def bias(self, bandwidth: float) -> float:
        """Return E ĝ − g."""
        return self.smoothed(bandwidth) - self.density

    def variance(self, bandwidth: float, m: int) -> float:
        """Return Var ĝ."""
        square = float((4 * pi * bandwidth**2) ** (-self.dimension / 2)) * self.smoothed(bandwidth / sqrt(2))
        return (square - self.smoothed(bandwidth) ** 2) / m

    def mean_squared_error(self, bandwidth: float, m: int) -> float:
        """Return E (ĝ − g)²."""
        return self.bias(bandwidth) ** 2 + self.variance(bandwidth, m)

    def best_bandwidth(self, m: int) -> tuple[float, float]:
        """Return the bandwidth of the least mean squared error, and that error."""
        found = minimize_scalar(
            lambda exponent: log(self.mean_squared_error(float(np.exp(exponent)), m)),
            bounds=(log(1e-4), log(self.widest)),
            method="bounded",
            options={"xatol": 1e-9},
        )
        return float(np.exp(found.x)), float(np.exp(found.fun))

    @property
    def widest(self) -> float:
        """Bandwidth up to which the best one is searched."""
        return 1.5


@dataclass(frozen=True)
class GaussianBump(Bump):
    """A standard normal bump, estimated at distance ``radius`` from its centre."""

    radius: float = 0.0

    @classmethod
    def with_small_next_term(cls, dimension: int, share: float) -> GaussianBump:
        """Return the bump at a distance where the next term of the least error is 0.

        With bias² = A·b⁴·(1 + 2c₁b²) and variance = V·b^(−d)·(1 + c₂b²), c₁ = Δ²g/(4Δg) and c₂ = Δg/(4g), the least
        error changes by a factor 1 + b²·(2d·c₁ + 4c₂)/(d + 4): it is 1 where d·g·Δ²g + 2(Δg)² = 0.
        """
        square = dimension * (dimension + 4 - sqrt(2 * (dimension + 4))) / (dimension + 2)
        return cls(dimension, share, sqrt(square))

    @property
    def queries(self) -> Array:
        axes = np.eye(self.dimension)[:2]
        return self.radius * np.concatenate([axes, -axes]) if self.radius else np.zeros((1, self.dimension))

    def smoothed(self, bandwidth: float) -> float:
        variance = 1.0 + bandwidth**2
        return self.share * float(
            (2 * pi * variance) ** (-self.dimension / 2) * np.exp(-(self.radius**2) / 2 / variance)
        )

    def points(self, n: int, generator: np.random.Generator) -> Array:
        return generator.standard_normal((n, self.dimension))


@dataclass(frozen=True)
class QuadraticCap(Bump):
    """The density c·(1 − ‖z‖²) in the unit ball, estimated at its centre, where the bias is b²/2·Δg almost exactly."""

    @property
    def queries(self) -> Array:
        return np.zeros((1, self.dimension))

    @property
    def height(self) -> float:
        """The density at the centre: (d + 2)/2 over the volume of the unit ball, times the share."""
        log_ball = 0.5 * self.dimension * log(pi) - lgamma(0.5 * self.dimension + 1)
        return self.share * (self.dimension + 2) / 2 * float(np.exp(-log_ball))

    def smoothed(self, bandwidth: float) -> float:
        if bandwidth == 0:
            return self.height
        inside = chi2.cdf(bandwidth**-2, [self.dimension, self.dimension + 2])
        return self.height * float(inside[0] - self.dimension * bandwidth**2 * inside[1])

    def points(self, n: int, generator: np.random.Generator) -> Array:
        directions = generator.standard_normal((n, self.dimension))
        radii = np.sqrt(generator.beta(self.dimension / 2, 2, n))
        return np.asarray(directions * (radii / np.linalg.norm(directions, axis=1))[:, None])

    @property
    def widest(self) -> float:
        return 0.3
