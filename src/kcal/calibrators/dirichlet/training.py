"""The published training of Dirichlet calibration: Adam from the identity with early stopping.

Batches of 128 at a learning rate of 1e-3 until 15 epochs bring no lower training loss, then again at 1e-4.
"""

from __future__ import annotations

from math import inf

import numpy as np
import torch

from kcal.calibrators.dirichlet.solver import FoldProblem, FoldSolution, Penalty, identity

BATCH, EPOCHS, PATIENCE = 128, 500, 15
LEARNING_RATES = (1e-3, 1e-4)
KERAS_EPSILON = 1e-7  # the published code's; torch's own is smaller


def train_folds(problem: FoldProblem, penalty: Penalty, *, seed: int) -> FoldSolution:
    """Return the models of the published training, fold after fold; they need not be minimisers."""
    models = []
    for fold, shares in enumerate(problem.shares):
        kept = shares.nonzero()[:, 0]
        alone = FoldProblem(problem.features[kept], problem.codes[kept], shares[None, kept] * len(kept))
        models.append(_train(alone, penalty, np.random.default_rng([seed, fold])))
    coefficients = torch.cat(models)
    own = torch.cat([problem.own(problem.log_probs(model[None])) for model in coefficients])
    return FoldSolution(coefficients, own, -(problem.shares * own).sum(dim=1), converged=True)


def _train(problem: FoldProblem, penalty: Penalty, generator: np.random.Generator) -> torch.Tensor:
    """Return the coefficients, (1, n_classes, n_classes + 1), of one fold whose weights have mean 1."""
    best = identity(1, problem.n_classes)
    for rate in LEARNING_RATES:
        coefficients, least, waited = best.clone(), inf, 0
        optimiser = torch.optim.Adam([coefficients], lr=rate, eps=KERAS_EPSILON)
        for _ in range(EPOCHS):
            loss = _epoch(problem, penalty, coefficients, optimiser, generator)
            waited += 1
            if loss < least:
                best, least, waited = coefficients.clone(), loss, 0
            if waited == PATIENCE:
                break
    return best


def _epoch(
    problem: FoldProblem,
    penalty: Penalty,
    coefficients: torch.Tensor,
    optimiser: torch.optim.Optimizer,
    generator: np.random.Generator,
) -> float:
    """Make one step per batch, and return the mean loss before each step."""
    total = 0.0
    shuffled = torch.from_numpy(generator.permutation(len(problem.codes)))
    for first in range(0, len(shuffled), BATCH):
        rows = shuffled[first : first + BATCH]
        batch = FoldProblem(problem.features[rows], problem.codes[rows], problem.shares[:, rows] / len(rows))
        log_p = batch.log_probs(coefficients)
        total += float(batch.loss(coefficients, log_p, penalty)) * len(rows)
        coefficients.grad = batch.gradient(coefficients, log_p.exp_(), penalty)
        optimiser.step()
    return total / len(problem.codes)
