"""Class densities on a torus that are Hölder continuous of order α and bounded away from 0.

    f_k(z) = 1 + (a/d)·Σ_j h(z_j − c_k),   h(t) = (2|t|)^α − 1/(1+α),   |t| ≤ ½ the distance on the circle

with a = s·(1 + α): every density is 1 − s or more, with a cusp of order α at c_k in every coordinate. It is a mixture:
with probability s one coordinate has the density (1+α)·(2|t|)^α, all others are uniform.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from experiments.theory.estimates import Array, Labels, kcal_posteriors, posteriors_on

CENTRES = np.array([0.25, 0.75])
PRIORS = np.array([0.6, 0.4])
REACH = 7.0
"""Bandwidths up to which points on the other side of the torus are copied: the kernel is 2e-11 there."""
FINE = 2**13
"""Points of the circle on which h is smoothed."""
N_BINS = 15
ONE_LEVEL = 1e-5
"""Predictions that differ by less count as one level set."""


@dataclass(frozen=True)
class Torus:
    """Two classes on the torus of d dimensions."""

    dimension: int
    order: float  # α
    share: float = 0.8  # s

    def rate(self, m: float) -> float:
        """Return log m / m."""
        return float(np.log(m) / m)

    def bandwidth(self, m: float, start: float) -> float:
        """Return start·(log m / m)^(1/(d+2α))."""
        return float(start * self.rate(m) ** (1 / (self.dimension + 2 * self.order)))

    @property
    def slope(self) -> float:
        """The exponent of the sup error, α/(d+2α)."""
        return self.order / (self.dimension + 2 * self.order)

    def draw(self, n: int, generator: np.random.Generator) -> tuple[Array, Labels]:
        """Return n points in [0, 1)^d and their labels."""
        labels = generator.choice(2, n, p=PRIORS)
        points = generator.random((n, self.dimension))
        rows = np.flatnonzero(generator.random(n) < self.share)
        coordinates = generator.integers(self.dimension, size=len(rows))
        distances = 0.5 * generator.random(len(rows)) ** (1 / (1 + self.order))
        signs = generator.choice([-1.0, 1.0], len(rows))
        points[rows, coordinates] = (CENTRES[labels[rows]] + signs * distances) % 1.0
        return points, labels

    def profile(self, positions: Array, bandwidth: float = 0.0) -> Array:
        """Return h at distances from a centre, smoothed by a normal kernel on the circle."""
        if bandwidth == 0:
            distances = abs((positions + 0.5) % 1.0 - 0.5)
            return np.asarray((2 * distances) ** self.order - 1 / (1 + self.order))
        grid = np.arange(FINE) / FINE
        damping = np.exp(-2 * (np.pi * bandwidth * np.arange(FINE // 2 + 1)) ** 2)
        smooth = np.fft.irfft(np.fft.rfft(self.profile(grid)) * damping, FINE)
        return np.asarray(np.interp(positions % 1.0, np.append(grid, 1.0), np.append(smooth, smooth[0])))

    def joint(self, queries: Array, bandwidth: float = 0.0) -> Array:
        """Return π_k·f_k, (n_query, 2), or its expected kernel estimate."""
        height = self.share * (1 + self.order)
        parts = [1 + height * self.profile(queries - centre, bandwidth).mean(axis=1) for centre in CENTRES]
        return np.asarray(PRIORS * np.stack(parts, axis=1))

    def probs(self, queries: Array, bandwidth: float = 0.0) -> Array:
        """Return P(Y = k | z), (n_query, 2), or the same of the smoothed densities."""
        joint = self.joint(queries, bandwidth)
        return np.asarray(joint / joint.sum(axis=1, keepdims=True))

    def grid(self, bandwidth: float, least: int) -> Array:
        """Return a regular grid that contains all cusps, with two points per bandwidth or ``least`` in a row."""
        n = 4 * int(np.ceil(max(2 / bandwidth, least) / 4))
        axis = np.arange(n) / n
        return np.stack(np.meshgrid(*[axis] * self.dimension, indexing="ij"), axis=-1).reshape(-1, self.dimension)

    def estimate(
        self, points: Array, labels: Labels, queries: Array, bandwidth: float, *, by_kcal: bool = False
    ) -> Array:
        """Return p̂ on the torus, (n_query, 2): points near an edge are copied beyond the opposite one."""
        reach = REACH * bandwidth
        shifts = np.arange(-np.ceil(reach), np.ceil(reach) + 1)
        copies, copied_labels = [], []
        for shift in product(shifts, repeat=self.dimension):
            moved = points + np.array(shift)
            near = ((moved > -reach) & (moved < 1 + reach)).all(axis=1)
            copies.append(moved[near])
            copied_labels.append(labels[near])
        support, codes = np.concatenate(copies), np.concatenate(copied_labels)
        if by_kcal:
            return kcal_posteriors(support, codes, queries, bandwidth)
        return posteriors_on(support, codes, queries, bandwidth, n_classes=2)


@dataclass(frozen=True)
class Errors:
    """Errors of estimated probabilities on a grid, weighted by the density."""

    sup: float
    """Largest |p̂ − p| of a point."""
    worst_bin: float
    """Largest |E[p − p̂]| of a bin; bins of equal probability in the order of p̂."""
    worst_wide_bin: float
    """The same of bins of equal width, as of the usual calibration error."""


def errors_of(estimated: Array, true: Array, density: Array) -> Errors:
    """Return the errors of the first class's probabilities, (n_query,); those of the second are the same."""
    weights = density / density.sum()
    order = np.argsort(estimated, kind="stable")
    positions = np.empty(len(order))
    positions[order] = np.cumsum(weights[order]) - weights[order] / 2
    if np.ptp(estimated) < ONE_LEVEL:
        positions[:] = 0.0
    bins = [_worst_bin(coordinate, true - estimated, weights) for coordinate in (positions, estimated)]
    return Errors(float(abs(true - estimated).max()), *bins)


def _worst_bin(coordinate: Array, gaps: Array, weights: Array) -> float:
    """Return the largest absolute mean gap of bins of a coordinate in [0, 1]."""
    places = np.clip((coordinate * N_BINS).astype(int), 0, N_BINS - 1)
    mass = np.bincount(places, weights, N_BINS)
    sums = np.bincount(places, weights * gaps, N_BINS)
    return float(abs(sums[mass > 0] / mass[mass > 0]).max())


def level_set_errors(estimated: Array, true: Array, density: Array, levels: Array) -> tuple[Array, Array]:
    """Return |E[p | p̂ = q] − q| and the largest |p − q| of a point with p̂ = q, for levels q, on a grid of the circle.

    Between neighbours of the grid p̂ is linear. A point of the level set has the weight density/|slope of p̂|.
    """
    following = np.roll(estimated, -1)
    above = estimated[None, :] > levels[:, None]  # (n_levels, n_grid)
    crossed = above != np.roll(above, -1, axis=1)
    rise = np.where(following == estimated, 1.0, following - estimated)
    share = (levels[:, None] - estimated) / rise
    values = true + share * (np.roll(true, -1) - true)
    weights = np.where(crossed, density / abs(rise), 0.0)
    gaps = values - levels[:, None]
    averages = abs((weights * gaps).sum(axis=1) / weights.sum(axis=1))
    return averages, np.where(crossed, abs(gaps), 0.0).max(axis=1)
