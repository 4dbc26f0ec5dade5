"""KCal as published: its parameters, and its search for the bandwidth over folds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kcal import KCal, PaperRecipe, train_projection
from kcal.calibrators import make_calibrator
from kcal.kernels import LeaveOutLoss, sort_support
from kcal.samples import fold_codes
from synthetic import make_problem


@pytest.fixture(scope="module")
def problem() -> Any:
    return make_problem()


def identity(**parameters: Any) -> KCal:
    return KCal(projection="identity", **parameters)


def loss_over(keys: Any, problem: Any) -> LeaveOutLoss:
    support = sort_support(torch.from_numpy(problem.embeddings), torch.from_numpy(problem.labels), 3)
    return LeaveOutLoss(support, keys=torch.from_numpy(keys))


def test_as_published_is_the_papers_recipe_and_search() -> None:
    calibrator = KCal.as_published()
    assert calibrator.tags.recipe == PaperRecipe()
    assert (calibrator.bandwidth, calibrator.projection, calibrator.dimension) == ("published", "residual", "auto")
    assert calibrator.get_params() == make_calibrator("kcal-paper").set_params(recipe=PaperRecipe()).get_params()
    assert KCal.as_published("isruc", folds=6, seed=3).get_params() == {
        **calibrator.get_params(), "recipe": PaperRecipe(learning_rate=1e-3), "folds": 6, "seed": 3,
    }  # fmt: skip


@pytest.mark.parametrize("folds", [None, 3, 7])
def test_the_published_search_is_over_20_folds_or_as_many_as_said(problem: Any, folds: int | None) -> None:
    rows, labels = problem.embeddings, problem.labels
    fitted = identity(bandwidth="published", folds=folds).fit(rows, labels)
    n_folds = 20 if folds is None else folds
    keys = fold_codes(labels, n_folds, None, 0)
    assert len(np.unique(keys)) == n_folds
    assert fitted.bandwidth_curve_.n_folds == n_folds
    assert fitted.bandwidth_curve_.loss == pytest.approx(loss_over(keys, problem)(fitted.bandwidth_), rel=1e-9)
    assert f"log-loss over {n_folds} folds" in fitted.summary()


def test_the_published_search_leaves_out_groups_where_they_are_fewer_than_folds(problem: Any) -> None:
    groups = np.arange(240) % 5
    fitted = identity(bandwidth="published").fit(problem.embeddings, problem.labels, groups=groups)
    assert fitted.bandwidth_curve_.n_folds == 5
    assert fitted.bandwidth_curve_.loss == pytest.approx(loss_over(groups, problem)(fitted.bandwidth_), rel=1e-9)


def test_the_only_member_of_a_class_costs_the_published_clip(problem: Any) -> None:
    """Brute force over the folds, with probabilities of at least 1e-10; the member is predicted without its class."""
    rows, labels = problem.embeddings[:60].astype(np.float64), problem.labels[:60].copy()
    labels[0] = 7
    fitted = identity(bandwidth="published").fit(rows, labels)
    keys = fold_codes(np.unique(labels, return_inverse=True)[1], 20, None, 0)
    losses = []
    for i in range(60):
        squares = ((rows - rows[i]) ** 2).sum(axis=1)
        mass = np.exp(-squares / (2 * rows.shape[1] * fitted.bandwidth_**2)) * (keys != keys[i])
        losses.append(-np.log(max(mass[labels == labels[i]].sum() / mass.sum(), 1e-10)))
    assert losses[0] == pytest.approx(23.03, abs=0.01)
    assert max(losses[1:]) < 23
    assert fitted.bandwidth_curve_.loss == pytest.approx(np.mean(losses), rel=1e-9)


def test_a_training_for_many_calibration_sets_monitors_the_given_one(problem: Any) -> None:
    """It is the training of a fit on that set; without it, the training loss decides, and the rates are others."""
    recipe = PaperRecipe(epochs=6, batches_per_epoch=5, learning_rate=1.0, patience=0)
    rows, labels = problem.embeddings[:40], problem.labels[:40]
    data = (problem.train_embeddings, problem.train_labels)
    fitted = KCal.as_published(recipe=recipe).fit(rows, labels, train_embeddings=data[0], train_labels=data[1])
    shared, alone = (train_projection(*data, recipe=recipe, monitored=given) for given in ((rows, labels), None))
    assert replace(fitted.training_curve_, chosen_step=None) == shared.curve
    assert shared.curve.learning_rates != alone.curve.learning_rates
    expected = fitted.projection_.state_dict()
    for name, value in shared.module.state_dict().items():
        torch.testing.assert_close(value.to(expected[name]), expected[name], msg=name)
