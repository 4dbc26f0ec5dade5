"""Training Π: it learns, it repeats itself bit by bit, and it touches nothing that is not its own."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from kcal import FastRecipe, KCal, PaperRecipe, train_projection
from kcal.errors import InvalidInputError
from kcal.projection import ResidualProjection, project

FAST = FastRecipe(steps=8, batch_size=120, learning_rate=0.05, checkpoints=3)
PAPER = PaperRecipe(
    learning_rate=0.05, epochs=2, batches_per_epoch=4, predictions=16, background_per_class=8, monitor="training"
)
RECIPES = pytest.mark.parametrize("recipe", [FAST, PAPER], ids=["fast", "paper"])


def problem(seed=0, n=240, h=12, n_classes=3, dtype=np.float32):
    """Classes differ in two directions only; the other coordinates are louder noise."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(n_classes, size=n)
    rows = 4.0 * generator.normal(size=(n, h))
    rows[:, :2] = generator.normal(size=(n_classes, 2))[labels] * 3 + 0.5 * generator.normal(size=(n, 2))
    return (rows @ generator.normal(size=(h, h))).astype(dtype), labels


def state_of(*data, **options):
    return train_projection(*data, **options).module.state_dict()


def same_bits(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "recipe", [dataclasses.replace(FAST, steps=80), dataclasses.replace(PAPER, epochs=6, batches_per_epoch=30)]
)
@pytest.mark.parametrize("projection", ["residual", "linear"])
def test_training_lowers_the_loss_on_fresh_samples(recipe, projection):
    rows, labels = problem(n=500)
    trained = train_projection(rows[:240], labels[:240], projection=projection, dimension=4, recipe=recipe)
    start = dataclasses.replace(recipe, **({"steps": 1} if isinstance(recipe, FastRecipe) else {"learning_rate": 1e-4}))
    first = train_projection(rows[:240], labels[:240], projection=projection, dimension=4, recipe=start)
    before, after = (
        KCal(projection=module).fit(rows[240:], labels[240:]).bandwidth_curve_.loss
        for module in (first.checkpoints[0], trained.module)
    )
    assert after < 0.7 * before
    assert trained.curve.losses[-1] < trained.curve.losses[0]
    assert trained.curve.steps[-1] == trained.steps[-1] == (80 if isinstance(recipe, FastRecipe) else 180)


@RECIPES
def test_same_seed_gives_the_same_bits(recipe):
    data = problem()
    one, same, other = (state_of(*data, dimension=3, recipe=recipe, seed=seed) for seed in (0, 0, 1))
    assert same_bits(one, same)
    assert not same_bits(one, other)


@RECIPES
def test_global_generators_are_left_alone_and_do_not_matter(recipe):
    data = problem()
    module = nn.Sequential(nn.Linear(12, 3), nn.Dropout(0.2))
    torch.manual_seed(5)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    one = state_of(*data, projection=module, recipe=recipe)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002
    torch.manual_seed(6)
    assert same_bits(one, state_of(*data, projection=module, recipe=recipe))


@RECIPES
def test_names_of_groups_play_no_part(recipe):
    groups = np.arange(240) % 12
    names = np.array(list("kaxczbqdyewf"))[groups]
    one, other = (train_projection(*problem(), dimension=3, recipe=recipe, groups=keys) for keys in (groups, names))
    assert one.curve == other.curve


@RECIPES
@pytest.mark.parametrize("n_threads", [1, 2])
def test_number_of_threads_is_restored_and_does_not_matter(recipe, n_threads):
    data, before = problem(), torch.get_num_threads()
    expected = state_of(*data, dimension=3, recipe=recipe)
    try:
        torch.set_num_threads(n_threads)
        assert same_bits(expected, state_of(*data, dimension=3, recipe=recipe))
        assert torch.get_num_threads() == n_threads
    finally:
        torch.set_num_threads(before)


@RECIPES
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_checkpoints_are_frozen_in_the_precision_of_the_embeddings(recipe, dtype):
    rows, labels = problem(dtype=dtype)
    trained = train_projection(rows, labels, dimension=3, recipe=recipe)
    assert trained.module is trained.checkpoints[-1]
    assert len(trained.checkpoints) == len(trained.steps) == (3 if recipe is FAST else 1)
    for module in trained.checkpoints:
        assert not module.training
        assert not any(parameter.requires_grad for parameter in module.parameters())
        assert {parameter.dtype for parameter in module.parameters()} == {torch.from_numpy(rows).dtype}


def test_more_checkpoints_only_sample_the_path_more_often():
    data = problem()
    few = train_projection(*data, dimension=3, recipe=FAST)
    many = train_projection(*data, dimension=3, recipe=dataclasses.replace(FAST, checkpoints=5))
    assert few.steps == (0, 4, 8)
    assert many.steps == (0, 1, 2, 4, 8)
    for step, module in zip(few.steps, few.checkpoints, strict=True):
        assert same_bits(module.state_dict(), many.checkpoints[many.steps.index(step)].state_dict())


def test_first_fast_checkpoint_is_the_start():
    rows, labels = problem(dtype=np.float64)
    start = ResidualProjection(12, 3).double()
    start.start_from(torch.from_numpy(rows))
    assert same_bits(
        start.state_dict(), train_projection(rows, labels, dimension=3, recipe=FAST).checkpoints[0].state_dict()
    )
    torch.manual_seed(7)
    random = ResidualProjection(12, 3).double()
    recipe = dataclasses.replace(FAST, start="random")
    trained = train_projection(rows, labels, dimension=3, recipe=recipe, seed=7)
    assert same_bits(random.state_dict(), trained.checkpoints[0].state_dict())


@RECIPES
def test_frozen_parameters_stay_beside_those_that_learn(recipe):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(12, 4).requires_grad_(False), nn.Linear(4, 4)
            self.mask = nn.Parameter(torch.tensor([0.0, -torch.inf, 0.0, 0.0]), requires_grad=False)
            self.places = nn.Parameter(torch.tensor([2, 0, 1, 3]), requires_grad=False)

        def forward(self, rows):
            return self.second(self.first(rows))[:, self.places].masked_fill(torch.isinf(self.mask), 0.0)

    module = Masked()
    trained = train_projection(*problem(), projection=module, recipe=recipe).module
    assert torch.equal(trained.first.weight, module.first.weight)
    assert not torch.equal(trained.second.weight, module.second.weight)
    assert trained.mask.tolist() == [0.0, -np.inf, 0.0, 0.0]


def test_recipe_decides_the_dimension_and_whether_lengths_count():
    generator = np.random.default_rng(0)
    rows, labels = generator.normal(size=(300, 140)), generator.integers(0, 3, 300)
    fast = train_projection(rows, labels, recipe=FastRecipe(steps=2, batch_size=60)).module
    paper = train_projection(rows, labels, recipe=PaperRecipe(epochs=1, batches_per_epoch=2)).module
    assert (fast.reduce.out_features, bool(fast.unit_length)) == (128, True)
    assert (paper.reduce.out_features, bool(paper.unit_length)) == (32, False)
    torch.testing.assert_close(fast(torch.from_numpy(rows)), fast(torch.from_numpy(3.0 * rows)))


@pytest.mark.parametrize(("n_classes", "dimension"), [(999, 32), (1_000, 128)])
def test_papers_dimension_is_32_and_128_from_1000_classes(n_classes, dimension):
    rows, recipe = np.random.default_rng(0).normal(size=(4, 200)), PaperRecipe(epochs=1, batches_per_epoch=1)
    for largest, expected in (("auto", dimension), (7, 7)):
        given = dataclasses.replace(recipe, max_dimension=largest)
        module = train_projection(rows, [0, 1, 0, 1], recipe=given, classes=range(n_classes)).module
        assert module.reduce.out_features == expected


@RECIPES
def test_class_without_training_samples_does_no_harm(recipe):
    rows, labels = problem()
    trained = train_projection(rows, labels, dimension=3, recipe=recipe, classes=[7, 2, 1, 0])
    assert trained.classes.tolist() == [7, 2, 1, 0]
    assert torch.isfinite(project(trained.module, torch.from_numpy(rows))).all()


@RECIPES
@pytest.mark.parametrize("n", [2, 3, 5])
def test_smallest_training_sets_give_finite_projections(recipe, n):
    rows, labels = problem()
    chosen = np.concatenate([np.flatnonzero(labels == k)[: -(-n // 2)] for k in (0, 1)])[:n]
    trained = train_projection(rows[chosen], labels[chosen], dimension=2, recipe=recipe)
    assert torch.isfinite(project(trained.module, torch.from_numpy(rows))).all()


def test_group_is_not_predicted_from_itself():
    """Each group lies elsewhere and has one label: only a sample's own group gives its label away."""
    generator = np.random.default_rng(7)
    groups = np.repeat(np.arange(20), 12)
    labels = np.where(generator.random(20) < 0.5, 0, 1)[groups]
    rows = (5.0 * generator.normal(size=(20, 6))[groups] + 0.3 * generator.normal(size=(240, 6))).astype(np.float32)
    recipe = FastRecipe(steps=10, batch_size=240, learning_rate=1e-4)
    assert max(train_projection(rows, labels, recipe=recipe).curve.losses) < 0.05
    assert min(train_projection(rows, labels, recipe=recipe, groups=groups).curve.losses) > 0.5


@RECIPES
@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"labels": np.zeros(240, dtype=int), "classes": [0, 1]}, "train_labels"),
        ({"groups": np.zeros(240)}, "train_groups"),
        ({"projection": nn.Identity()}, "projection"),
        ({"projection": nn.Linear(12, 2).requires_grad_(False)}, "projection"),
        *(({"projection": value}, "projection") for value in ("mlp", ["residual"], {})),
        ({"dimension": 13}, "dimension"),
        *(({"dimension": value}, "dimension") for value in (0, 2.0, True, "32", None)),
        ({"seed": -1}, "seed"),
    ],
)
def test_impossible_training_is_refused_by_name(recipe, options, name):
    rows, labels = problem()
    with pytest.raises(InvalidInputError, match=f"^{name} "):
        train_projection(rows, **{"labels": labels, "recipe": recipe, **options})


def rates(recipe, **changes):
    """Learning rates and losses of a training, epoch by epoch."""
    numbers = {"batches_per_epoch": 2, "predictions": 8, "background_per_class": 4, "monitor": "training", **changes}
    curve = train_projection(*problem(), dimension=3, recipe=dataclasses.replace(recipe, **numbers)).curve
    return curve.learning_rates, curve.losses


@pytest.mark.parametrize("patience", [0, 2])
@pytest.mark.parametrize("factor", [0.5, 0.8])
def test_paper_rate_falls_on_a_plateau(patience, factor):
    """By torch's default threshold, which the paper used: a loss is lower from a ten-thousandth on."""
    recipe = PaperRecipe(learning_rate=0.4, epochs=20, patience=patience, factor=factor, min_learning_rate=0.05)
    found, losses = rates(recipe)
    rate, best, waited, expected = 0.4, np.inf, 0, []
    for loss in losses:
        expected.append(rate)
        waited = 0 if loss < best * (1 - 1e-4) else waited + 1
        best = min(best, loss) if waited == 0 else best
        if waited > patience:
            rate, waited = factor * rate, 0
    assert found == pytest.approx(expected)
    assert len(set(expected)) > 1
    assert (len(expected) < 20) == (rate < 0.05)  # the training ends below the least rate
    assert min(expected) >= 0.05


@pytest.mark.parametrize("monitor", ["calibration", "training"])
def test_calibration_set_decides_about_the_rate_only_if_it_is_monitored(monitor):
    """Calibration labels are noise: their loss grows, and the rate falls epoch by epoch."""
    rows, labels = problem()
    recipe = PaperRecipe(learning_rate=0.05, epochs=8, batches_per_epoch=20, patience=0, monitor=monitor)
    fitted = KCal(recipe=recipe, dimension=3, bandwidth=1.0).fit(
        rows[:60] + 1, labels[100:160], train_embeddings=rows, train_labels=labels
    )
    alone = train_projection(rows, labels, dimension=3, recipe=recipe)
    same = fitted.training_curve_.learning_rates == alone.curve.learning_rates
    assert same == (monitor == "training")


@pytest.mark.parametrize("warm_up", [0.0, 0.2, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 20])
def test_fast_rate_rises_and_falls(steps, warm_up):
    """Learning rates as recorded, one training for each last step; by a linear rise and half a cosine."""
    recipe = FastRecipe(steps=steps, batch_size=40, warm_up=warm_up, checkpoints=64, learning_rate=0.1)
    trained = train_projection(*problem(), dimension=3, recipe=recipe)
    rise = warm_up * steps
    for step, rate in zip(trained.curve.steps, trained.curve.learning_rates, strict=True):
        fall = 0.5 * (1 + np.cos(np.pi * (step - rise) / max(steps - rise, 1)))
        assert rate == pytest.approx(0.1 * ((step + 1) / (rise + 1) if step < rise else fall), abs=1e-12)
    assert np.isfinite(trained.curve.losses).all()
