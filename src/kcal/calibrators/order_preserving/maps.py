"""Maps of a row of scores that keep its order: gaps scaled by a network, or one increasing function of each score.

Scores are log probabilities in descending order, z_1 ≥ … ≥ z_K:

gaps:      out_K = 0,   out_j = out_{j+1} + (z_j − z_{j+1}) softplus(m_j(x) + c)
monotone:  out_j = −∫_{z_j}^0 g(t) dt,   g > 0
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import torch
from torch.nn.functional import pad

from kcal.calibrators.class_scores import unsort_classes
from kcal.calibrators.model_state import StoredModel, tensor
from kcal.calibrators.piecewise import places

CELLS = 256
"""Cells of the grid of the monotone map's density, which is linear in every cell."""
LAYERS = ("weights_1", "bias_1", "weights_2", "bias_2", "weights_3", "bias_3")


@dataclass(frozen=True)
class GapMap(StoredModel):
    """Multiplies every gap of a sorted row by a positive factor, given by a network of two hidden layers.

    Tensors have the fold first; the output logits are the mean over folds.
    """

    sees_order: bool  # True: the input is the row in the order of the classes; False: sorted
    centre: torch.Tensor = tensor("classes")
    scale: torch.Tensor = tensor("classes")
    start: torch.Tensor = tensor("folds", 1, 1)  # c: softplus(c) = 1 / T
    weights_1: torch.Tensor = tensor("folds", "classes", "width")
    bias_1: torch.Tensor = tensor("folds", 1, "width")
    weights_2: torch.Tensor = tensor("folds", "width", "width")
    bias_2: torch.Tensor = tensor("folds", 1, "width")
    weights_3: torch.Tensor = tensor("folds", "width", "classes - 1")
    bias_3: torch.Tensor = tensor("folds", 1, "classes - 1")

    @property
    def n_maps(self) -> int:
        """Number of maps, one per fold."""
        return len(self.start)

    @property
    def layers(self) -> tuple[torch.Tensor, ...]:
        """Weights and biases, in turn."""
        return tuple(getattr(self, name) for name in LAYERS)

    def with_layers(self, layers: Iterable[torch.Tensor]) -> GapMap:
        """Return the map with other weights and biases."""
        return GapMap(self.sees_order, self.centre, self.scale, self.start, *layers)

    def of_fold(self, fold: int) -> GapMap:
        """Return the map of one fold."""
        return replace(self, start=self.start[[fold]]).with_layers(layer[[fold]] for layer in self.layers)

    def inputs(self, scores: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Return the inputs of the network, (n, n_classes)."""
        rows = unsort_classes(scores, order) if self.sees_order else scores
        return (rows - self.centre) / self.scale

    def stretch(self, inputs: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the output logits, (folds, n, n_classes), of sorted scores (n, n_classes) or (folds, n, n_classes)."""
        hidden = inputs.expand(len(self.start), *inputs.shape[-2:])
        hidden = torch.tanh(torch.baddbmm(self.bias_1, hidden, self.weights_1))
        hidden = torch.tanh(torch.baddbmm(self.bias_2, hidden, self.weights_2))
        outputs = torch.baddbmm(self.bias_3, hidden, self.weights_3)
        factors = torch.logaddexp(outputs + self.start, torch.zeros_like(outputs))  # softplus
        rises = (scores[..., :-1] - scores[..., 1:]) * factors  # (folds, n, n_classes - 1)
        return pad(rises.flip(-1).cumsum(dim=-1), (1, 0)).flip(-1)

    def output_logits(self, scores: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Return the output logits of sorted scores, (n, n_classes)."""
        return self.stretch(self.inputs(scores, order), scores).mean(dim=0)


def new_gap_map(
    scores: torch.Tensor, order: torch.Tensor, temperatures: torch.Tensor, *, width: int, sees_order: bool, seed: int
) -> GapMap:
    """Return the initial map, which divides by the temperature of each fold."""
    n_classes, folds = scores.shape[1], len(temperatures)
    rows = unsort_classes(scores, order) if sees_order else scores
    scale = rows.std(dim=0, correction=0)
    generator = np.random.default_rng([seed, width])
    hidden_bias = torch.zeros(folds, 1, width, dtype=torch.float64)
    return GapMap(
        sees_order,
        centre=rows.mean(dim=0),
        scale=torch.where(scale > 1e-9, scale, 1.0),
        start=inverse_softplus(1 / temperatures)[:, None, None],
        weights_1=torch.from_numpy(generator.normal(scale=n_classes**-0.5, size=(folds, n_classes, width))),
        bias_1=hidden_bias,
        weights_2=torch.from_numpy(generator.normal(scale=width**-0.5, size=(folds, width, width))),
        bias_2=hidden_bias.clone(),
        weights_3=torch.zeros(folds, width, n_classes - 1, dtype=torch.float64),
        bias_3=torch.zeros(folds, 1, n_classes - 1, dtype=torch.float64),
    )


@dataclass(frozen=True)
class MonotoneMap(StoredModel):
    """One increasing function of a score, for all classes: −∫ of a density on a grid, from the score to 0.

    The density is linear between the points of the grid and constant below the last, so that the trapezoid rule is its
    exact integral and the map increases everywhere.
    """

    depths: torch.Tensor = tensor("points")  # −t of the points of the grid, ascending from 0
    density: torch.Tensor = tensor("points")

    @property
    def n_maps(self) -> int:
        """Number of maps: one, the mean over the folds."""
        return 1

    def output_logits(self, scores: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Return the output logits of sorted scores, (n, n_classes)."""
        return GridPlaces.of(scores, self.depths).interpolate(integrate(self.density, self.depths), self.density)


@dataclass(frozen=True)
class GridPlaces:
    """Places of scores on the grid: out = integrals[cell] − near·density[cell] − far·density[cell + 1]."""

    cell: torch.Tensor  # (n, n_classes), as the others
    near: torch.Tensor
    far: torch.Tensor

    @classmethod
    def of(cls, scores: torch.Tensor, depths: torch.Tensor) -> GridPlaces:
        """Return the places of scores, (n, n_classes)."""
        depth = (-scores).clamp_min(0.0)
        cell = places((depths,), depth, or_equal=True) - 1
        into = depth - depths[cell]
        widths = pad(depths.diff(), (0, 1), value=inf)  # below the last point the density is constant
        far = into * into / (2 * widths[cell])
        return cls(cell, into - far, far)

    def interpolate(self, integrals: torch.Tensor, density: torch.Tensor) -> torch.Tensor:
        """Return the map at the places, from its values and slopes at the points of the grid."""
        after = pad(density[1:], (0, 1))
        return integrals[self.cell] - self.near * density[self.cell] - self.far * after[self.cell]

    def pull_back(self, slopes: torch.Tensor, points: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the slopes in integrals and in density, each (points,), from those at the places (chain rule)."""
        in_integrals, near, after = (
            torch.bincount(self.cell.ravel(), weights.ravel(), points)
            for weights in (slopes, slopes * self.near, slopes * self.far)
        )
        in_density = -near
        in_density[1:] -= after[:-1]
        return in_integrals, in_density


def grid_depths(scores: torch.Tensor) -> torch.Tensor:
    """Return the points of the grid, from 0 to the lowest score, evenly spaced in log(1 + depth)."""
    deepest = max(float(-scores.min()), 1e-3)
    depths = np.expm1(np.linspace(0.0, np.log1p(deepest), CELLS + 1))
    depths[0] = 0.0
    return torch.from_numpy(depths)


def integrate(density: torch.Tensor, depths: torch.Tensor) -> torch.Tensor:
    """Return minus the integral from every point of the grid to 0, (cells + 1,)."""
    areas = 0.5 * (density[1:] + density[:-1]) * depths.diff()
    return -pad(areas.cumsum(dim=0), (1, 0))


def inverse_softplus(values: torch.Tensor) -> torch.Tensor:
    """Return x with softplus(x) = value."""
    return values + torch.log(-torch.expm1(-values))


def in_exact_order(values: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return non-negative ``values`` (n, n_classes), changed so that each row is ordered exactly as its ``keys``.

    Rounding makes ties of near-ties, and zeros of tiny values; such values are moved by as many of the smallest steps
    of their precision as there are keys in between.
    """
    whole = torch.int64 if values.dtype == torch.float64 else torch.int32
    sorted_keys, order = torch.sort(keys, dim=1, stable=True)
    new = pad(sorted_keys[:, 1:] != sorted_keys[:, :-1], (1, 0), value=False)
    group = new.cumsum(dim=1)  # (n, n_classes)
    places = torch.arange(keys.shape[1], device=keys.device).expand_as(group)
    first = torch.where(new, places, 0).cummax(dim=1).values  # first place of the key
    # the bits of a non-negative number, read as a whole number, count its smallest steps from 0
    steps = (values.gather(1, order) + 0.0).view(whole).gather(1, first).to(torch.int64)
    raised = (steps - group).cummax(dim=1).values + group
    return torch.empty_like(values).scatter_(1, order, raised.to(whole).view(values.dtype))
