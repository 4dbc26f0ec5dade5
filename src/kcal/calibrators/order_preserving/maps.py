"""Maps of a row of scores that keep its order: gaps stretched by a network, or one rising function of each score.

Scores are log probabilities in descending order, z_1 ≥ … ≥ z_K, so that ties and near-ties stay where they are:

gaps:      out_K = 0,   out_j = out_{j+1} + (z_j − z_{j+1}) softplus(m_j(x) + c)
monotone:  out_j = −∫_{z_j}^0 g(t) dt,   g > 0
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad, softplus

CELLS = 256
"""Of the grid on which the monotone map's density is held: linear in every cell, so its integral rises everywhere."""
NUMBERS_AT_ONCE = 2**21
"""Bounds the memory of a prediction."""


@dataclass(frozen=True)
class GapMap:
    """Stretches every gap of a sorted row by a positive factor that a network of two hidden layers chooses.

    Tensors have the fold first; the output logits are the mean over folds.
    """

    sees_order: bool  # OP: the network sees the row as the classes stand; else sorted (OI)
    centre: torch.Tensor = field(repr=False)  # (n_classes,)
    scale: torch.Tensor = field(repr=False)  # (n_classes,)
    start: torch.Tensor = field(repr=False)  # (folds, 1, 1), c: softplus(c) = 1 / T
    layers: tuple[torch.Tensor, ...] = field(repr=False)  # weights and biases, in turn

    def inputs(self, scores: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Return what the network sees, (n, n_classes)."""
        seen = torch.empty_like(scores).scatter_(1, order, scores) if self.sees_order else scores
        return (seen - self.centre) / self.scale

    def stretch(self, inputs: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the output logits, (folds, n, n_classes), of sorted scores (n, n_classes) or (folds, n, n_classes)."""
        hidden = inputs.expand(len(self.start), *inputs.shape[-2:])
        for depth in range(0, len(self.layers), 2):
            hidden = torch.baddbmm(self.layers[depth + 1], hidden, self.layers[depth])
            if depth + 2 < len(self.layers):
                hidden = torch.tanh(hidden)
        rises = (scores[..., :-1] - scores[..., 1:]) * softplus(hidden + self.start)  # (folds, n, n_classes - 1)
        return pad(rises.flip(-1).cumsum(dim=-1), (1, 0)).flip(-1)

    def __call__(self, scores: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Return the output logits of sorted scores, (n, n_classes)."""
        inputs = self.inputs(scores, order)
        step = max(1, NUMBERS_AT_ONCE // (len(self.start) * scores.shape[1]))
        blocks = (slice(first, first + step) for first in range(0, len(scores), step))
        return torch.cat([self.stretch(inputs[rows], scores[rows]).mean(dim=0) for rows in blocks])


def new_gap_map(
    scores: torch.Tensor, order: torch.Tensor, temperatures: torch.Tensor, *, width: int, sees_order: bool, seed: int
) -> GapMap:
    """Return a map that divides by each fold's temperature, ready to learn more."""
    n_classes, folds = scores.shape[1], len(temperatures)
    seen = torch.empty_like(scores).scatter_(1, order, scores) if sees_order else scores
    scale = seen.std(dim=0, correction=0)
    generator = np.random.default_rng([seed, width])
    sizes = (n_classes, width, width, n_classes - 1)
    layers = []
    for depth, (before, after) in enumerate(pairwise(sizes)):
        weights = generator.normal(scale=before**-0.5, size=(folds, before, after)) * (depth < 2)  # the last: none yet
        layers += [torch.from_numpy(weights), torch.zeros(folds, 1, after, dtype=torch.float64)]
    start = inverse_softplus(1 / temperatures)[:, None, None]
    return GapMap(sees_order, seen.mean(dim=0), torch.where(scale > 1e-9, scale, 1.0), start, tuple(layers))


@dataclass(frozen=True)
class MonotoneMap:
    """One rising function of a score, for all classes: minus the integral, from a score to 0, of a density on a grid.

    Between the grid's points the density is linear; below its last one, constant. The trapezoid rule is therefore its
    exact integral, and the map rises everywhere; the published form evaluates the network at Clenshaw-Curtis points
    of every score instead.
    """

    depths: torch.Tensor = field(repr=False)  # (cells + 1,), −t of the grid's points: 0 and rising
    density: torch.Tensor = field(repr=False)  # (cells + 1,)

    def __call__(self, scores: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Return the output logits of sorted scores, (n, n_classes)."""
        places = GridPlaces.of(scores.numpy(), self.depths.numpy())
        heights = integrate(self.density, self.depths).numpy()
        return torch.from_numpy(places.heights(heights, self.density.numpy())).reshape(scores.shape)


@dataclass(frozen=True)
class GridPlaces:
    """Where scores lie on the grid: out = heights[cell] − near·density[cell] − far·density[cell + 1]."""

    cell: NDArray[np.intp]
    near: NDArray[np.float64]
    far: NDArray[np.float64]

    @classmethod
    def of(cls, scores: NDArray[np.float64], depths: NDArray[np.float64]) -> GridPlaces:
        """Return the places of scores, all in one row."""
        depth = np.maximum(-scores.ravel(), 0.0)
        cell = np.searchsorted(depths, depth, side="right") - 1
        into = depth - depths[cell]
        widths = np.append(np.diff(depths), np.inf)  # below the last point the density is constant
        far = into * into / (2 * widths[cell])
        return cls(cell, into - far, far)

    def heights(self, heights: NDArray[np.float64], density: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the map at the places."""
        after = np.append(density[1:], 0.0)
        found: NDArray[np.float64] = heights[self.cell] - self.near * density[self.cell] - self.far * after[self.cell]
        return found

    def pull_back(self, slopes: NDArray[np.float64], points: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the slopes in heights and in density, each (points,), that ``slopes`` at the places amount to."""
        in_heights, near, after = (
            np.bincount(self.cell, weights, points).astype(np.float64)
            for weights in (slopes, slopes * self.near, slopes * self.far)
        )
        in_density = -near
        in_density[1:] -= after[:-1]
        return in_heights, in_density


def grid_depths(scores: torch.Tensor) -> torch.Tensor:
    """Return the grid's points: from 0 to the lowest score, evenly in log(1 + depth), so finest near certainty."""
    deepest = max(float(-scores.min()), 1e-3)
    depths = np.expm1(np.linspace(0.0, np.log1p(deepest), CELLS + 1))
    depths[0] = 0.0
    return torch.from_numpy(depths)


def integrate(density: torch.Tensor, depths: torch.Tensor) -> torch.Tensor:
    """Return minus the integral from every point of the grid up to 0, (cells + 1,)."""
    areas = 0.5 * (density[1:] + density[:-1]) * depths.diff()
    return -pad(areas.cumsum(dim=0), (1, 0))


def inverse_softplus(values: torch.Tensor) -> torch.Tensor:
    """Return x with softplus(x) = value."""
    return values + torch.log(-torch.expm1(-values))


def in_exact_order(values: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return non-negative ``values`` of which, in a row, one is less than, equal to or greater than another as its key.

    Rounding makes ties of near-ties, and zeros of what is too small; such values are moved by as many of the smallest
    steps of their precision as there are keys in between.
    """
    whole = torch.int64 if values.dtype == torch.float64 else torch.int32
    sorted_keys, order = torch.sort(keys, dim=1, stable=True)
    new = pad(sorted_keys[:, 1:] != sorted_keys[:, :-1], (1, 0), value=False)
    group = new.cumsum(dim=1)  # (n, n_classes)
    places = torch.arange(keys.shape[1], device=keys.device).expand_as(group)
    first = torch.where(new, places, 0).cummax(dim=1).values  # where the key was first seen
    # the bits of a non-negative number, read as a whole number, count the smallest steps from 0
    steps = (values.gather(1, order) + 0.0).view(whole).gather(1, first).to(torch.int64)
    raised = (steps - group).cummax(dim=1).values + group
    return torch.empty_like(values).scatter_(1, order, raised.to(whole).view(values.dtype))
