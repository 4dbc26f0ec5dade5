"""Dirichlet calibration as published, the method ``dircal-paper``: Adam from the identity, with early stopping.

Batches of 128 at a learning rate of 1e-3 until 15 epochs bring no lower training loss, then again at 1e-4, for each of
432 penalties (243 for 100 classes or more) and every fold. The models of all penalties see the same batches and are
trained side by side; each stops by itself, as if trained alone. Importing this module adds the method to the benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from typing import Any

import numpy as np
import torch

from kcal.benchmark.methods import BENCHMARK_METHODS
from kcal.benchmark.running import in_parallel
from kcal.calibrators.dirichlet import (
    CrossValidation,
    DirichletCalibration,
    DirichletModel,
    Penalty,
    Rows,
    check_grid,
    published_grid,
)
from kcal.calibrators.registry import SLOW, Method
from kcal.errors import InvalidInputError
from kcal.samples import Samples

BATCH_SIZE, EPOCHS, PATIENCE = 128, 500, 15
LEARNING_RATES = (1e-3, 1e-4)
KERAS_EPSILON = 1e-7  # the published code's; torch's own is smaller


class PublishedDirichlet(DirichletCalibration):
    """Dirichlet calibration with the published training; ``grid`` is "published" or a list of penalties."""

    def _fit_model(self, samples: Samples) -> DirichletModel:
        grid = check_grid(self.grid)
        penalties = published_grid(samples.n_classes) if grid == "published" else grid
        if isinstance(penalties, str):
            raise InvalidInputError("grid", "must be 'published' or a list of penalties", got=repr(grid))
        validation = CrossValidation(samples, int(self.folds), int(self.seed))
        folds = [
            train_models(validation.samples.select(kept), penalties, (int(self.seed), fold))
            for fold, kept in enumerate(validation.kept)
        ]
        for penalty, models in zip(penalties, np.stack(folds, axis=1), strict=True):
            validation.record(penalty, models)
        return validation.as_model(validation.best.models)


def train_models(rows: Rows, penalties: Sequence[Penalty], seed: tuple[int, int]) -> Any:
    """Return the models of all penalties for the samples of one fold, (n_penalties, n_classes, n_classes + 1)."""
    features, codes, shares = (torch.from_numpy(part) for part in rows)
    weights = shares * len(codes)  # of mean 1
    n_classes = len(features) - 1
    best = torch.eye(n_classes, n_classes + 1, dtype=torch.float64).repeat(len(penalties), 1, 1)
    for phase, rate in enumerate(LEARNING_RATES):
        generator = np.random.default_rng([*seed, phase])
        models = best.clone().requires_grad_()
        optimizer = torch.optim.Adam([models], lr=rate, eps=KERAS_EPSILON)
        lowest = torch.full((len(penalties),), inf, dtype=torch.float64)
        waited = torch.zeros(len(penalties), dtype=torch.int64)
        for _ in range(EPOCHS):
            losses = torch.zeros_like(lowest)
            for batch in torch.split(torch.from_numpy(generator.permutation(len(codes))), BATCH_SIZE):
                loss = penalised_losses(models, penalties, features[:, batch], codes[batch], weights[batch])
                optimizer.zero_grad()
                torch.autograd.backward(loss.sum())
                optimizer.step()
                losses += loss.detach() * len(batch)
            is_lower = (losses < lowest) & (waited < PATIENCE)  # a model that has stopped stays
            best[is_lower], lowest[is_lower] = models.detach()[is_lower], losses[is_lower]
            waited = torch.where(is_lower, 0, waited + 1)
            if bool((waited >= PATIENCE).all()):
                break
    return best.numpy()


def penalised_losses(
    models: torch.Tensor,
    penalties: Sequence[Penalty],
    features: torch.Tensor,
    codes: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Return the loss of each model on a batch, (n_penalties,); weights are divided by the size of the batch."""
    off_diagonal, intercept, diagonal = torch.tensor(penalties, dtype=models.dtype).T
    log_p = torch.log_softmax(models @ features, dim=1)  # (n_penalties, n_classes, n_rows)
    own = log_p[:, codes, torch.arange(len(codes))]
    entries = models.diagonal(dim1=1, dim2=2)
    outside = models[..., :-1].square().sum(dim=(1, 2)) - entries.square().sum(dim=1)
    penalty: torch.Tensor = off_diagonal * outside + intercept * models[..., -1].square().sum(dim=1)
    penalty = penalty + diagonal * (entries - entries.mean(dim=1, keepdim=True)).square().sum(dim=1)
    return penalty - own @ (weights / len(codes))


def in_parallel_with_method(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], *, jobs: int
) -> Iterator[Any]:
    """Yield the results of calls as the benchmark does, in processes that know the method."""
    return in_parallel(call_with_method, [(function, *call) for call in calls], jobs=jobs)


def call_with_method(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; a process that receives this one imports this module."""
    return function(*arguments)


BENCHMARK_METHODS["dircal-paper"] = Method(
    "dircal-paper", partial(PublishedDirichlet, grid="published"), "Dirichlet calibration as published", cost=SLOW
)
