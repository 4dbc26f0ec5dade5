"""The published training of Dirichlet calibration: Adam from the identity with early stopping.

Batches of 128 at a learning rate of 1e-3 until 15 epochs bring no lower training loss, then again at 1e-4. The models
of all penalties see the same batches and are trained side by side; each stops by itself, as if trained alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Self

import numpy as np
import torch

from kcal.calibrators.dirichlet.solver import FoldProblem, FoldSolution, Penalty, identity
from kcal.progress import Advance

BATCH, EPOCHS, PATIENCE = 128, 500, 15
LEARNING_RATES = (1e-3, 1e-4)
DECAYS = (0.9, 0.999)
KERAS_EPSILON = 1e-7  # the published code's; torch's own is smaller


def train_folds(
    problem: FoldProblem,
    penalties: Sequence[Penalty],
    *,
    seed: int,
    advance: Advance = lambda _: None,
) -> Iterator[FoldSolution]:
    """Yield the models of the published training for each penalty; they need not be minimisers.

    ``advance`` is called when a model stops at a learning rate: ``n_stops(problem, penalties)`` times.
    """
    models = []
    for fold, shares in enumerate(problem.shares):
        kept = shares.nonzero()[:, 0]
        rows = FoldProblem(problem.features[kept], problem.codes[kept], shares[None, kept] * len(kept))
        models.append(_train(rows, penalties, (seed, fold), advance))
    for coefficients in torch.stack(models, dim=1):
        yield _solution(problem, coefficients)


def n_stops(problem: FoldProblem, penalties: Sequence[Penalty]) -> int:
    """Return the number of models times that of the learning rates."""
    return len(problem.shares) * len(penalties) * len(LEARNING_RATES)


def _solution(problem: FoldProblem, coefficients: torch.Tensor) -> FoldSolution:
    own = torch.cat([problem.own(problem.log_probs(model[None])) for model in coefficients])
    return FoldSolution(coefficients, own, -(problem.shares * own).sum(dim=1), converged=True)


def _train(rows: FoldProblem, penalties: Sequence[Penalty], seed: tuple[int, int], advance: Advance) -> torch.Tensor:
    """Return the coefficients, (n_penalties, n_classes, n_classes + 1), for rows whose weights have mean 1."""
    best = identity(len(penalties), rows.n_classes)
    for phase, rate in enumerate(LEARNING_RATES):
        generator = np.random.default_rng([*seed, phase])
        models = Models.start(best, penalties)
        least = torch.full((len(penalties),), inf, dtype=best.dtype)
        waited = torch.zeros(len(penalties), dtype=torch.int64)
        for epoch in range(1, EPOCHS + 1):
            losses = models.epoch(rows, rate, generator)
            is_lower = losses < least[models.numbers]
            lower = models.numbers[is_lower]
            best[lower], least[lower] = models.coefficients[is_lower], losses[is_lower]
            waited[models.numbers] += 1
            waited[lower] = 0
            going_on = (waited[models.numbers] < PATIENCE) & (epoch < EPOCHS)
            for _ in models.numbers[~going_on]:
                advance("")
            models = models.select(going_on)
            if len(models.numbers) == 0:
                break
    return best


@dataclass
class Models:
    """Models of several penalties on the way of Adam."""

    numbers: torch.Tensor  # (n_models,), places of their penalties
    coefficients: torch.Tensor  # (n_models, n_classes, n_classes + 1), intercepts last
    squares: torch.Tensor  # the same shape: penalty of each squared coefficient
    diagonal: torch.Tensor  # (n_models, 1), ν
    means: torch.Tensor  # of the gradient
    mean_squares: torch.Tensor
    steps: int = 0

    @classmethod
    def start(cls, coefficients: torch.Tensor, penalties: Sequence[Penalty]) -> Self:
        """Return the models before their first step."""
        off_diagonal, intercepts, diagonal = (
            torch.tensor([getattr(penalty, name) for penalty in penalties], dtype=coefficients.dtype)[:, None]
            for name in ("off_diagonal", "intercept", "diagonal")
        )
        squares = off_diagonal[..., None].expand(coefficients.shape).clone()
        squares[..., -1] = intercepts
        squares.diagonal(dim1=1, dim2=2).copy_(diagonal.expand(-1, coefficients.shape[1]))
        zeros = torch.zeros_like(coefficients)
        return cls(torch.arange(len(penalties)), coefficients.clone(), squares, diagonal, zeros, zeros.clone())

    def select(self, kept: torch.Tensor) -> Self:
        """Return the chosen models; ``kept`` has one entry per model."""
        if bool(kept.all()):
            return self
        tensors = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "steps"}
        return replace(self, **{name: tensor[kept] for name, tensor in tensors.items()})

    def epoch(self, rows: FoldProblem, rate: float, generator: np.random.Generator) -> torch.Tensor:
        """Make one step per batch, and return the mean loss before each step, (n_models,)."""
        total = torch.zeros(len(self.numbers), dtype=self.coefficients.dtype)
        shuffled = torch.from_numpy(generator.permutation(len(rows.codes)))
        for first in range(0, len(shuffled), BATCH):
            chosen = shuffled[first : first + BATCH]
            batch = FoldProblem(rows.features[chosen], rows.codes[chosen], rows.shares[:, chosen] / len(chosen))
            total += self._step(batch, rate) * len(chosen)
        return total / len(rows.codes)

    def _step(self, batch: FoldProblem, rate: float) -> torch.Tensor:
        """Make one step of Adam, and return the loss before it, (n_models,)."""
        shape, shares, places = self.coefficients.shape, batch.shares[0], torch.arange(len(batch.codes))
        scores = self.coefficients.view(-1, shape[2]) @ batch.features.T  # one product for all models
        log_p = torch.log_softmax(scores.view(*shape[:2], -1), dim=1)  # (n_models, n_classes, n_rows)
        slopes = self._penalty_slopes()
        losses = 0.5 * (self.coefficients * slopes).sum(dim=(1, 2)) - log_p[:, batch.codes, places] @ shares
        residuals = log_p.exp_()
        residuals[:, batch.codes, places] -= 1
        residuals *= shares
        slopes += (residuals.view(-1, len(shares)) @ batch.features).view(shape)
        self._move(slopes, rate)
        return losses

    def _penalty_slopes(self) -> torch.Tensor:
        """Return the gradient of the penalties."""
        slopes = 2 * self.squares * self.coefficients
        centre = self.coefficients.diagonal(dim1=1, dim2=2).mean(dim=1, keepdim=True)
        slopes.diagonal(dim1=1, dim2=2).sub_(2 * self.diagonal * centre)
        return slopes

    def _move(self, gradient: torch.Tensor, rate: float) -> None:
        """Change the coefficients by Adam's rule."""
        self.steps += 1
        self.means.lerp_(gradient, 1 - DECAYS[0])
        self.mean_squares.mul_(DECAYS[1]).addcmul_(gradient, gradient, value=1 - DECAYS[1])
        first, second = (1 - decay**self.steps for decay in DECAYS)
        scale = (self.mean_squares / second).sqrt_().add_(KERAS_EPSILON)
        self.coefficients.addcdiv_(self.means, scale, value=-rate / first)
