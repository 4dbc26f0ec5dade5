"""The recipes: every number a parameter, and every impossible one refused."""

import dataclasses

import numpy as np
import pytest

from kcal import FastRecipe, PaperRecipe, train_projection
from kcal.errors import InvalidInputError


def test_paper_recipe_has_the_papers_numbers():
    assert dataclasses.asdict(PaperRecipe()) == {
        "learning_rate": 4e-4,
        "epochs": 100,
        "batches_per_epoch": 5000,
        "predictions": 64,
        "background_per_class": 20,
        "bandwidth": pytest.approx(0.5**0.5),
        "factor": 0.5,
        "patience": 10,
        "min_learning_rate": 1e-5,
        "monitor": "calibration",
        "max_dimension": "auto",
    }
    for data_set in ("cifar10", "cifar100", "svhn", "iiic"):
        assert PaperRecipe.for_data_set(data_set) == PaperRecipe()
    for data_set in ("isruc", "pn2017"):
        assert PaperRecipe.for_data_set(data_set) == PaperRecipe(learning_rate=1e-3)
    assert PaperRecipe.for_data_set("imagenet") == PaperRecipe(learning_rate=5e-2, patience=15)
    with pytest.raises(InvalidInputError, match=r"^data_set "):
        PaperRecipe.for_data_set("mnist")


@pytest.mark.parametrize(
    ("steps", "checkpoints", "marks"),
    [
        (400, 7, (0, 12, 25, 50, 100, 200, 400)),
        (400, 2, (0, 400)),
        (400, 1, (400,)),
        (1, 1, (1,)),
        (1, 7, (0, 1)),
        (5, 7, (0, 1, 2, 5)),
    ],
)
def test_checkpoints_are_kept_at_the_start_and_at_halvings_of_the_steps(steps, checkpoints, marks):
    assert FastRecipe(checkpoints=checkpoints).marks(steps) == marks


@pytest.mark.parametrize(("n_samples", "steps"), [(5, 40), (500, 40), (2_000, 80), (9_000, 360), (50_000, 400)])
def test_steps_follow_the_size_of_the_training_set(n_samples, steps):
    assert FastRecipe().steps_for(n_samples) == steps
    assert FastRecipe(steps=7).steps_for(n_samples) == 7
    assert FastRecipe(batch_size=50_000).steps_for(n_samples) == 40


@pytest.mark.parametrize(
    ("unit_length", "expected"), [("auto", [False, False, True, True]), (True, [True] * 4), (False, [False] * 4)]
)
def test_directions_are_taken_from_sixteen_features(unit_length, expected):
    assert [FastRecipe(unit_length=unit_length).takes_directions(n) for n in (2, 15, 16, 512)] == expected


NUMBERS = [
    *((FastRecipe, name) for name in ("steps", "batch_size", "learning_rate", "bandwidth", "checkpoints")),
    *((PaperRecipe, name) for name in ("learning_rate", "epochs", "batches_per_epoch", "predictions", "bandwidth")),
    *((PaperRecipe, name) for name in ("background_per_class", "factor", "max_dimension")),
    (FastRecipe, "max_dimension"),
]
FROM_ZERO = [(PaperRecipe, "min_learning_rate"), (FastRecipe, "weight_decay"), (FastRecipe, "warm_up")]
WORDS = [(FastRecipe, "start"), (FastRecipe, "select"), (FastRecipe, "sampling"), (FastRecipe, "class_weights")]
WORDS += [(FastRecipe, "unit_length"), (PaperRecipe, "monitor")]


@pytest.mark.parametrize(
    ("recipe", "name", "value"),
    [
        *((*place, value) for place in NUMBERS for value in (0, float("nan"), "1", True)),
        *((*place, value) for place in FROM_ZERO for value in (-0.5, float("inf"), None)),
        *((*place, value) for place in WORDS for value in ("other", 1)),
        *((recipe, "bandwidth", 1e-308) for recipe in (FastRecipe, PaperRecipe)),
        (FastRecipe, "steps", 2.5),
        (FastRecipe, "steps", "many"),
        (FastRecipe, "warm_up", 1.0),
        (PaperRecipe, "factor", 1.5),
        (PaperRecipe, "patience", -1),
    ],
)
def test_impossible_value_is_refused_by_name(recipe, name, value):
    with pytest.raises(InvalidInputError, match=f"^{name} must be"):
        recipe(**{name: value})


def test_numbers_of_numpy_become_pythons():
    recipe = FastRecipe(steps=np.int64(5), batch_size=np.uint8(7), learning_rate=np.float32(0.5), warm_up=np.int64(0))
    assert recipe == FastRecipe(steps=5, batch_size=7, learning_rate=0.5, warm_up=0)
    assert {type(value) for value in dataclasses.asdict(recipe).values()} == {int, float, str, type(None)}


@pytest.mark.parametrize("recipe", ["slow", "", None, 3, FastRecipe])
def test_unknown_recipe_is_refused(recipe):
    with pytest.raises(InvalidInputError, match=r"^recipe must be"):
        train_projection(np.eye(4), [0, 1, 0, 1], recipe=recipe)
