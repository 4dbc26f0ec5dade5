"""Train Π on the embeddings of a training set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kcal.errors import InvalidInputError
from kcal.modes import with_gradients
from kcal.progress import progress_bar
from kcal.projection.episodes import PaperEpisodes, StratifiedBatches
from kcal.projection.modules import UNTRAINED, NormalisedReduction, build_projection, choose_dimension, seeded
from kcal.projection.objective import episode_losses, gradients_of, mean_loss
from kcal.projection.paper_loss import Step, paper_gradients
from kcal.projection.recipes import FastRecipe, PaperRecipe, Recipe, get_recipe
from kcal.samples import Samples, check_samples
from kcal.validation import check_matrix, check_seed, row_fingerprints

Loss = Callable[[nn.Module], float]


@dataclass(frozen=True)
class TrainingCurve:
    """Training log-loss, averaged since the last record, and learning rate at the recorded steps."""

    steps: tuple[int, ...]
    losses: tuple[float, ...]
    learning_rates: tuple[float, ...]


class Checkpoint(NamedTuple):
    """A frozen copy of the module after some steps, and the curve until then."""

    step: int
    module: nn.Module
    curve: TrainingCurve


@dataclass(frozen=True, repr=False)
class TrainedProjection:
    """A projection that is trained once, with its checkpoints; pass it to ``KCal(projection=...)`` any number of times.

    ``classes`` are those of the training set: a class that occurs only there still gets a column.
    """

    checkpoints: tuple[nn.Module, ...]
    steps: tuple[int, ...]
    curve: TrainingCurve
    recipe: Recipe
    classes: NDArray[Any] = field(compare=False)
    fingerprints: NDArray[np.uint64] = field(compare=False)

    @property
    def module(self) -> nn.Module:
        """The last checkpoint."""
        return self.checkpoints[-1]

    def run(self) -> Iterator[Checkpoint]:
        """Yield the checkpoints of the training."""
        for step, module in zip(self.steps, self.checkpoints, strict=True):
            yield Checkpoint(step, module, self.curve)

    def __repr__(self) -> str:
        name = type(self.module).__name__
        return f"TrainedProjection({name}, steps={self.steps[-1]}, checkpoints={len(self.checkpoints)})"


@with_gradients()
def train_projection(
    embeddings: Any,
    labels: Any,
    *,
    projection: str | nn.Module = "skip",
    dimension: int | str = "auto",
    recipe: str | Recipe = "fast",
    groups: Any = None,
    classes: Any = None,
    seed: int = 0,
    progress: bool | None = None,
) -> TrainedProjection:
    """Train Π on a training set alone, so that many calibration sets can share it.

    Parameters
    ----------
    embeddings : (n, h) array or tensor
        Penultimate-layer embeddings of the samples that the network was trained on.
    labels : (n,) array or tensor
        Their classes.
    projection : "skip", "linear" or nn.Module
        What to train; a module is copied first.
    dimension : int or "auto"
        d; for "auto" min(h, 128), or with the paper's recipe min(h, 32) below 1,000 classes.
    recipe : "fast", "paper", FastRecipe or PaperRecipe
        How to train it. The paper's recipe monitors the training loss here, since there is no calibration set.
    groups : (n,) array, optional
        Patients, speakers, sites: a sample is never predicted from its own group.
    classes : sequence, optional
        All classes, where the training set does not include them all.
    seed : int
        Same seed, same result.
    progress : bool, optional
        Show a progress bar; by default only in a terminal.
    """
    check_seed(seed)
    numbers = get_recipe(recipe)
    rows = check_matrix(embeddings, "embeddings")
    samples = check_samples(rows, labels, classes=classes, groups=groups, names=("labels", "groups"))
    module = start_projection(projection, rows, dimension, numbers, seed, n_classes=samples.n_classes)
    if isinstance(numbers, PaperRecipe):
        numbers = replace(numbers, monitor="training")  # there is no calibration set
    run = list(train_checkpoints(module, samples, numbers, seed=seed, show=progress))
    modules, steps = tuple(checkpoint.module for checkpoint in run), tuple(checkpoint.step for checkpoint in run)
    return TrainedProjection(modules, steps, run[-1].curve, numbers, samples.classes, row_fingerprints(rows))


PATIENCE = 3
"""Checkpoints without a lower loss after which a training ends; their steps double."""


class FoundProjection(NamedTuple):
    """The projection in use, the step of its checkpoint, the curve of its training, and the losses of checkpoints."""

    module: nn.Module
    step: int | None = None
    curve: TrainingCurve | None = None
    checkpoint_losses: tuple[float, ...] = ()


def find_projection(
    projection: str | nn.Module | TrainedProjection,
    training: Samples | None,
    calibration: Samples,
    *,
    dimension: int | str,
    recipe: Recipe,
    seed: int,
    progress: bool | None,
    score: Loss,
    monitor: Loss,
) -> FoundProjection:
    """Return the frozen projection of a calibrator: trained where there is a training set, otherwise the given one.

    ``score`` maps a module to its loss on the calibration set. Of the checkpoints the one with the lowest is taken, or
    the last if the recipe says so; a training ends after ``PATIENCE`` checkpoints in a row without a lower loss.
    ``monitor`` is the loss that decides when the paper's recipe halves its learning rate.
    """
    if training is not None:
        assert not isinstance(projection, TrainedProjection)
        n_classes = calibration.n_classes
        module = start_projection(projection, training.embeddings, dimension, recipe, seed, n_classes=n_classes)
        run = train_checkpoints(module, training, recipe, seed=seed, monitor=monitor, show=progress)
    elif isinstance(projection, TrainedProjection):
        run, recipe = projection.run(), projection.recipe
    else:
        module = UNTRAINED[projection]() if isinstance(projection, str) else projection
        return FoundProjection(frozen_copy(module, calibration.embeddings))
    seen: list[Checkpoint] = []
    losses: list[float] = []
    scored = isinstance(recipe, FastRecipe) and recipe.select == "calibration" and recipe.checkpoints > 1
    for checkpoint in run:
        seen.append(checkpoint._replace(module=frozen_copy(checkpoint.module, calibration.embeddings)))
        if scored:
            losses.append(score(seen[-1].module))
            if len(losses) - 1 - int(np.argmin(losses)) == PATIENCE:
                break
    best = seen[int(np.argmin(losses))] if scored else seen[-1]
    return FoundProjection(best.module, best.step, seen[-1].curve, tuple(losses))


def start_projection(
    projection: str | nn.Module,
    embeddings: torch.Tensor,
    dimension: int | str,
    recipe: Recipe,
    seed: int,
    *,
    n_classes: int,
) -> nn.Module:
    """Return the initial module, on the device and in the precision of the embeddings."""
    if isinstance(projection, nn.Module):
        module = deepcopy(projection)
    else:
        n_features = embeddings.shape[1]
        chosen = choose_dimension(dimension, n_features, recipe.dimension_limit(n_classes))
        module = build_projection(projection, n_features, chosen, seed)
        if isinstance(recipe, FastRecipe) and isinstance(module, NormalisedReduction):
            module.unit_length.fill_(recipe.takes_directions(n_features))
    return module.to(device=embeddings.device, dtype=embeddings.dtype)


def train_checkpoints(
    module: nn.Module,
    samples: Samples,
    recipe: Recipe,
    *,
    seed: int = 0,
    monitor: Loss | None = None,
    show: bool | None = None,
) -> Iterator[Checkpoint]:
    """Train ``module`` in place and yield its checkpoints; a caller that takes no more of them ends the training.

    ``monitor`` maps the module to the loss that the paper's recipe monitors; without it, that is the training loss.
    """
    if len(np.unique(samples.codes)) < 2:
        raise InvalidInputError("train_labels", "must hold at least two classes to learn a projection")
    if samples.groups is not None and len(np.unique(samples.groups)) < 2:
        raise InvalidInputError("train_groups", "must hold at least two groups to learn a projection")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InvalidInputError("projection", "has nothing to train", remedy="Pass it to KCal directly, frozen.")
    generator = np.random.default_rng(seed)
    with seeded(seed):  # a module may hold dropout
        if isinstance(recipe, PaperRecipe):
            yield _train_paper(module, samples, recipe, generator, monitor, show)
        else:
            yield from _train_fast(module, samples, recipe, generator, show)


def _train_paper(
    module: nn.Module,
    samples: Samples,
    recipe: PaperRecipe,
    generator: np.random.Generator,
    monitor: Loss | None,
    show: bool | None,
) -> Checkpoint:
    episodes = PaperEpisodes(
        samples.codes, samples.n_classes, predictions=recipe.predictions, per_class=recipe.background_per_class,
        generator=generator, groups=samples.groups,
    )  # fmt: skip
    labels = torch.as_tensor(samples.codes, device=samples.embeddings.device)
    optimizer = torch.optim.SGD(module.parameters(), lr=recipe.learning_rate)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=recipe.factor, patience=recipe.patience)
    descent = _Descent(optimizer)
    with progress_bar("Training the projection", recipe.epochs * recipe.batches_per_epoch, show=show) as advance:
        for _ in range(recipe.epochs):
            module.train()
            for _ in range(recipe.batches_per_epoch):
                step = Step.of(episodes.draw(), samples.embeddings, labels, recipe)
                descent.step(*paper_gradients(module, step))
                advance("")
            mean = descent.record()
            scheduler.step(monitor(module) if monitor is not None and recipe.monitor == "calibration" else mean)
            if descent.learning_rate < recipe.least_learning_rate:
                break
    return Checkpoint(descent.n_steps, frozen_copy(module, samples.embeddings), descent.curve())


def _train_fast(
    module: nn.Module,
    samples: Samples,
    recipe: FastRecipe,
    generator: np.random.Generator,
    show: bool | None,
) -> Iterator[Checkpoint]:
    embeddings, steps = samples.embeddings, recipe.steps_for(len(samples.codes))
    keys = None if samples.groups is None else torch.as_tensor(samples.groups, device=embeddings.device)
    batches = StratifiedBatches(
        samples.codes, samples.n_classes, batch_size=recipe.batch_size, generator=generator,
        proportional=recipe.sampling == "proportional", balanced=recipe.class_weights == "balanced",
    )  # fmt: skip
    labels = torch.as_tensor(batches.codes, device=embeddings.device)
    log_weights = torch.as_tensor(batches.log_weights, device=embeddings.device, dtype=embeddings.dtype)
    shares = torch.as_tensor(batches.shares, device=embeddings.device, dtype=embeddings.dtype)
    if recipe.start == "pca" and isinstance(module, NormalisedReduction):
        module.start_from(embeddings)
    blocked = torch.eye(len(labels), dtype=torch.bool, device=embeddings.device)  # each sample from itself
    optimizer = torch.optim.AdamW(module.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(recipe.relative_rate, steps=steps))
    marks, descent = recipe.marks(steps), _Descent(optimizer)
    if 0 in marks:
        yield Checkpoint(0, frozen_copy(module, embeddings), descent.curve())
    module.train()
    with progress_bar("Training the projection", steps, show=show) as advance:
        for step in range(1, steps + 1):
            rows = torch.from_numpy(batches.draw()).to(embeddings.device)
            if keys is not None:
                blocked = keys[rows][:, None] == keys[rows]
            projected = module(embeddings[rows])
            losses, counted = episode_losses(
                projected, projected, labels, labels, log_weights, bandwidth=recipe.bandwidth, blocked=blocked
            )
            loss = mean_loss(losses, counted, shares)
            descent.step(loss.detach(), gradients_of(loss, module))
            advance("")
            scheduler.step()
            if step in marks:
                descent.record()
                yield Checkpoint(step, frozen_copy(module, embeddings), descent.curve())


def frozen_copy(module: nn.Module, like: torch.Tensor) -> nn.Module:
    """Return a frozen copy in evaluation mode, on the device and in the precision of ``like``."""
    copy: nn.Module = deepcopy(module).to(device=like.device, dtype=like.dtype)
    return copy.eval().requires_grad_(False)


class _Descent:
    """Take the steps of an optimizer and collect their losses into a curve."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.n_steps = optimizer, 0
        self.recent: list[torch.Tensor] = []
        self.records: list[tuple[int, float, float]] = []

    @property
    def learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def step(self, loss: torch.Tensor, gradients: Sequence[torch.Tensor | None]) -> None:
        for parameter, gradient in zip(self.optimizer.param_groups[0]["params"], gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.n_steps += 1
        self.recent.append(loss)

    def record(self) -> float:
        mean = float(torch.stack(self.recent).mean())
        self.records.append((self.n_steps, mean, self.learning_rate))
        self.recent.clear()
        return mean

    def curve(self) -> TrainingCurve:
        return TrainingCurve(*(zip(*self.records, strict=True) if self.records else ((), (), ())))
