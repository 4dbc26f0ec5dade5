"""The choice among the checkpoints of a training: the lowest loss, and no more of them once it stalls."""

import numpy as np
import torch
from torch import nn

from kcal import FastRecipe, KCal, TrainedProjection
from kcal.projection import TrainingCurve


def fit(noise, **recipe):
    """Fit with checkpoints that keep some share of the informative directions."""
    generator = np.random.default_rng(0)
    labels = generator.integers(3, size=150)
    rows = 2.0 * np.eye(3)[labels] + generator.normal(size=(150, 3))
    checkpoints = tuple(nn.Linear(3, 3, bias=False).double().requires_grad_(False) for _ in noise)
    for module, share in zip(checkpoints, noise, strict=True):
        module.weight.copy_(torch.diag(torch.tensor([1.0, share, share])))
    steps, curve = tuple(range(len(noise))), TrainingCurve((0,), (1.0,), (0.1,))
    known = np.arange(3), np.array([], dtype=np.uint64)
    fitted = KCal(projection=TrainedProjection(checkpoints, steps, curve, FastRecipe(**recipe), *known)).fit(
        rows, labels
    )
    return fitted.training_curve_.chosen_step, fitted.training_curve_.checkpoint_losses


def test_choice_ends_after_three_checkpoints_without_a_lower_loss():
    step, losses = fit([0.5, 1.0, 0.4, 0.3, 0.2, 0.1, 1.0])
    assert step == 1
    assert len(losses) == 5
    assert losses[1] == min(losses)


def test_choice_goes_on_after_an_improvement_in_time():
    step, losses = fit([0.5, 0.4, 0.3, 1.0, 0.4])
    assert (step, len(losses)) == (3, 5)


def test_last_checkpoint_is_taken_without_a_choice():
    assert fit([1.0, 0.5, 0.4, 0.3, 0.2, 0.1], select="last") == (5, ())
