"""The choice among the checkpoints of a training: the lowest loss, and no more steps once it stalls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from kcal import FastRecipe
from kcal.calibrators.kcal.learning import PATIENCE, EstimateOptions, choose_checkpoint
from kcal.calibrators.kcal.samples import check_samples
from kcal.projection import Checkpoint, TrainingCurve


def noisy_embeddings() -> tuple[torch.Tensor, np.ndarray]:
    generator = np.random.default_rng(0)
    labels = generator.integers(3, size=150)
    return torch.from_numpy(2.0 * np.eye(3)[labels] + generator.normal(size=(150, 3))), labels


class Training:
    """A training whose checkpoints turn the embeddings into more and more noise, but for one."""

    def __init__(self, noise: list[float]) -> None:
        self.noise, self.taken = noise, 0

    def run(self) -> Iterator[Checkpoint]:
        for step, noise in enumerate(self.noise):
            self.taken += 1
            module = nn.Linear(3, 3, bias=False).double()
            with torch.no_grad():
                module.weight.copy_(torch.diag(torch.tensor([1.0, noise, noise], dtype=torch.float64)))
            yield Checkpoint(step, module, TrainingCurve((step,), (1.0,), (0.1,)))


def choose(training: Training, **recipe: str) -> tuple[int | None, tuple[float, ...]]:
    embeddings, labels = noisy_embeddings()
    samples = check_samples(embeddings, labels, classes=None)
    options = EstimateOptions("auto", FastRecipe(**recipe), 0, False)
    chosen = choose_checkpoint(training.run(), options.recipe, samples, options)
    return chosen.step, chosen.checkpoint_losses


def test_a_training_ends_after_three_checkpoints_without_a_lower_loss() -> None:
    training = Training([0.5, 1.0, 0.4, 0.3, 0.2, 0.1, 1.0])
    step, losses = choose(training)
    assert step == 1
    assert training.taken == len(losses) == 2 + PATIENCE
    assert losses[1] == min(losses)


def test_a_training_that_improves_again_in_time_goes_on() -> None:
    training = Training([0.5, 0.4, 0.3, 1.0, 0.4])
    assert choose(training)[0] == 3
    assert training.taken == 5


def test_without_a_choice_the_last_checkpoint_is_taken() -> None:
    training = Training([1.0, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert choose(training, select="last") == (5, ())
