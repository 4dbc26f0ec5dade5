"""Find the projection of a KCal: train it, choose among its checkpoints, or take a given one."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from kcal.calibrators.kcal.bandwidth import BandwidthChoice
from kcal.calibrators.kcal.samples import Samples
from kcal.kernels import LeaveOutLoss, MotherKernel
from kcal.progress import progress_bar
from kcal.projection import (
    UNTRAINED,
    FastRecipe,
    Recipe,
    TrainedProjection,
    TrainingCurve,
    TrainingRun,
    TrainingSamples,
    run_training,
    start_projection,
)

CHECKPOINT_SAMPLES = 6_000
"""Calibration samples on which checkpoints are compared, at most: more would cost time and not change the choice."""


@dataclass(frozen=True, eq=False)
class FittedProjection:
    """The projection in use, the step of its checkpoint, and the curve of its training."""

    module: nn.Module
    step: int | None = None
    curve: TrainingCurve | None = None
    checkpoint_losses: tuple[float, ...] = ()


def fit_projection(
    projection: str | nn.Module | TrainedProjection,
    training: TrainingSamples | None,
    calibration: Samples,
    *,
    dimension: int | str,
    recipe: Recipe,
    kernel: MotherKernel,
    bandwidth: BandwidthChoice,
    seed: int,
    progress: bool | None,
) -> FittedProjection:
    """Return the projection: trained here where there is a ``training`` set, otherwise the given one."""
    if training is not None:
        assert not isinstance(projection, TrainedProjection)
        module = start_projection(projection, training.embeddings, dimension, recipe, seed)

        def monitor(current: nn.Module) -> float:
            support = calibration.support(current)
            return LeaveOutLoss(support, kernel=kernel, keys=calibration.keys, memory_budget=0)(recipe.bandwidth)

        run = run_training(module, training, recipe, seed=seed, monitor=monitor, show=progress)
    elif isinstance(projection, TrainedProjection):
        run, recipe = projection.run, projection.recipe
    else:
        untrained = UNTRAINED[projection]() if isinstance(projection, str) else projection
        return FittedProjection(_frozen(untrained, calibration.embeddings))
    return choose_checkpoint(run, recipe, calibration, kernel=kernel, bandwidth=bandwidth, progress=progress)


def choose_checkpoint(
    run: TrainingRun,
    recipe: Recipe,
    calibration: Samples,
    *,
    kernel: MotherKernel,
    bandwidth: BandwidthChoice,
    progress: bool | None,
) -> FittedProjection:
    """Return the checkpoint with the lowest leave-out loss on the calibration set, or the last if the recipe says so.

    Each checkpoint is scored at the bandwidth that it would get, on at most ``CHECKPOINT_SAMPLES`` samples.
    """
    modules = [_frozen(module, calibration.embeddings) for module in run.checkpoints]
    if len(modules) == 1 or not (isinstance(recipe, FastRecipe) and recipe.select == "calibration"):
        return FittedProjection(modules[-1], run.steps[-1], run.curve)
    losses: list[float] = []
    samples = calibration.at_most(CHECKPOINT_SAMPLES)
    with progress_bar("Choosing the checkpoint", len(modules), show=progress) as advance:
        for step, module in zip(run.steps, modules, strict=True):
            loss = LeaveOutLoss(samples.support(module), kernel=kernel, keys=samples.keys)
            losses.append(bandwidth.lowest_loss(loss))
            advance(f"step {step}, loss {losses[-1]:.4f}")
    best = int(np.argmin(losses))
    return FittedProjection(modules[best], run.steps[best], run.curve, tuple(losses))


def _frozen(module: nn.Module, like: torch.Tensor) -> nn.Module:
    """Return a frozen copy in evaluation mode, on the device and in the precision of the embeddings."""
    copy: Any = deepcopy(module).to(device=like.device, dtype=like.dtype)
    frozen: nn.Module = copy.eval().requires_grad_(False)
    return frozen
