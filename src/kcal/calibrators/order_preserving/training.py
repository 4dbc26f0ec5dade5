"""Training of order-preserving maps on folds, with their cross-validated log-loss."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import softplus

from kcal.calibrators.order_preserving.maps import (
    GapMap,
    GridPlaces,
    MonotoneMap,
    grid_depths,
    integrate,
    inverse_softplus,
    new_gap_map,
)
from kcal.calibrators.quasi_newton import minimise
from kcal.calibrators.temperature_prior import fit_temperature
from kcal.progress import Advance

WIDTHS = {"diag": (10,), "oi": (2, 10, 50), "op": (2, 10, 50)}
"""Hidden widths that "auto" tries, by form."""
BATCH, LEARNING_RATE, DECAY = 256, 5e-3, 5e-4
MAX_ITERATIONS = 2000  # of L-BFGS, for the monotone map

OrderMap = GapMap | MonotoneMap
Parts = list[tuple[NDArray[np.intp], NDArray[np.intp]]]
"""The rows to train on and the rows held out, per fold."""


@dataclass(frozen=True)
class SortedRows:
    """Scores of a calibration set, each row in descending order."""

    scores: torch.Tensor = field(repr=False)  # (n, n_classes)
    order: torch.Tensor = field(repr=False)  # (n, n_classes), the class of each score
    own: torch.Tensor = field(repr=False)  # (n,), rank of the label
    weights: torch.Tensor = field(repr=False)  # (n,)

    def temperature(self, rows: NDArray[np.intp]) -> float:
        """Return the temperature of temperature scaling on some of the rows."""
        return fit_temperature(self.scores[rows], self.own[rows].numpy(), self.weights[rows].numpy())


@dataclass(frozen=True)
class OrderChoice:
    """A form and width, and its cross-validated log-loss."""

    form: str
    width: int
    log_loss: float


def split_folds(n_samples: int, folds: int, seed: int) -> Parts:
    """Return the rows to train on and the rows held out, for each fold; they do not depend on the labels."""
    parts = np.array_split(np.random.default_rng(seed).permutation(n_samples), min(folds, n_samples))
    return [(np.sort(np.concatenate([*parts[:fold], *parts[fold + 1 :]])), part) for fold, part in enumerate(parts)]


def train(
    data: SortedRows, form: str, width: int, *, folds: int, epochs: int, seed: int, advance: Advance
) -> tuple[OrderMap, OrderChoice]:
    """Return the mean of the maps trained on all folds but one, and the cross-validated log-loss."""
    parts = split_folds(len(data.own), folds, seed)
    if form == "diag":
        mean, of_folds = _train_monotone(data, width, parts, seed, advance)
    else:
        mean, of_folds = _train_gaps(data, form, width, parts, epochs, seed, advance)
    losses = torch.empty_like(data.weights)
    for of_fold, (_, held_out) in zip(of_folds, parts, strict=True):
        out = of_fold.output_logits(data.scores[held_out], data.order[held_out])
        losses[held_out] = _log_losses(out, data.own[held_out])
    return mean, OrderChoice(form, width, float(data.weights @ losses / data.weights.sum()))


def _train_gaps(
    data: SortedRows,
    form: str,
    width: int,
    parts: Parts,
    epochs: int,
    seed: int,
    advance: Advance,
) -> tuple[OrderMap, list[OrderMap]]:
    """Train all folds side by side by Adam; return the mean map and the map of each fold."""
    temperatures = torch.tensor([data.temperature(kept) for kept, _ in parts], dtype=torch.float64)
    initial = new_gap_map(data.scores, data.order, temperatures, width=width, sees_order=form == "op", seed=seed)
    current = initial.with_layers(layer.clone().requires_grad_() for layer in initial.layers)
    inputs, importance = current.inputs(data.scores, data.order), data.weights / data.weights.mean()
    optimiser = torch.optim.Adam(current.layers, lr=LEARNING_RATE, weight_decay=DECAY)
    size = min(len(kept) for kept, _ in parts)
    n_batches = -(-size // BATCH)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=epochs * n_batches)
    generator = np.random.default_rng([seed, 1])
    for _ in range(epochs):
        drawn = torch.from_numpy(np.stack([generator.permutation(kept)[:size] for kept, _ in parts]))
        for rows in drawn.chunk(n_batches, dim=1):  # (folds, rows)
            out = current.stretch(inputs[rows], data.scores[rows])
            loss = (importance[rows] * _log_losses(out, data.own[rows])).mean(dim=1).sum()
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            schedule.step()
        advance(f"{form} {width}")
    trained = initial.with_layers(layer.detach() for layer in current.layers)
    return trained, [trained.of_fold(fold) for fold in range(len(parts))]


def _train_monotone(
    data: SortedRows, width: int, parts: Parts, seed: int, advance: Advance
) -> tuple[OrderMap, list[OrderMap]]:
    """Train fold after fold by L-BFGS; return the mean map and the map of each fold."""
    depths = grid_depths(data.scores)
    densities = []
    for kept, _ in parts:
        densities.append(_fit_density(data, kept, depths, width, seed))
        advance(f"diag {width}")
    mean = torch.stack(densities).mean(dim=0)
    return MonotoneMap(depths, mean), [MonotoneMap(depths, density) for density in densities]


def _fit_density(data: SortedRows, kept: NDArray[np.intp], depths: torch.Tensor, width: int, seed: int) -> torch.Tensor:
    """Return the density, (cells + 1,), that minimises the log-loss: softplus of a network of log(1 + depth)."""
    scores, own, weights = data.scores[kept], data.own[kept].numpy(), data.weights[kept].numpy()
    places, shares = GridPlaces.of(scores, depths), weights / weights.sum()
    generator = np.random.default_rng([seed, width])
    first, bias = generator.normal(scale=3.0, size=(1, width)), generator.normal(size=width)
    second = generator.normal(scale=width**-0.5, size=(width, width))
    arrays = (first, bias, second, np.zeros(width), np.zeros((width, 1)), np.zeros(1))
    layers = [torch.from_numpy(array).requires_grad_() for array in arrays]
    inputs = torch.log1p(depths)[:, None]
    inputs = 2 * inputs / inputs[-1] - 1
    start = inverse_softplus(torch.tensor(1 / data.temperature(kept), dtype=torch.float64))
    own_at = np.arange(len(own)) * scores.shape[1] + own

    def density() -> torch.Tensor:
        hidden = torch.tanh(torch.tanh(inputs @ layers[0] + layers[1]) @ layers[2] + layers[3])
        return softplus((hidden @ layers[4] + layers[5])[:, 0] + start)

    def evaluate() -> float:
        values = density()
        integrals = integrate(values, depths)
        out = places.interpolate(integrals.detach(), values.detach()).numpy()
        out -= out[:, :1]  # the maximum of each row
        own_out = out.ravel()[own_at]
        odds = np.exp(out, out=out)
        totals = odds.sum(axis=1)
        slopes = odds * (shares / totals)[:, None]
        slopes.ravel()[own_at] -= shares
        in_integrals, in_density = places.pull_back(torch.from_numpy(slopes), len(depths))
        penalty = 0.5 * DECAY * sum((layer.square().sum() for layer in layers), torch.zeros(()))
        whole = integrals @ in_integrals + values @ in_density + penalty
        torch.autograd.backward(whole)
        return float(shares @ (np.log(totals) - own_out)) + float(penalty.detach())

    minimise(evaluate, layers, iterations=MAX_ITERATIONS, tolerance=1e-7, gradient_tolerance=1e-5)
    return density().detach()


def _log_losses(out: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Return the log-loss of each row of output logits (…, n_classes) with its label at ``own`` (…)."""
    return torch.logsumexp(out, dim=-1) - out.gather(-1, own[..., None])[..., 0]
