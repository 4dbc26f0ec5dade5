"""Edges where training went wrong: samples that see nothing, short schedules, modules with nothing to learn."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from kcal.errors import InvalidInputError
from kcal.projection import FastRecipe, PaperRecipe, choose_dimension, project, train_projection
from kcal.projection.objective import episode_losses


def noise(n=60, h=4):
    return np.random.default_rng(0).normal(size=(n, h)).astype(np.float32), np.arange(n) % 2


def test_a_query_that_may_see_nothing_gives_no_gradient_to_anybody():
    points = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    codes = torch.tensor([0, 1, 0, 1])
    blocked = torch.eye(4, dtype=torch.bool)
    blocked[0] = True

    def losses(points):
        return episode_losses(points, points, codes, codes, torch.zeros(4, dtype=torch.float64), blocked=blocked)[0]

    assert losses(points)[0] == 0.0
    assert torch.autograd.gradcheck(losses, points.requires_grad_(), atol=1e-7)


def test_a_batch_of_one_group_does_not_destroy_the_training():
    """One sample is all there is of the second group: most batches miss it, and then nobody may see anybody."""
    rows, labels = noise(300)
    groups = np.zeros(300, dtype=int)
    groups[0] = 1
    trained = train_projection(rows, labels, recipe=FastRecipe(steps=20, batch_size=40), groups=groups)
    assert np.isfinite(trained.curve.losses).all()
    assert torch.isfinite(project(trained.module, torch.from_numpy(rows))).all()


@pytest.mark.parametrize("offset", [64.0, 1024.0, 8192.0])
def test_the_objective_does_not_depend_on_the_origin(offset):
    points = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    points = (points * 64).round() / 64  # exact, also with the offset
    codes, itself, log_weights = torch.arange(50) % 3, torch.eye(50, dtype=torch.bool), torch.zeros(50)
    results = []
    for moved in (points, points + offset):
        moved.requires_grad_()
        losses, _ = episode_losses(moved, moved, codes, codes, log_weights, blocked=itself)
        losses.sum().backward()
        results.append((losses.detach(), moved.grad))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-4)


def test_a_second_derivative_is_not_offered():
    """The gradient is written by hand; differentiating it again would silently leave terms out."""
    points = torch.randn(5, 2, requires_grad=True, generator=torch.Generator().manual_seed(0))
    codes = torch.arange(5) % 2
    losses, _ = episode_losses(points, points, codes, codes, torch.zeros(5), blocked=torch.eye(5, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(losses.sum(), points, create_graph=True)
    assert not gradient.requires_grad


@pytest.mark.parametrize("warm_up", [0.0, 0.05, 0.2, 0.5, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 5, 20])
def test_every_number_of_steps_and_every_warm_up_is_a_schedule(steps, warm_up):
    rows, labels = noise()
    trained = train_projection(rows, labels, recipe=FastRecipe(steps=steps, batch_size=40, warm_up=warm_up))
    assert trained.steps[-1] == steps
    rates = trained.curve.learning_rates
    assert all(0 <= rate <= FastRecipe().learning_rate for rate in rates)
    assert np.isfinite(trained.curve.losses).all()


def test_the_rate_rises_to_its_height_and_falls_to_almost_nothing():
    recipe = FastRecipe(steps=100, warm_up=0.2)
    rates = np.array([recipe.relative_rate(step, 100) for step in range(100)])
    assert bool((np.diff(rates[:21]) > 0).all())
    assert rates[20] == rates.max() == 1.0
    assert bool((np.diff(rates[20:]) < 0).all())
    assert 0 < rates[-1] < 0.01
    assert 0 < rates[0] < 0.1


def test_every_part_of_a_module_keeps_its_mode():
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2), nn.Dropout()).train()
    module[0].eval()
    project(module, torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
    assert [part.training for part in (module, *module)] == [True, False, True, True]


@pytest.mark.parametrize("recipe", [FastRecipe(steps=3), PaperRecipe(epochs=1, batches_per_epoch=2)])
@pytest.mark.parametrize("module", [nn.Identity(), nn.Linear(4, 2).requires_grad_(False)], ids=["empty", "frozen"])
def test_a_module_with_nothing_to_train_is_refused(module, recipe):
    rows, labels = noise()
    with pytest.raises(InvalidInputError, match="nothing to train"):
        train_projection(rows, labels, projection=module, recipe=recipe)


@pytest.mark.parametrize("recipe", [FastRecipe(steps=6, batch_size=40), PaperRecipe(epochs=1, batches_per_epoch=6)])
def test_frozen_parameters_stay_where_they_are_beside_those_that_learn(recipe):
    rows, labels = noise()
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    trained = train_projection(rows, labels, projection=module, recipe=recipe).module
    assert torch.equal(trained[0].weight, module[0].weight)
    assert not torch.equal(trained[1].weight, module[1].weight)


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        (PaperRecipe, {"factor": 1.5}),
        (PaperRecipe, {"factor": -0.5}),
        (PaperRecipe, {"patience": -1}),
        (PaperRecipe, {"predictions": 2.5}),
        (FastRecipe, {"warm_up": 1.5}),
        (FastRecipe, {"warm_up": -0.1}),
        (FastRecipe, {"weight_decay": -1.0}),
        (FastRecipe, {"steps": 2.5}),
        (FastRecipe, {"steps": "many"}),
        (FastRecipe, {"steps": True}),
        (FastRecipe, {"learning_rate": math.inf}),
        (FastRecipe, {"bandwidth": math.inf}),
    ],
    ids=str,
)
def test_an_impossible_recipe_is_refused_when_it_is_written(recipe, options):
    with pytest.raises(InvalidInputError, match=f"^{next(iter(options))} must be"):
        recipe(**options)


def test_numpy_integers_are_dimensions():
    assert choose_dimension(np.int64(3), 5, 32) == 3
    assert type(choose_dimension(np.int64(3), 5, 32)) is int
