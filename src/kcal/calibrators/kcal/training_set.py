"""Where KCal's projection comes from: a training set, a held-out half, a fitted projection, or nothing to learn."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kcal.calibrators.fit_warnings import warn_of_held_out
from kcal.calibrators.holdout import stratified_halves
from kcal.errors import InvalidInputError
from kcal.kernels import MEMORY_BUDGET, LeaveOutLoss, MotherKernel, sort_support
from kcal.progress import progress_bar
from kcal.projection import (
    ARCHITECTURES,
    UNTRAINED,
    FastRecipe,
    Recipe,
    TrainedProjection,
    TrainingCurve,
    TrainingSamples,
    project,
    run_training,
    start_projection,
)
from kcal.validation import check_groups, check_labels, check_matrix

Index = NDArray[np.int64]

MOST_TO_CHOOSE_BY = 6_000
"""Calibration samples by which checkpoints are compared, at most: more would not change the choice, and take long."""


@dataclass(frozen=True)
class TrainingSet:
    """Embeddings to learn a projection from, with their labels (as they came) and groups."""

    embeddings: torch.Tensor
    labels: NDArray[Any]
    groups: Index | None


@dataclass(frozen=True)
class CalibrationSet:
    """The support to be: embeddings, class codes, weights, and the keys by which samples leave each other out."""

    embeddings: torch.Tensor
    codes: torch.Tensor
    n_classes: int
    weights: torch.Tensor | None
    keys: torch.Tensor | None

    def leave_out_loss(
        self, module: nn.Module, kernel: MotherKernel, memory_budget: int = MEMORY_BUDGET
    ) -> LeaveOutLoss:
        """Return the leave-out loss under a projection, as a function of the bandwidth."""
        support = sort_support(project(module, self.embeddings), self.codes, self.n_classes, self.weights)
        return LeaveOutLoss(support, kernel=kernel, keys=self.keys, memory_budget=memory_budget)

    def part(self, most: int) -> CalibrationSet:
        """Return at most so many samples, spread evenly over the classes and, within them, over the set."""
        if len(self.codes) <= most:
            return self
        order = torch.argsort(self.codes, stable=True)
        rows = order[torch.arange(most, device=order.device) * len(order) // most]
        weights, keys = (None if each is None else each[rows] for each in (self.weights, self.keys))
        return CalibrationSet(self.embeddings[rows], self.codes[rows], self.n_classes, weights, keys)


CheckpointLoss = Callable[[CalibrationSet, nn.Module], float]


@dataclass(frozen=True)
class LearnedProjection:
    """The projection in use, and how it came about."""

    module: nn.Module
    step: int | None = None
    curve: TrainingCurve | None = None
    checkpoint_losses: tuple[float, ...] = ()


def check_projection(projection: Any) -> None:
    """Refuse what is no projection."""
    names = (*ARCHITECTURES, *UNTRAINED)
    if not isinstance(projection, nn.Module | TrainedProjection) and projection not in names:
        known = ", ".join(f'"{name}"' for name in names)
        raise InvalidInputError(f"projection must be {known}, a TrainedProjection or an nn.Module; got {projection!r}.")


def is_to_be_learned(projection: Any) -> bool:
    """Say whether a ``projection`` parameter asks for training."""
    if isinstance(projection, nn.Module):
        return any(parameter.requires_grad for parameter in projection.parameters())
    return isinstance(projection, str) and projection not in UNTRAINED


def given_training_set(
    embeddings: Any,
    labels: Any,
    groups: Any,
    like: torch.Tensor,
    as_embeddings: Callable[[torch.Tensor], torch.Tensor],
) -> TrainingSet | None:
    """Check what the caller gave as training set; ``like`` is the calibration set's embeddings."""
    if embeddings is None:
        if labels is not None or groups is not None:
            raise InvalidInputError(
                "train_labels and train_groups need train_embeddings; pass all that belong together."
            )
        return None
    if labels is None:
        raise InvalidInputError("train_embeddings needs train_labels, one a row.")
    checked = check_matrix(embeddings, "train_embeddings", columns=like.shape[1], owner="the calibration set")
    rows = as_embeddings(checked).to(device=like.device, dtype=like.dtype)
    names = check_labels(labels, rows.shape[0], "train_labels")
    keys = None if groups is None else check_groups(groups, rows.shape[0], "train_groups")
    return TrainingSet(rows, names, keys)


def hold_out_half(
    embeddings: torch.Tensor, labels: NDArray[Any], codes: Index, groups: Index | None, seed: int
) -> tuple[TrainingSet, Index]:
    """Return a half of the calibration set to learn a projection from, and the rows that stay; warn of it."""
    learn, keep = stratified_halves(codes, groups, seed)
    if len(np.unique(codes[learn])) < 2:
        raise InvalidInputError(
            f"holding out half of {len(codes)} samples leaves fewer than two classes to learn the projection from. "
            'Pass train_embeddings and train_labels, a fitted projection, or projection="identity".'
        )
    warn_of_held_out(len(learn), len(keep))
    return TrainingSet(embeddings[learn], labels[learn], None if groups is None else groups[learn]), keep


def learn_projection(
    projection: str | nn.Module,
    training: TrainingSet,
    training_codes: Index,
    calibration: CalibrationSet,
    *,
    dimension: int | str,
    recipe: Recipe,
    kernel: MotherKernel,
    loss_of: CheckpointLoss,
    seed: int,
    show: bool | None,
) -> LearnedProjection:
    """Train a projection, and choose among its checkpoints on the calibration set where the recipe says so."""
    module = start_projection(projection, training.embeddings, dimension, recipe, seed)

    def monitor(current: nn.Module) -> float:
        return calibration.leave_out_loss(current, kernel, memory_budget=0)(recipe.bandwidth)

    samples = TrainingSamples(training.embeddings, training_codes, calibration.n_classes, training.groups)
    checkpoints, steps, curve = run_training(module, samples, recipe, seed=seed, monitor=monitor, show=show)
    return choose_checkpoint(checkpoints, steps, curve, recipe, calibration, loss_of, show)


def choose_checkpoint(
    checkpoints: tuple[nn.Module, ...],
    steps: tuple[int, ...],
    curve: TrainingCurve,
    recipe: Recipe,
    calibration: CalibrationSet,
    loss_of: CheckpointLoss,
    show: bool | None,
) -> LearnedProjection:
    """Return the checkpoint with the lowest leave-out loss on (a part of) the calibration set, or the last."""
    if len(checkpoints) == 1 or not (isinstance(recipe, FastRecipe) and recipe.select == "calibration"):
        return LearnedProjection(deepcopy(checkpoints[-1]), steps[-1], curve)
    losses = []
    part = calibration.part(MOST_TO_CHOOSE_BY)
    with progress_bar("Choosing the checkpoint", len(checkpoints), show=show) as advance:
        for step, checkpoint in zip(steps, checkpoints, strict=True):
            losses.append(loss_of(part, checkpoint))
            advance(f"step {step}, loss {losses[-1]:.4f}")
    best = int(np.argmin(losses))
    return LearnedProjection(deepcopy(checkpoints[best]), steps[best], curve, tuple(losses))


def adopt_projection(
    projection: Any, calibration: CalibrationSet, loss_of: CheckpointLoss, *, show: bool | None
) -> LearnedProjection:
    """Return the projection that needs no training: a trained one, a frozen module, or one without parameters."""
    like = calibration.embeddings
    if isinstance(projection, TrainedProjection):
        modules = tuple(deepcopy(module).to(device=like.device, dtype=like.dtype) for module in projection.checkpoints)
        run = (modules, projection.steps, projection.curve, projection.recipe)
        return choose_checkpoint(*run, calibration, loss_of, show)
    if isinstance(projection, nn.Module):
        return LearnedProjection(deepcopy(projection).to(device=like.device, dtype=like.dtype).eval())
    return LearnedProjection(UNTRAINED[projection]())
