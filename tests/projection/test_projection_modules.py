"""The network Π: its formula, where it starts, and projecting with it."""

import numpy as np
import pytest
import torch
from torch import nn

from kcal.errors import InvalidInputError
from kcal.projection import LinearProjection, SkipProjection, build_projection, choose_dimension, project
from kcal.projection import modules as modules_module
from kcal.projection.modules import at_unit_length


def embeddings(n=50, h=6, seed=0, dtype=torch.float64):
    return torch.randn(n, h, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def normalised(rows, module):
    mean, variance = module.norm.running_mean, module.norm.running_var
    return (rows - mean) / torch.sqrt(variance + module.norm.eps) * module.norm.weight + module.norm.bias


def test_the_skip_projection_is_the_papers_formula():
    module = build_projection("skip", 6, 4, seed=0).double()
    assert module.reduce.bias is not None
    assert module.bend.bias is None
    rows = embeddings()
    reduced = normalised(rows, module) @ module.reduce.weight.T + module.reduce.bias
    bent = torch.where(reduced > 0, reduced, torch.expm1(reduced)) @ module.bend.weight.T
    torch.testing.assert_close(project(module, rows), (reduced + bent).detach(), rtol=0, atol=1e-12)


def test_the_linear_projection_is_batch_norm_and_a_matrix_started_small():
    module = build_projection("linear", 6, 4, seed=3).double()
    assert isinstance(module, LinearProjection)
    assert module.reduce.bias is None
    rows = embeddings()
    expected = normalised(rows, module) @ module.reduce.weight.T
    torch.testing.assert_close(project(module, rows), expected.detach(), rtol=0, atol=1e-12)
    torch.manual_seed(3)
    torch.testing.assert_close(module.reduce.weight.float(), nn.Linear(6, 4, bias=False).weight / 2)


def test_building_is_repeatable_and_leaves_the_global_generator_alone():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    one, same, other = (build_projection("skip", 5, 3, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.reduce.weight, same.reduce.weight)
    assert not torch.equal(one.reduce.weight, other.reduce.weight)


@pytest.mark.parametrize("name", ["mlp", "", "SKIP"])
def test_an_unknown_projection_is_refused(name):
    with pytest.raises(InvalidInputError, match="projection must be one of 'skip', 'linear'; got"):
        build_projection(name, 5, 3, seed=0)


def test_the_dimension_is_the_number_given_or_at_most_the_largest():
    assert choose_dimension("auto", 7, 32) == 7
    assert choose_dimension("auto", 32, 32) == 32
    assert choose_dimension("auto", 2048, 64) == 64
    assert choose_dimension(64, 64, 32) == 64
    with pytest.raises(InvalidInputError, match=r"dimension must be at most the number of features .*, 64; got 128"):
        choose_dimension(128, 64, 32)


@pytest.mark.parametrize("dimension", [0, -1, 2.0, True, "32", None])
def test_an_impossible_dimension_is_refused(dimension):
    with pytest.raises(InvalidInputError, match='dimension must be "auto" or an integer from 1 to 16,384; got'):
        choose_dimension(dimension, 10, 32)


@pytest.mark.parametrize("kind", [SkipProjection, LinearProjection])
def test_the_start_is_the_principal_axes_of_the_standardised_embeddings(kind):
    mixing = embeddings(5, 5, seed=1)
    rows = 3.0 + embeddings(400, 5) @ mixing
    module = kind(5, 2).double()
    module.start_from(rows)
    standardised = (rows - rows.mean(dim=0)) / rows.std(dim=0, correction=0)
    axes = np.linalg.svd(standardised.numpy(), full_matrices=False)[2][:2]
    projected = project(module, rows)
    expected = standardised.numpy() @ axes.T
    for column in range(2):
        correlation = np.corrcoef(projected[:, column], expected[:, column])[0, 1]
        assert abs(correlation) == pytest.approx(1.0, abs=1e-9)
    ratio = projected.std(dim=0).numpy() / expected.std(axis=0)
    assert ratio[0] == pytest.approx(ratio[1], rel=1e-4)


@pytest.mark.parametrize("kind", [SkipProjection, LinearProjection])
def test_the_start_at_unit_length_is_the_principal_axes_of_the_directions_as_they_are(kind):
    rows = (embeddings(300, 6) * torch.tensor([1.0, 5.0, 2.0, 1.0, 1.0, 0.1])) + 2.0
    module = kind(6, 6).double()
    module.unit_length.fill_(True)
    module.start_from(rows)
    directions = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    found, expected = torch.cdist(project(module, rows), project(module, rows)), torch.cdist(directions, directions)
    ratios = (found / expected)[~torch.eye(300, dtype=torch.bool)]
    torch.testing.assert_close(ratios, ratios[0].expand_as(ratios), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_at_unit_length_only_the_direction_counts_and_nothing_overflows(dtype):
    rows = embeddings(20, 5, dtype=dtype)
    module = SkipProjection(5, 3).to(dtype)
    before = project(module, 7.0 * rows)
    module.unit_length.fill_(True)
    torch.testing.assert_close(project(module, 7.0 * rows), project(module, rows))
    assert not torch.allclose(before, project(module, rows))
    huge, tiny = torch.finfo(dtype).max / 10, torch.finfo(dtype).tiny * 1e4
    for scale in (huge / rows.abs().max(), tiny):
        torch.testing.assert_close(at_unit_length(rows * scale), at_unit_length(rows), rtol=1e-3, atol=1e-3)
    assert torch.equal(at_unit_length(torch.zeros(2, 4, dtype=dtype)), torch.zeros(2, 4, dtype=dtype))
    lengths = torch.linalg.vector_norm(at_unit_length(rows), dim=1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))


@pytest.mark.parametrize("dimension", [2, 5, 9])
@pytest.mark.parametrize("kind", [SkipProjection, LinearProjection])
def test_the_start_spreads_the_samples_so_that_one_is_a_fair_bandwidth(kind, dimension):
    rows = 100.0 * embeddings(300, 5) + 7.0
    module = kind(5, dimension).double()
    module.start_from(rows)
    projected = project(module, rows)
    assert projected.shape == (300, dimension)
    squares = torch.cdist(projected, projected).square() / dimension
    assert float(squares.mean()) == pytest.approx(modules_module.START_SPREAD, rel=1e-3)
    assert projected.mean(dim=0).abs().max() < 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [SkipProjection, LinearProjection])
def test_columns_without_variance_do_no_harm_to_the_start(kind, dtype):
    rows = embeddings(60, 4, dtype=dtype)
    constant = torch.full((60, 2), 3.0, dtype=dtype)
    module, plain = kind(6, 3).to(dtype), kind(4, 3).to(dtype)
    module.start_from(torch.cat([rows, constant], dim=1))
    plain.start_from(rows)
    torch.testing.assert_close(
        project(module, torch.cat([rows, constant], dim=1)), project(plain, rows), rtol=1e-4, atol=1e-4
    )
    module.start_from(torch.full((60, 6), 3.0, dtype=dtype))
    assert torch.isfinite(project(module, torch.full((60, 6), 3.0, dtype=dtype))).all()


def test_the_start_does_not_depend_on_the_order_of_the_rows():
    rows = embeddings(80, 5)
    one, other = SkipProjection(5, 3).double(), SkipProjection(5, 3).double()
    one.start_from(rows)
    other.start_from(rows.flip(0))
    torch.testing.assert_close(one.reduce.weight, other.reduce.weight, rtol=0, atol=1e-9)


def test_the_sign_of_an_axis_is_fixed_by_its_largest_entry():
    for seed in range(5):
        module = LinearProjection(6, 4).double()
        module.start_from(embeddings(80, 6, seed) @ embeddings(6, 6, seed + 50))
        axes = module.reduce.weight
        assert bool((axes.gather(1, axes.abs().argmax(dim=1, keepdim=True)) > 0).all())


@pytest.mark.parametrize("training", [True, False])
def test_projecting_leaves_mode_and_statistics_as_they_were(training):
    module = build_projection("skip", 6, 3, seed=0).double().train(training)
    statistics = module.norm.running_mean.clone()
    projected = project(module, 5.0 + embeddings())
    assert module.training is training
    assert module.norm.training is training
    assert torch.equal(module.norm.running_mean, statistics)
    assert not projected.requires_grad


def test_the_mode_is_restored_when_the_module_fails():
    module = build_projection("skip", 6, 3, seed=0).double().train()
    with pytest.raises(InvalidInputError, match="projection must take embeddings of 5 features"):
        project(module, embeddings(h=5))
    assert module.training


def test_projecting_in_parts_changes_nothing(monkeypatch):
    module, rows = build_projection("skip", 6, 3, seed=0).double(), embeddings(23)
    whole = project(module, rows)
    monkeypatch.setattr(modules_module, "ROWS_AT_ONCE", 5)
    torch.testing.assert_close(project(module, rows), whole, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "module",
    [nn.Flatten(0), nn.Unflatten(1, (2, 3)), nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (-1, 3)))],
    ids=["one-dimensional", "three-dimensional", "more rows"],
)
def test_a_module_of_the_wrong_shape_is_refused(module):
    with pytest.raises(InvalidInputError, match=r"must map \(n, 6\) to \(n, d\); got \(50, 6\) mapped to"):
        project(module, embeddings())


def test_a_module_that_gives_nan_is_refused():
    module = nn.Linear(6, 2).double()
    nn.init.constant_(module.bias, torch.nan)
    with pytest.raises(InvalidInputError, match="NaN or infinity"):
        project(module, embeddings())
