"""The recipes: every number a parameter, and every impossible one refused."""

import dataclasses

import numpy as np
import pytest
import torch

from kcal.errors import InvalidInputError
from kcal.projection import RECIPES, FastRecipe, PaperRecipe, get_recipe, start_projection, train_projection


def test_the_paper_recipe_holds_the_papers_numbers():
    assert dataclasses.asdict(PaperRecipe()) == {
        "learning_rate": 4e-4,
        "epochs": 100,
        "batches_per_epoch": 5000,
        "predictions": 64,
        "background_per_class": 20,
        "bandwidth": 1.0,
        "factor": 0.5,
        "patience": 10,
        "least_learning_rate": 1e-5,
        "monitor": "calibration",
        "largest_dimension": "auto",
    }


def test_the_paper_recipe_knows_the_numbers_of_each_data_set():
    for data_set in ("cifar10", "cifar100", "svhn", "iiic"):
        assert PaperRecipe.for_data_set(data_set) == PaperRecipe()
    for data_set in ("isruc", "pn2017"):
        assert PaperRecipe.for_data_set(data_set) == PaperRecipe(learning_rate=1e-3)
    imagenet = PaperRecipe.for_data_set("imagenet")
    assert imagenet == PaperRecipe(learning_rate=5e-2, patience=15)
    with pytest.raises(InvalidInputError, match=r"^data_set must be one of .*mnist"):
        PaperRecipe.for_data_set("mnist")


@pytest.mark.parametrize(("n_classes", "dimension"), [(2, 32), (999, 32), (1_000, 128), (5_000, 128)])
def test_the_papers_dimension_is_32_and_128_from_1000_classes_on(n_classes, dimension):
    rows, limits = torch.zeros(1, 200), PaperRecipe(largest_dimension=7)
    for recipe, expected in ((PaperRecipe(), dimension), (limits, 7), (FastRecipe(), 128)):
        module = start_projection("linear", rows, "auto", recipe, 0, n_classes=n_classes)
        assert module(torch.zeros(2, 200)).shape == (2, expected)


def test_a_training_counts_its_classes():
    labels = np.arange(1_001)
    rows = np.random.default_rng(0).normal(size=(1_001, 130)).astype(np.float32)
    recipe = PaperRecipe(epochs=1, batches_per_epoch=1, background_per_class=1)
    for n_classes, dimension in ((999, 32), (1_001, 128)):
        trained = train_projection(rows, labels % n_classes, recipe=recipe, progress=False)
        assert trained.module(torch.from_numpy(rows[:2])).shape == (2, dimension)


@pytest.mark.parametrize(
    ("steps", "checkpoints", "marks"),
    [
        (400, 7, (0, 12, 25, 50, 100, 200, 400)),
        (400, 3, (0, 200, 400)),
        (400, 2, (0, 400)),
        (400, 1, (400,)),
        (1, 1, (1,)),
        (1, 7, (0, 1)),
        (5, 7, (0, 1, 2, 5)),
        (1000, 4, (0, 250, 500, 1000)),
    ],
)
def test_checkpoints_are_kept_at_the_start_and_at_halvings_of_the_steps(steps, checkpoints, marks):
    assert FastRecipe(checkpoints=checkpoints).marks(steps) == marks


@pytest.mark.parametrize(("n_samples", "steps"), [(5, 40), (500, 40), (2_000, 80), (9_000, 360), (50_000, 400)])
def test_steps_follow_the_size_of_the_training_set(n_samples, steps):
    assert FastRecipe().steps_for(n_samples) == steps
    assert FastRecipe(steps=7).steps_for(n_samples) == 7
    assert FastRecipe(batch_size=5_000).steps_for(50) == 40
    assert FastRecipe(batch_size=50_000).steps_for(20_000) == 40


def test_directions_are_taken_from_sixteen_features_on_unless_told():
    assert [FastRecipe().takes_directions(n) for n in (2, 15, 16, 512)] == [False, False, True, True]
    assert FastRecipe(unit_length=True).takes_directions(2)
    assert not FastRecipe(unit_length=False).takes_directions(512)
    for value in ("yes", 1, None):
        with pytest.raises(InvalidInputError, match="unit_length must be one of 'auto', True, False"):
            FastRecipe(unit_length=value)


def test_class_weights_are_balanced_or_none():
    assert FastRecipe().class_weights is None
    assert FastRecipe(class_weights="balanced").class_weights == "balanced"
    for value in ("inverse", True, [1.0, 2.0]):
        with pytest.raises(InvalidInputError, match="class_weights must be one of None, 'balanced'"):
            FastRecipe(class_weights=value)


@pytest.mark.parametrize("value", [0, -1, float("nan")])
@pytest.mark.parametrize(
    "name", ["steps", "batch_size", "learning_rate", "bandwidth", "checkpoints", "largest_dimension"]
)
def test_numbers_of_the_fast_recipe_must_be_positive(name, value):
    with pytest.raises(
        InvalidInputError, match=f"^{name} must be (an integer from 1 to|a number strictly between 0 and) .*; got"
    ):
        FastRecipe(**{name: value})


@pytest.mark.parametrize("value", [0, -1, float("nan")])
@pytest.mark.parametrize(
    "name", ["learning_rate", "epochs", "batches_per_epoch", "predictions", "background_per_class", "bandwidth"]
)
def test_numbers_of_the_paper_recipe_must_be_positive(name, value):
    with pytest.raises(
        InvalidInputError, match=f"^{name} must be (an integer from 1 to|a number strictly between 0 and) .*; got"
    ):
        PaperRecipe(**{name: value})


@pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf"), "1", None, True, 10**400])
@pytest.mark.parametrize(
    ("recipe", "name", "expected"),
    [
        (PaperRecipe, "least_learning_rate", r"between 0 and 1e\+12"),
        (PaperRecipe, "factor", "strictly between 0 and 1"),
        (FastRecipe, "weight_decay", r"between 0 and 1e\+12"),
        (FastRecipe, "warm_up", "between 0 and 0.99"),
    ],
)
def test_a_number_out_of_its_range_is_named_with_the_range(recipe, name, expected, value):
    with pytest.raises(InvalidInputError, match=f"^{name} must be a number {expected}; got"):
        recipe(**{name: value})


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        (FastRecipe, "steps"),
        (FastRecipe, "batch_size"),
        (FastRecipe, "checkpoints"),
        (FastRecipe, "largest_dimension"),
        (PaperRecipe, "epochs"),
        (PaperRecipe, "predictions"),
        (PaperRecipe, "largest_dimension"),
    ],
)
def test_a_number_that_would_exhaust_time_or_memory_is_refused(recipe, name):
    with pytest.raises(InvalidInputError, match=f"^{name} must be an integer from 1 to"):
        recipe(**{name: 10**9})


def test_zero_is_a_number_where_nothing_is_divided_by_it():
    assert PaperRecipe(least_learning_rate=0, patience=0).least_learning_rate == 0
    assert FastRecipe(weight_decay=0.0, warm_up=0.0).warm_up == 0


def test_numbers_of_numpy_are_numbers():
    recipe = FastRecipe(steps=np.int64(5), batch_size=np.uint8(7), learning_rate=np.float32(0.5), warm_up=np.int64(0))
    assert recipe == FastRecipe(steps=5, batch_size=7, learning_rate=0.5, warm_up=0)
    assert {type(value) for value in dataclasses.asdict(recipe).values()} == {int, float, str, type(None)}
    assert PaperRecipe(epochs=np.int32(2), factor=np.float64(0.25)) == PaperRecipe(epochs=2, factor=0.25)
    with pytest.raises(InvalidInputError, match="steps must be an integer"):
        FastRecipe(steps=np.float64(5))


@pytest.mark.parametrize(
    ("recipe", "options"),
    [(FastRecipe, {"start": "zero"}), (FastRecipe, {"select": "best"}), (PaperRecipe, {"monitor": "test"})],
)
def test_a_word_that_a_recipe_does_not_know_is_refused(recipe, options):
    with pytest.raises(InvalidInputError, match=f"^{next(iter(options))} must be one of"):
        recipe(**options)


def test_a_recipe_is_found_by_name_or_is_itself():
    assert get_recipe("fast") == FastRecipe()
    assert get_recipe("paper") == PaperRecipe()
    assert set(RECIPES) == {"fast", "paper"}
    mine = FastRecipe(steps=3)
    assert get_recipe(mine) is mine


@pytest.mark.parametrize("recipe", ["slow", "", None, 3, FastRecipe])
def test_an_unknown_recipe_is_refused(recipe):
    with pytest.raises(InvalidInputError, match='recipe must be "fast", "paper", a FastRecipe or a PaperRecipe; got'):
        get_recipe(recipe)


def test_recipes_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FastRecipe().steps = 3
