"""Training Π: it learns, it repeats itself bit by bit, and it touches nothing that is not its own."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from kcal.errors import InvalidInputError
from kcal.kernels import LeaveOutLoss, sort_support
from kcal.projection import (
    FastRecipe,
    PaperRecipe,
    TrainedProjection,
    build_projection,
    project,
    start_projection,
    train_checkpoints,
    train_projection,
)
from kcal.projection import training as training_module
from kcal.projection.episodes import StratifiedBatches
from kcal.samples import check_samples

FAST = FastRecipe(steps=80, batch_size=120, learning_rate=0.05, checkpoints=3)
PAPER = PaperRecipe(
    learning_rate=0.05, epochs=6, batches_per_epoch=30, predictions=16, background_per_class=8, monitor="training"
)
RECIPES = pytest.mark.parametrize("recipe", [FAST, PAPER], ids=["fast", "paper"])
FEW_STEPS, FEW_BATCHES = dataclasses.replace(FAST, steps=8), dataclasses.replace(PAPER, epochs=2, batches_per_epoch=4)
SHORT_RECIPES = pytest.mark.parametrize("recipe", [FEW_STEPS, FEW_BATCHES], ids=["fast", "paper"])


def problem(seed=0, n=240, h=12, n_classes=3, dtype=np.float32):
    """Classes differ in two directions only; the other coordinates are louder noise."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(n_classes, size=n)
    rows = 4.0 * generator.normal(size=(n, h))
    rows[:, :2] = generator.normal(size=(n_classes, 2))[labels] * 3 + 0.5 * generator.normal(size=(n, 2))
    return (rows @ generator.normal(size=(h, h))).astype(dtype), labels


def held_out_loss(module, seed=0):
    """Leave-one-out loss of fresh samples of the same problem, at the best of a few bandwidths."""
    rows, labels = problem(seed, n=500)
    rows, labels = torch.from_numpy(rows[240:]), torch.from_numpy(labels[240:])
    loss = LeaveOutLoss(sort_support(project(module, rows), labels, 3))
    return min(loss(bandwidth) for bandwidth in (0.25, 0.5, 1.0, 2.0, 4.0))


def split_problem():
    rows, labels = problem(0, n=500)
    return rows[:240], labels[:240]


def state_of(trained):
    return trained.module.state_dict()


def same_bits(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@RECIPES
@pytest.mark.parametrize("projection", ["skip", "linear"])
def test_training_lowers_the_loss_on_fresh_samples(recipe, projection):
    rows, labels = split_problem()
    start = start_projection(projection, torch.from_numpy(rows), 4, recipe, 0, n_classes=3)
    if recipe is FAST:
        start.start_from(torch.from_numpy(rows))
    else:
        start.train()(torch.from_numpy(rows))  # give the batch norm the data's statistics
    trained = train_projection(rows, labels, projection=projection, dimension=4, recipe=recipe)
    assert held_out_loss(trained.module) < 0.7 * held_out_loss(start)


@RECIPES
def test_the_training_curve_falls_and_ends_with_the_last_step(recipe):
    rows, labels = split_problem()
    curve = train_projection(rows, labels, dimension=4, recipe=recipe).curve
    assert curve.losses[-1] < curve.losses[0]
    assert list(curve.steps) == sorted(set(curve.steps))
    assert curve.steps[-1] == (80 if recipe is FAST else 180)
    assert len(curve.steps) == len(curve.losses) == len(curve.learning_rates)


@SHORT_RECIPES
def test_the_same_seed_gives_the_same_bits_and_another_does_not(recipe):
    rows, labels = problem()
    one, same, other = (
        state_of(train_projection(rows, labels, dimension=3, recipe=recipe, seed=seed)) for seed in (0, 0, 1)
    )
    assert same_bits(one, same)
    assert not same_bits(one, other)


@SHORT_RECIPES
def test_the_global_generators_are_left_alone_and_do_not_matter(recipe):
    rows, labels = problem()
    module = nn.Sequential(nn.Linear(12, 3), nn.Dropout(0.2))
    torch.manual_seed(5)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    one = state_of(train_projection(rows, labels, projection=module, recipe=recipe))
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002
    torch.manual_seed(6)
    assert same_bits(one, state_of(train_projection(rows, labels, projection=module, recipe=recipe)))


@SHORT_RECIPES
def test_a_module_of_the_users_is_copied_not_changed(recipe):
    rows, labels = problem()
    module = build_projection("skip", 12, 3, seed=4).eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trained = train_projection(rows, labels, projection=module, recipe=recipe)
    assert same_bits(before, module.state_dict())
    assert not module.training
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert not same_bits(before, state_of(trained))


@SHORT_RECIPES
def test_checkpoints_are_frozen_and_ready_to_use(recipe):
    rows, labels = problem()
    trained = train_projection(rows, labels, dimension=3, recipe=recipe)
    assert trained.module is trained.checkpoints[-1]
    assert len(trained.checkpoints) == len(trained.steps) == (3 if recipe is FEW_STEPS else 1)
    for module in trained.checkpoints:
        assert not module.training
        assert not any(parameter.requires_grad for parameter in module.parameters())
    assert (
        repr(trained)
        == f"TrainedProjection(SkipProjection, steps={trained.steps[-1]}, checkpoints={len(trained.steps)})"
    )


@SHORT_RECIPES
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_precision_of_the_embeddings_is_kept(recipe, dtype):
    rows, labels = problem(dtype=dtype)
    trained = train_projection(rows, labels, dimension=3, recipe=recipe)
    wanted = torch.from_numpy(rows).dtype
    assert {parameter.dtype for parameter in trained.module.parameters()} == {wanted}
    assert project(trained.module, torch.from_numpy(rows)).dtype == wanted


@SHORT_RECIPES
def test_every_kind_of_array_trains_alike(recipe):
    rows, labels = problem()
    names = np.array(["ant", "bee", "cat"])[labels]
    one = train_projection(rows, labels, dimension=3, recipe=recipe)
    for given, given_labels in (
        (torch.from_numpy(rows), torch.from_numpy(labels)),
        (rows[::-1].copy()[::-1], names),
        (rows, labels.tolist()),
    ):
        assert same_bits(state_of(one), state_of(train_projection(given, given_labels, dimension=3, recipe=recipe)))
    assert train_projection(rows, names, dimension=3, recipe=recipe).classes.tolist() == ["ant", "bee", "cat"]


def test_the_fast_checkpoints_are_a_path_that_more_checkpoints_only_sample_more_often():
    rows, labels = problem()
    few = train_projection(rows, labels, dimension=3, recipe=FEW_STEPS)
    many = train_projection(rows, labels, dimension=3, recipe=dataclasses.replace(FEW_STEPS, checkpoints=5))
    assert few.steps == (0, 4, 8)
    assert many.steps == (0, 1, 2, 4, 8)
    for step, module in zip(few.steps, few.checkpoints, strict=True):
        assert same_bits(module.state_dict(), many.checkpoints[many.steps.index(step)].state_dict())


def test_the_first_fast_checkpoint_is_the_start():
    rows, labels = problem(dtype=np.float64)
    start = start_projection("skip", torch.from_numpy(rows), 3, FAST, 0, n_classes=3)
    start.start_from(torch.from_numpy(rows))
    trained = train_projection(rows, labels, dimension=3, recipe=FEW_STEPS)
    assert same_bits(start.state_dict(), trained.checkpoints[0].state_dict())
    random = train_projection(rows, labels, dimension=3, recipe=FastRecipe(steps=4, batch_size=60, start="random"))
    untouched = start_projection("skip", torch.from_numpy(rows), 3, FAST, 0, n_classes=3)
    assert same_bits(untouched.state_dict(), random.checkpoints[0].state_dict())


def test_what_is_not_learned_is_left_as_it_is():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(12, 4)
            self.mask = nn.Parameter(torch.tensor([0.0, -torch.inf, 0.0, 0.0]), requires_grad=False)
            self.places = nn.Parameter(torch.tensor([2, 0, 1, 3]), requires_grad=False)

        def forward(self, rows):
            return self.linear(rows)[:, self.places].masked_fill(torch.isinf(self.mask), 0.0)

    rows, labels = split_problem()
    trained = train_projection(rows, labels, projection=Masked(), recipe=FEW_STEPS)
    assert trained.module.mask.tolist() == [0.0, -np.inf, 0.0, 0.0]
    assert np.isfinite(project(trained.module, torch.from_numpy(rows)).numpy()).all()


def test_the_recipe_decides_the_dimension_and_whether_lengths_count():
    generator = np.random.default_rng(0)
    rows, labels = generator.normal(size=(300, 140)), generator.integers(0, 3, 300)
    fast = train_projection(rows, labels, recipe=FastRecipe(steps=2, batch_size=60)).module
    paper = train_projection(rows, labels, recipe=PaperRecipe(epochs=1, batches_per_epoch=2)).module
    assert (fast.reduce.out_features, bool(fast.unit_length)) == (128, True)
    assert (paper.reduce.out_features, bool(paper.unit_length)) == (32, False)
    with torch.no_grad():
        torch.testing.assert_close(fast(torch.from_numpy(rows)), fast(torch.from_numpy(3.0 * rows)))


def test_a_class_without_training_samples_is_known_and_does_no_harm():
    rows, labels = problem()
    for recipe in (FEW_STEPS, FEW_BATCHES):
        trained = train_projection(rows, labels, dimension=3, recipe=recipe, classes=[7, 2, 1, 0])
        assert trained.classes.tolist() == [7, 2, 1, 0]
        assert torch.isfinite(project(trained.module, torch.from_numpy(rows))).all()


def test_a_group_is_not_judged_by_itself_in_the_fast_recipe():
    """Each group lies elsewhere and has one label: only a sample's own group gives its label away."""
    generator = np.random.default_rng(7)
    groups = np.repeat(np.arange(20), 12)
    labels = np.where(generator.random(20) < 0.5, 0, 1)[groups]
    rows = (5.0 * generator.normal(size=(20, 6))[groups] + 0.3 * generator.normal(size=(240, 6))).astype(np.float32)
    recipe = FastRecipe(steps=10, batch_size=240, learning_rate=1e-4)
    alone = train_projection(rows, labels, dimension=6, recipe=recipe)
    grouped = train_projection(rows, labels, dimension=6, recipe=recipe, groups=groups)
    assert max(alone.curve.losses) < 0.05
    assert min(grouped.curve.losses) > 0.5


def test_a_group_is_not_judged_by_itself_in_the_paper_recipe():
    rows, labels = problem()
    rows[:, 0] = np.arange(240) % 7  # the module sees the group in the first column
    seen = []

    class Watching(nn.Linear):
        def forward(self, embeddings):
            seen.append(embeddings[:, 0])
            return super().forward(embeddings)

    recipe = PaperRecipe(epochs=1, batches_per_epoch=30, predictions=10, background_per_class=8)
    samples = check_samples(torch.from_numpy(rows), labels, groups=np.arange(240) % 7)
    list(train_checkpoints(Watching(12, 3), samples, recipe))
    assert len({float(groups[0]) for groups in seen}) > 1
    for groups in seen:
        assert len(groups) == 10 + 3 * 8
        assert set(groups[:10].tolist()) == {float(groups[0])}
        assert float(groups[0]) not in groups[10:]


def test_in_the_fast_recipe_groups_of_one_are_no_groups():
    rows, labels = problem()
    alone = train_projection(rows, labels, dimension=3, recipe=FEW_STEPS)
    grouped = train_projection(rows, labels, dimension=3, recipe=FEW_STEPS, groups=np.arange(240))
    assert same_bits(state_of(alone), state_of(grouped))


@SHORT_RECIPES
def test_training_needs_two_classes(recipe):
    rows, _ = problem()
    with pytest.raises(InvalidInputError, match="at least two classes"):
        train_projection(rows, np.zeros(240, dtype=int), recipe=recipe, classes=[0, 1])


@SHORT_RECIPES
def test_training_by_groups_needs_two_groups(recipe):
    rows, labels = problem()
    with pytest.raises(InvalidInputError, match="at least two groups"):
        train_projection(rows, labels, recipe=recipe, groups=np.zeros(240))


def watched(recipe, losses, **options):
    """Train with a monitor that reports ``losses`` one epoch after the other."""
    rows, labels = problem()
    module, seen = build_projection("skip", 12, 3, seed=0), []

    def monitor(watched_module):
        assert watched_module is module
        seen.append(watched_module.training)
        return losses[min(len(seen), len(losses)) - 1]

    samples = check_samples(torch.from_numpy(rows), labels)
    [run] = train_checkpoints(module, samples, recipe, monitor=monitor, **options)
    return run, seen


def plateau_recipe(**changes):
    numbers = {
        "learning_rate": 0.4, "epochs": 12, "batches_per_epoch": 2, "predictions": 8, "background_per_class": 4,
        "patience": 2, "least_learning_rate": 0.06, **changes,
    }  # fmt: skip
    return PaperRecipe(**numbers)


def test_the_paper_recipe_halves_on_a_plateau_of_what_it_monitors():
    (steps, _, curve), seen = watched(plateau_recipe(), [1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.7])
    assert len(seen) == 12
    assert steps == 24
    assert curve.steps == tuple(range(2, 25, 2))
    # epochs 5 to 7 do not improve on the fourth: after patience 2 the third of them halves, and every third thereafter
    assert curve.learning_rates == pytest.approx([0.4] * 7 + [0.2] * 3 + [0.1] * 2)


def test_the_paper_recipe_stops_below_the_least_learning_rate():
    recipe = plateau_recipe(epochs=100, patience=0)
    (steps, _, curve), seen = watched(recipe, [1.0])
    # 0.4, then halved after epochs 2, 3 and 4: 0.05 is below 0.06
    assert len(seen) == 4
    assert steps == 8
    assert curve.learning_rates == pytest.approx([0.4, 0.4, 0.2, 0.1])


def test_the_paper_recipe_keeps_its_rate_while_the_monitor_improves():
    (_, _, curve), _ = watched(plateau_recipe(patience=0), [1.0 / epoch for epoch in range(1, 13)])
    assert set(curve.learning_rates) == {0.4}


def test_a_loss_counts_as_lower_from_a_ten_thousandth_on():
    """torch's default threshold, which the paper used: relative, 1e-4."""
    recipe = plateau_recipe(patience=0, epochs=4, least_learning_rate=0.0)
    for factor, rates in ((1 - 0.5e-4, [0.4, 0.4, 0.2, 0.1]), (1 - 2e-4, [0.4] * 4)):
        (_, _, curve), _ = watched(recipe, [factor**epoch for epoch in range(4)])
        assert curve.learning_rates == pytest.approx(rates), factor


def test_the_training_loss_is_what_the_plateau_rule_sees():
    """Without a monitor the rate follows the recorded losses, epoch by epoch."""
    rows, labels = problem()
    recipe = plateau_recipe(monitor="training", patience=0, batches_per_epoch=6, least_learning_rate=0.0)
    samples = check_samples(torch.from_numpy(rows), labels)
    [run] = train_checkpoints(build_projection("skip", 12, 3, seed=0), samples, recipe)
    rate, best, expected = 0.4, np.inf, []
    for loss in run.curve.losses:
        expected.append(rate)
        if loss < best * (1 - 1e-4):
            best = loss
        else:
            rate *= 0.5
    assert run.curve.learning_rates == pytest.approx(expected)
    assert 2 <= len(set(expected)) <= 9  # some epochs improve, some do not


def test_the_paper_recipe_is_plain_gradient_descent(monkeypatch):
    """Each step moves a parameter by −rate · gradient: no momentum, no weight decay."""
    rows, labels = problem()
    seen = []
    original = training_module.paper_gradients

    def watching(module, step):
        before = [parameter.detach().clone() for parameter in module.parameters()]
        loss, gradients = original(module, step)
        seen.append((before, gradients))
        return loss, gradients

    monkeypatch.setattr(training_module, "paper_gradients", watching)
    module = build_projection("skip", 12, 3, seed=0)
    recipe = PaperRecipe(learning_rate=0.5, epochs=1, batches_per_epoch=4, predictions=16, background_per_class=8)
    list(train_checkpoints(module, check_samples(torch.from_numpy(rows), labels), recipe))
    afterwards = [before for before, _ in seen[1:]] + [list(module.parameters())]
    for (before, gradients), after in zip(seen, afterwards, strict=True):
        for old, gradient, new in zip(before, gradients, after, strict=True):
            assert gradient.any()
            torch.testing.assert_close(new.detach(), old - 0.5 * gradient, rtol=1e-6, atol=1e-7)


def test_the_factor_and_the_training_loss_can_be_chosen():
    (_, _, curve), _ = watched(plateau_recipe(patience=0, factor=0.8, epochs=3), [1.0])
    assert curve.learning_rates == pytest.approx([0.4, 0.4, 0.32])
    _, seen = watched(plateau_recipe(monitor="training"), [1.0])
    assert seen == []


def test_the_paper_recipe_keeps_the_last_weights():
    rows, labels = problem()
    module = build_projection("skip", 12, 3, seed=0)
    [last] = train_checkpoints(module, check_samples(torch.from_numpy(rows), labels), FEW_BATCHES)
    assert same_bits(module.state_dict(), last.module.state_dict())
    assert last.module is not module


def test_one_batch_norm_call_sees_predictions_and_background_together():
    rows, labels = problem()
    sizes = []

    class Watching(nn.Module):
        def __init__(self):
            super().__init__()
            self.reduce = nn.Linear(12, 3)

        def forward(self, embeddings):
            sizes.append(len(embeddings))
            return self.reduce(embeddings)

    recipe = PaperRecipe(epochs=1, batches_per_epoch=3, predictions=16, background_per_class=8)
    list(train_checkpoints(Watching(), check_samples(torch.from_numpy(rows), labels), recipe))
    assert sizes == [16 + 3 * 8] * 3


def test_a_paper_step_predicts_from_the_background_of_the_episode(monkeypatch):
    """What reaches the objective: disjoint rows, their classes, and log weights that stand for the rest of the set."""
    rows, labels = problem()
    steps = []
    original = training_module.paper_gradients

    def watching(module, step):
        steps.append(step)
        return original(module, step)

    monkeypatch.setattr(training_module, "paper_gradients", watching)
    recipe = PaperRecipe(epochs=1, batches_per_epoch=2, predictions=16, background_per_class=8, bandwidth=0.7)
    train_projection(rows, labels, dimension=3, recipe=recipe)
    assert len(steps) == 2
    known = {tuple(row): label for row, label in zip(rows.tolist(), labels.tolist(), strict=True)}
    for step in steps:
        query_codes, background_codes, log_weights = step.query_codes, step.background_codes, step.log_weights
        assert (len(query_codes), len(background_codes)) == (16, 24)
        codes = [known[tuple(row)] for row in step.embeddings.tolist()]
        assert codes == [*query_codes.tolist(), *background_codes.tolist()]
        assert len({tuple(row) for row in step.embeddings.tolist()}) == 16 + 24
        assert step.recipe.bandwidth == 0.7
        assert torch.bincount(background_codes).tolist() == [8, 8, 8]
        assert float(log_weights.double().exp().sum()) == pytest.approx(240 - 16, rel=1e-6)
        left = np.bincount(labels, minlength=3) - np.bincount(query_codes.numpy(), minlength=3)
        by_class = np.bincount(background_codes, weights=log_weights.double().exp().numpy())
        np.testing.assert_allclose(by_class, left, rtol=1e-6)


@pytest.mark.parametrize("is_grouped", [False, True])
def test_a_fast_step_hides_each_sample_or_its_group_from_itself(monkeypatch, is_grouped):
    rows, labels = problem()
    seen = []
    original = training_module.episode_losses

    def watching(*arguments, blocked, **options):
        seen.append(blocked)
        return original(*arguments, blocked=blocked, **options)

    monkeypatch.setattr(training_module, "episode_losses", watching)
    groups = np.arange(240) % 4 if is_grouped else None
    train_projection(rows, labels, dimension=3, recipe=FastRecipe(steps=3, batch_size=60), groups=groups)
    assert len(seen) == 3
    for blocked in seen:
        assert torch.equal(blocked, blocked.T)
        assert blocked.diagonal().all()
        assert blocked.shape == (60, 60)
        assert (int(blocked.sum()) > 60) == is_grouped


@pytest.mark.parametrize("class_weights", [None, "balanced"])
def test_a_fast_steps_loss_is_the_batchs_leave_one_out_loss_weighed_by_what_each_row_stands_for(class_weights):
    rows, labels = problem(dtype=np.float64)
    kept = np.concatenate([np.flatnonzero(labels == k)[:count] for k, count in enumerate((60, 25, 4))])
    rows, labels = rows[kept] / 20, labels[kept]
    module = nn.Linear(12, 3).double()
    recipe = FastRecipe(steps=1, batch_size=30, bandwidth=0.7, class_weights=class_weights)
    curve = train_projection(rows, labels, projection=module, recipe=recipe, seed=5).curve
    batch = StratifiedBatches(labels, 3, batch_size=30, generator=np.random.default_rng(5)).draw()
    points, codes = module(torch.from_numpy(rows[batch])).detach(), torch.from_numpy(labels[batch])
    drawn, held = np.bincount(labels[batch]), np.bincount(labels)
    assert drawn.tolist() == [10, 10, 4]
    stands_for = torch.from_numpy((held / drawn)[labels[batch]])
    same = codes[:, None] == codes[None, :]
    others = torch.from_numpy(((held - 1) / (drawn - 1))[labels[batch]])
    exponents = -torch.cdist(points, points).square() / (2 * 3 * 0.7**2) + torch.where(same, others, stands_for).log()
    exponents.fill_diagonal_(-torch.inf)
    own = exponents.masked_fill(~same, -torch.inf)
    losses = exponents.logsumexp(dim=1) - own.logsumexp(dim=1)
    counts_for = stands_for if class_weights is None else torch.from_numpy((1 / drawn)[labels[batch]])
    expected = float((counts_for * losses).sum() / counts_for.sum())
    assert curve.losses == (pytest.approx(expected, rel=1e-12),)
    assert float(losses.mean()) != pytest.approx(expected, rel=1e-3)


def test_trained_projections_know_their_training_set_and_recipe():
    rows, labels = problem()
    trained = train_projection(rows, labels, dimension=3, recipe=FEW_STEPS)
    assert isinstance(trained, TrainedProjection)
    assert trained.recipe is FEW_STEPS
    assert len(np.unique(trained.fingerprints)) == 240
    again = train_projection(rows.astype(np.float64), labels, dimension=3, recipe=FEW_STEPS)
    assert np.array_equal(trained.fingerprints, again.fingerprints)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 6, 7])
def test_even_a_few_fast_steps_are_a_schedule(steps):
    rows, labels = problem()
    trained = train_projection(rows, labels, dimension=3, recipe=FastRecipe(steps=steps, batch_size=60))
    assert trained.steps[-1] == trained.curve.steps[-1] == steps


def test_the_smallest_training_set_is_survived():
    rows, labels = problem()
    for recipe in (FastRecipe(steps=3), FEW_BATCHES):
        for n in (2, 3, 5):
            chosen = np.concatenate([np.flatnonzero(labels == k)[: -(-n // 2)] for k in (0, 1)])[:n]
            trained = train_projection(rows[chosen], labels[chosen], dimension=2, recipe=recipe)
            assert torch.isfinite(project(trained.module, torch.from_numpy(rows))).all()
