"""The steps of a training, seen by the module that is trained: who predicts whom, with which loss and gradient."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from kcal import FastRecipe, PaperRecipe, train_projection
from kcal.kernels import LeaveOutLoss, sort_support
from kcal.projection import ResidualProjection

few = settings(max_examples=25)
DIMENSION = 3
RARELY = 1e-4
"""A fair draw misses this p-value once in 10,000 seeds, and the seeds are fixed."""


def noise(codes, *, scale=1.0, seed=0):
    return scale * np.random.default_rng(seed).normal(size=(len(codes), 4))


def train(rows, codes, recipe, *, groups=None, seed=0, dtype=torch.float64):
    """Train a matrix; return the losses, and of every step the rows by their index, the matrix and its gradient.

    The paper's step projects the background first, then the queries; the index begins with the queries.
    """
    place = {row.tobytes(): index for index, row in enumerate(torch.from_numpy(rows).to(dtype).numpy())}
    steps, seen = [], []

    class Recording(nn.Linear):
        def forward(self, embeddings):
            if self.training:
                seen.append([place[row.tobytes()] for row in embeddings.numpy()])
            return super().forward(embeddings)

    def record(optimizer, *_):
        weight = optimizer.param_groups[0]["params"][0]
        steps.append((np.concatenate(seen[::-1]), weight.detach().clone(), weight.grad.clone()))
        seen.clear()

    module = Recording(4, DIMENSION, bias=False, dtype=dtype)
    nn.init.normal_(module.weight, generator=torch.Generator().manual_seed(1))
    hook = register_optimizer_step_pre_hook(record)
    try:
        given = torch.from_numpy(rows).to(dtype)
        trained = train_projection(
            given, codes, projection=module, recipe=recipe, groups=groups, seed=seed, classes=range(6), progress=False
        )
    finally:
        hook.remove()
    return trained.curve.losses, steps


def paper(n_steps, predictions=5, per_class=3, **numbers):
    sizes = {"predictions": predictions, "background_per_class": per_class}
    return PaperRecipe(epochs=n_steps, batches_per_epoch=1, patience=10**6, min_learning_rate=0, **sizes, **numbers)


def fast(**numbers):
    return FastRecipe(**{"steps": 1, "checkpoints": 1, **numbers})


def objective(points, others, own, log_weights, *, bandwidth=1.0, hidden=None, shares=None):
    """The mean log-loss by the formula, for automatic differentiation."""
    squares = (points[:, None] - others).square().sum(dim=2)
    exponents = -squares / (2 * DIMENSION * bandwidth**2) + log_weights
    if hidden is not None:
        exponents = exponents.masked_fill(hidden, -torch.inf)
    of_own = exponents.masked_fill(~own, -torch.inf)
    counted = (of_own > -torch.inf).any(dim=1)
    shares = torch.ones(len(points), dtype=torch.float64) if shares is None else shares
    losses = torch.logsumexp(exponents[counted], dim=1) - torch.logsumexp(of_own[counted], dim=1)
    return (losses * shares[counted]).sum() / shares[counted].sum() if counted.any() else 0.0 * points.sum()


def check_step(loss, step, rows, expected):
    """Compare loss and gradient of a step with ``expected`` of the projected rows."""
    index, weight, gradient = step
    weight = weight.double().requires_grad_()
    exact = expected(torch.from_numpy(rows[index]) @ weight.T)
    assert loss == pytest.approx(float(exact.detach()), rel=1e-10, abs=1e-12)
    torch.testing.assert_close(gradient, torch.autograd.grad(exact, weight)[0], rtol=1e-8, atol=1e-9)


def check_paper_step(loss, step, rows, codes, groups, recipe):
    """Check who is in a step of the paper, and its loss: the background represents all that is not left out."""
    index, n_query = step[0], len(step[0]) - background_size(step[0], codes, groups, recipe)
    queries, background = index[:n_query], index[n_query:]
    assert len(set(queries)) == n_query
    assert len(set(background)) == len(background)
    left_out = set(queries) if groups is None else set(np.flatnonzero(groups == groups[queries[0]]))
    assert left_out.issuperset(queries)
    assert left_out.isdisjoint(background)
    available = np.bincount(np.delete(codes, sorted(left_out)), minlength=6)
    used = np.bincount(codes[background], minlength=6)
    np.testing.assert_array_equal(used, np.minimum(available, recipe.background_per_class))
    log_weights = torch.from_numpy(np.log(available[codes[background]] / used[codes[background]]))
    own = torch.from_numpy(codes[queries][:, None] == codes[background])

    def expected(points):
        return objective(points[:n_query], points[n_query:], own, log_weights, bandwidth=recipe.bandwidth)

    check_step(loss, step, rows, expected)
    return queries, background


def background_size(index, codes, groups, recipe):
    """Number of background samples of a step, from its first row: a group, or as many as can be predicted."""
    if groups is None:
        return len(index) - min(recipe.predictions, max(len(codes) // 2, 1))
    return len(index) - min(recipe.predictions, int((groups == groups[index[0]]).sum()))


LABELS = st.lists(st.integers(0, 4), min_size=4, max_size=40).filter(lambda codes: len(set(codes)) > 1)


@few
@given(
    codes=LABELS, predictions=st.integers(1, 20), per_class=st.integers(1, 12), is_grouped=st.booleans(),
    bandwidth=st.floats(0.3, 3), scale=st.sampled_from([0.3, 1.0, 30.0]), seed=st.integers(0, 1000),
)  # fmt: skip
def test_paper_step_predicts_samples_from_a_background_that_represents_all_others(
    codes, predictions, per_class, is_grouped, bandwidth, scale, seed
):
    codes = np.array(codes)
    rows = noise(codes, scale=scale)
    groups = np.arange(len(codes)) % 3 if is_grouped else None
    recipe = paper(3, predictions, per_class, bandwidth=bandwidth)
    losses, steps = train(rows, codes, recipe, groups=groups, seed=seed)
    for loss, step in zip(losses, steps, strict=True):
        check_paper_step(loss, step, rows, codes, groups, recipe)


@few
@given(
    codes=LABELS, batch_size=st.integers(1, 60), is_grouped=st.booleans(), bandwidth=st.floats(0.3, 3),
    scale=st.sampled_from([0.3, 1.0, 30.0]), sampling=st.sampled_from(["equal", "proportional"]),
    class_weights=st.sampled_from([None, "balanced"]), seed=st.integers(0, 1000),
)  # fmt: skip
def test_fast_step_predicts_every_sample_of_a_batch_from_the_others(
    codes, batch_size, is_grouped, bandwidth, scale, sampling, class_weights, seed
):
    codes = np.array(codes)
    rows, groups = noise(codes, scale=scale), np.arange(len(codes)) % 3 if is_grouped else np.arange(len(codes))
    recipe = fast(
        steps=2,
        checkpoints=3,
        batch_size=batch_size,
        bandwidth=bandwidth,
        sampling=sampling,
        class_weights=class_weights,
    )
    losses, steps = train(rows, codes, recipe, groups=groups if is_grouped else None, seed=seed)
    for loss, step in zip(losses, steps, strict=True):
        check_fast_step(loss, step, rows, codes, groups, recipe)


def check_fast_step(loss, step, rows, codes, groups, recipe):
    """Check who is in a batch, and its loss: the others represent all others of the training set."""
    index = step[0]
    counts, drawn = np.bincount(codes, minlength=6), np.bincount(codes[index], minlength=6)
    equal = np.minimum(counts, max(2, recipe.batch_size // np.count_nonzero(counts)))
    assert len(set(index)) == len(index) == equal.sum()
    if recipe.sampling == "equal":
        np.testing.assert_array_equal(drawn, equal)
    else:
        assert (drawn >= np.minimum(counts, 2)).all()
        assert (np.diff(drawn[np.argsort(counts, kind="stable")]) >= -1).all()
    own = codes[index][:, None] == codes[index]
    represents = (counts / np.maximum(drawn, 1))[codes[index]]
    others = ((counts - 1) / np.maximum(drawn - 1, 1))[codes[index]]  # the own class without the sample itself
    log_weights = np.log(np.where(own, np.maximum(others, 1), represents))
    shares = represents if recipe.class_weights is None else 1 / drawn[codes[index]]

    def expected(points):
        hidden = torch.from_numpy(groups[index][:, None] == groups[index])
        options = {"bandwidth": recipe.bandwidth, "hidden": hidden, "shares": torch.from_numpy(shares)}
        return objective(points, points, torch.from_numpy(own), torch.from_numpy(log_weights), **options)

    check_step(loss, step, rows, expected)


def test_loss_of_a_batch_of_all_samples_is_the_leave_one_out_loss():
    codes = np.arange(40) % 3
    rows = noise(codes)
    (loss,), ((index, weight, _),) = train(rows, codes, fast(batch_size=60, bandwidth=0.9))
    points = torch.from_numpy(rows[index]) @ weight.T
    assert loss == pytest.approx(LeaveOutLoss(sort_support(points, torch.from_numpy(codes[index]), 3))(0.9), rel=1e-12)


@pytest.mark.parametrize(
    "recipe", [paper(1, bandwidth=0.01), fast(batch_size=30, bandwidth=0.01)], ids=["paper", "fast"]
)
def test_shares_below_1e_40_still_have_a_gradient(recipe):
    """The comparison of such steps with the formula is part of the tests above."""
    codes = np.arange(30) % 3
    (loss,), ((_, _, gradient),) = train(noise(codes), codes, recipe)
    assert loss > -np.log(1e-40)
    assert float(gradient.abs().max()) > 1.0


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("recipe", [paper(1), fast(batch_size=30)], ids=["paper", "fast"])
def test_single_precision_is_finite_and_near_double_precision(recipe, scale):
    codes = np.arange(30) % 3
    rows = noise(codes, scale=scale).astype(np.float32).astype(np.float64)
    (exact,), (step,) = train(rows, codes, recipe)
    (loss,), (single,) = train(rows, codes, recipe, dtype=torch.float32)
    assert loss == pytest.approx(exact, rel=1e-4)
    torch.testing.assert_close(single[2].double(), step[2], rtol=1e-3, atol=1e-3 * float(step[2].abs().max()))


def test_paper_step_without_background_of_the_queried_classes_learns_nothing():
    codes = np.array([0, 1])
    (loss,), ((_, _, gradient),) = train(noise(codes), codes, paper(1))
    assert loss == 0.0
    assert not gradient.any()


def test_batch_of_one_group_learns_nothing():
    codes, groups = np.arange(60) % 2, np.zeros(60, dtype=int)
    groups[0] = 1
    seen = [train(noise(codes), codes, fast(batch_size=10), groups=groups, seed=seed) for seed in range(5)]
    hidden = [(loss, step[2]) for (loss,), (step,) in seen if 0 not in step[0]]
    assert len(hidden) > 2
    for loss, gradient in hidden:
        assert loss == 0.0
        assert not gradient.any()


def sets_of(recipe, codes, count, *, groups=None, chosen=slice(None)):
    """Count the sets of rows that steps draw."""
    _, steps = train(noise(codes), np.asarray(codes), recipe, groups=groups)
    assert len(steps) == count
    return Counter(tuple(sorted(step[0][chosen].tolist())) for step in steps)


def test_paper_queries_are_uniform():
    codes = np.array([0, 1, 0, 1, 0, 1])
    found = sets_of(paper(1500, predictions=2, learning_rate=1e-9), codes, 1500, chosen=slice(2))
    assert set(found) == set(combinations(range(6), 2))
    assert chisquare(list(found.values())).pvalue > RARELY


@pytest.mark.parametrize("is_grouped", [False, True])
def test_paper_background_is_uniform_over_what_queries_leave(is_grouped):
    codes, groups = np.repeat([0, 1], [12, 5]), np.arange(17) % 3
    recipe = paper(1500, predictions=4, learning_rate=1e-9)
    _, steps = train(noise(codes), codes, recipe, groups=groups if is_grouped else None)
    used, left = np.zeros(17), np.zeros(17)
    for index, *_ in steps:
        out = np.flatnonzero(groups == groups[index[0]]) if is_grouped else index[:4]
        available = np.bincount(codes, minlength=2) - np.bincount(codes[out], minlength=2)
        left += np.where(np.isin(np.arange(17), out), 0.0, (np.minimum(available, 3) / np.maximum(available, 1))[codes])
        used[index[4:]] += 1
    assert chisquare(used, left * used.sum() / left.sum()).pvalue > RARELY


def test_paper_groups_are_drawn_in_proportion_to_their_sizes():
    groups = np.repeat([0, 1, 2, 3], [5, 20, 50, 125])
    codes = np.arange(200) % 3
    _, steps = train(noise(codes), codes, paper(1000, predictions=2, learning_rate=1e-9), groups=groups)
    counts = np.bincount([groups[step[0][0]] for step in steps], minlength=4)
    assert chisquare(counts, 1000 * np.array([5, 20, 50, 125]) / 200).pvalue > RARELY


@pytest.mark.parametrize(("size", "per_class"), [(5, 2), (20, 19), (20, 20)])
def test_fast_batches_are_uniform(size, per_class):
    """Also where a class has hardly more samples than are drawn of it."""
    codes = np.repeat([0, 1], [size, 3])
    recipe = FastRecipe(steps=1000, batch_size=2 * per_class, checkpoints=1, learning_rate=1e-9)
    found = sets_of(recipe, codes, 1000, chosen=slice(per_class))
    expected = list(combinations(range(size), per_class))
    assert set(found) <= set(expected)
    if len(expected) > 1:
        assert chisquare([found[one] for one in expected]).pvalue > RARELY


class Differentiated(ResidualProjection):
    """The paper's Π for automatic differentiation: what is known by hand is known of that very class."""


class Doubled(nn.BatchNorm1d):
    def forward(self, rows):
        return 2 * super().forward(rows)


NORMS = {
    "plain": lambda: nn.BatchNorm1d(5),
    "another momentum": lambda: nn.BatchNorm1d(5, momentum=0.4, eps=0.1),
    "not affine": lambda: nn.BatchNorm1d(5, affine=False),
    "no running statistics": lambda: nn.BatchNorm1d(5, track_running_stats=False),
    "cumulative mean": lambda: nn.BatchNorm1d(5, momentum=None),
    "subclass": lambda: Doubled(5),
    "another module": lambda: nn.LayerNorm(5),
    "frozen": lambda: nn.BatchNorm1d(5).requires_grad_(False),
}


@pytest.mark.parametrize("name", NORMS)
def test_papers_projection_is_trained_as_by_automatic_differentiation(name):
    codes = np.repeat([0, 1, 2, 3], [20, 12, 5, 1])
    rows = 2.0 * np.random.default_rng(3).normal(size=(38, 5)) + 1.0
    states, curves = [], []
    for kind in (ResidualProjection, Differentiated):
        module, generator = kind(5, 3), torch.Generator().manual_seed(5)
        module.norm = NORMS[name]()
        for parameter in module.parameters():
            nn.init.uniform_(parameter.data, -1.0, 1.5, generator=generator)
        trained = train_projection(rows, codes, projection=module, recipe=paper(6, bandwidth=0.8, learning_rate=0.1))
        states.append(trained.module.state_dict())
        curves.append(trained.curve.losses)
    np.testing.assert_allclose(*curves, rtol=1e-10)
    for key, value in states[0].items():
        torch.testing.assert_close(value, states[1][key], rtol=1e-8, atol=1e-10, msg=key)


@pytest.mark.parametrize("kind", [ResidualProjection, Differentiated], ids=["by hand", "autograd"])
def test_paper_step_is_two_calls_of_the_module_at_the_published_kernel(kind):
    """A step by a plain module: the background, then the queries, exp(−‖u‖²/d), and descent by autograd's gradient."""
    codes, rate = np.repeat([0, 1, 2], [20, 12, 5]), 0.3
    rows = torch.from_numpy(2.0 * np.random.default_rng(4).normal(size=(37, 5)) + 1.0)
    calls = []

    class Recording(Differentiated):
        def forward(self, embeddings):
            calls.append(embeddings)
            return super().forward(embeddings)

    plain = ResidualProjection(5, DIMENSION).double()
    recorded, module = (each(5, DIMENSION).double() for each in (Recording, kind))
    recorded.load_state_dict(plain.state_dict())
    module.load_state_dict(plain.state_dict())
    options = {"recipe": paper(1, learning_rate=rate), "seed": 7, "progress": False}
    train_projection(rows, codes, projection=recorded, **options)
    background, queries = calls
    trained = train_projection(rows, codes, projection=module, **options)
    code_of, other = (codes[torch.cdist(part, rows).argmin(dim=1).numpy()] for part in (queries, background))
    assert len(queries) == 5
    assert len(background) == 9
    represents = (np.bincount(codes) - np.bincount(code_of, minlength=3)) / np.bincount(other)
    z, q = plain.train()(background), plain(queries)
    losses = []
    for point, code in zip(q, code_of, strict=True):
        mass = torch.exp(-(point - z).square().sum(dim=1) / DIMENSION) * torch.from_numpy(represents[other])
        losses.append(-torch.log(mass[other == code].sum() / mass.sum()))
    loss = torch.stack(losses).mean()
    loss.backward()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter -= rate * parameter.grad
    assert trained.curve.losses[0] == pytest.approx(float(loss.detach()), rel=1e-10)
    for key, value in trained.module.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[key], rtol=1e-8, atol=1e-10, msg=key)
