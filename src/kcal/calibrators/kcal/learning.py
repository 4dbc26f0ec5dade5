"""Find the projection of a KCal: train it, choose among its checkpoints, or take a given one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn

from kcal.calibrators.kcal.bandwidth import BandwidthChoice
from kcal.calibrators.kcal.samples import Samples, TrainingSet
from kcal.kernels import KERNELS, BandwidthCurve, LeaveOutLoss, MotherKernel, SortedSupport
from kcal.projection import (
    UNTRAINED,
    Checkpoint,
    FastRecipe,
    Recipe,
    TrainedProjection,
    TrainingCurve,
    frozen_copy,
    start_projection,
    train_checkpoints,
)

PATIENCE = 3
"""Checkpoints without a lower loss after which a training ends; their steps double."""
CHECKPOINT_SAMPLES = 6_000
"""Calibration samples on which checkpoints are compared, at most: more would cost time and not change the choice."""


@dataclass(frozen=True, eq=False)
class FittedProjection:
    """The projection in use, the step of its checkpoint, and the curve of its training."""

    module: nn.Module
    step: int | None = None
    curve: TrainingCurve | None = None
    checkpoint_losses: tuple[float, ...] = ()


@dataclass(frozen=True)
class EstimateOptions:
    """How a kernel density estimate is fitted, by parameters of KCal."""

    dimension: int | str
    recipe: Recipe
    seed: int
    progress: bool | None
    kernel: MotherKernel = KERNELS["rbf"]
    bandwidth: BandwidthChoice = field(default_factory=BandwidthChoice)

    def choose_bandwidth(
        self, support: SortedSupport, keys: torch.Tensor | None
    ) -> tuple[float, BandwidthCurve | None]:
        """Return the bandwidth and, where it was searched for, all that were tried."""
        return self.bandwidth.choose(support, kernel=self.kernel, keys=keys, progress=self.progress)


def fit_projection(
    projection: str | nn.Module | TrainedProjection,
    training: TrainingSet | None,
    calibration: Samples,
    options: EstimateOptions,
) -> FittedProjection:
    """Return the projection: trained here where there is a ``training`` set, otherwise the given one."""
    recipe = options.recipe
    if training is not None:
        assert not isinstance(projection, TrainedProjection)
        samples = training.encoded(calibration.classes)
        embeddings, n_classes = samples.embeddings, len(calibration.classes)
        module = start_projection(projection, embeddings, options.dimension, recipe, options.seed, n_classes=n_classes)

        def monitor(current: nn.Module) -> float:
            keys = replace(calibration, folds=None).keys  # the published rule leaves out one sample or group
            loss = LeaveOutLoss(calibration.support(current), kernel=options.kernel, keys=keys, memory_budget=0)
            return loss(recipe.bandwidth)

        progress = options.progress
        run = train_checkpoints(module, samples, recipe, seed=options.seed, monitor=monitor, show=progress)
    elif isinstance(projection, TrainedProjection):
        run, recipe = projection.run(), projection.recipe
    else:
        untrained = UNTRAINED[projection]() if isinstance(projection, str) else projection
        return FittedProjection(frozen_copy(untrained, calibration.embeddings))
    return choose_checkpoint(run, recipe, calibration, options)


def choose_checkpoint(
    run: Iterator[Checkpoint], recipe: Recipe, calibration: Samples, options: EstimateOptions
) -> FittedProjection:
    """Return the checkpoint with the lowest leave-out loss on the calibration set, or the last if the recipe says so.

    Each checkpoint is scored at the bandwidth that it would get, on at most ``CHECKPOINT_SAMPLES`` samples, until
    ``PATIENCE`` in a row have no lower loss.
    """
    seen: list[Checkpoint] = []
    losses: list[float] = []
    scored = isinstance(recipe, FastRecipe) and recipe.select == "calibration" and recipe.checkpoints > 1
    samples = calibration.at_most(CHECKPOINT_SAMPLES)
    for checkpoint in run:
        seen.append(checkpoint._replace(module=frozen_copy(checkpoint.module, calibration.embeddings)))
        if scored:
            support = samples.support(seen[-1].module)
            loss = LeaveOutLoss(support, kernel=options.kernel, keys=samples.keys)
            losses.append(options.bandwidth.lowest_loss(loss))
            if len(losses) - 1 - int(np.argmin(losses)) == PATIENCE:
                break
    best = seen[int(np.argmin(losses))] if scored else seen[-1]
    return FittedProjection(best.module, best.step, seen[-1].curve, tuple(losses))
