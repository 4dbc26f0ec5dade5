"""The network Π: its formula, where it starts, and projecting with it."""

import numpy as np
import pytest
import torch
from torch import nn

from kcal import KCal
from kcal.errors import InvalidInputError
from kcal.kernels import START_SPREAD
from kcal.projection import LinearProjection, ResidualProjection, project

KINDS = pytest.mark.parametrize("kind", [ResidualProjection, LinearProjection])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def embeddings(n=50, h=6, seed=0, dtype=torch.float64):
    return torch.randn(n, h, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def started(kind, rows, dimension, *, unit_length=False):
    module = kind(rows.shape[1], dimension).to(rows.dtype)
    module.unit_length.fill_(unit_length)
    module.start_from(rows)
    return module


@KINDS
def test_projection_is_the_papers_formula(kind):
    module, rows = kind(6, 4).double(), embeddings()
    module.train()(rows)  # running statistics
    norm = module.norm
    normalised = (rows - norm.running_mean) / torch.sqrt(norm.running_var + norm.eps) * norm.weight + norm.bias
    expected = normalised @ module.reduce.weight.T
    if kind is ResidualProjection:
        expected = expected + module.reduce.bias
        expected = expected + torch.where(expected > 0, expected, torch.expm1(expected)) @ module.bend.weight.T
        assert module.bend.bias is None
    else:
        assert module.reduce.bias is None
    torch.testing.assert_close(project(module, rows), expected.detach(), rtol=0, atol=1e-12)


def test_linear_projection_starts_with_small_weights():
    torch.manual_seed(3)
    weight = LinearProjection(6, 4).reduce.weight
    torch.manual_seed(3)
    torch.testing.assert_close(weight, nn.Linear(6, 4, bias=False).weight / 2)


@KINDS
def test_start_is_the_principal_axes_of_the_standardised_embeddings(kind):
    rows = 3.0 + embeddings(400, 5) @ embeddings(5, 5, seed=1)
    standardised = ((rows - rows.mean(dim=0)) / rows.std(dim=0, correction=0)).numpy()
    expected = standardised @ np.linalg.svd(standardised, full_matrices=False)[2][:2].T
    projected = project(started(kind, rows, 2), rows).numpy()
    for column in range(2):
        assert abs(np.corrcoef(projected[:, column], expected[:, column])[0, 1]) == pytest.approx(1.0, abs=1e-9)
    ratio = projected.std(axis=0) / expected.std(axis=0)
    assert ratio[0] == pytest.approx(ratio[1], rel=1e-4)


@KINDS
def test_start_at_unit_length_is_the_principal_axes_of_the_directions_as_they_are(kind):
    rows = (embeddings(300, 6) * torch.tensor([1.0, 5.0, 2.0, 1.0, 1.0, 0.1])) + 2.0
    points = project(started(kind, rows, 6, unit_length=True), rows)
    directions = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    ratios = (torch.cdist(points, points) / torch.cdist(directions, directions))[~torch.eye(300, dtype=torch.bool)]
    torch.testing.assert_close(ratios, ratios[0].expand_as(ratios), rtol=1e-6, atol=0)


@KINDS
@pytest.mark.parametrize("dimension", [2, 5, 9])
def test_start_makes_one_a_fair_bandwidth(kind, dimension):
    rows = 100.0 * embeddings(300, 5) + 7.0
    projected = project(started(kind, rows, dimension), rows)
    assert projected.shape == (300, dimension)
    squares = torch.cdist(projected, projected).square() / dimension
    assert float(squares.mean()) == pytest.approx(START_SPREAD, rel=1e-3)
    assert projected.mean(dim=0).abs().max() < 1e-9


@DTYPES
@KINDS
def test_columns_without_variance_do_no_harm_to_the_start(kind, dtype):
    rows = embeddings(60, 4, dtype=dtype)
    padded = torch.cat([rows, torch.full((60, 2), 3.0, dtype=dtype)], dim=1)
    one, other = project(started(kind, padded, 3), padded), project(started(kind, rows, 3), rows)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    constant = torch.full((60, 6), 3.0, dtype=dtype)
    assert torch.isfinite(project(started(kind, constant, 3), constant)).all()


@DTYPES
def test_at_unit_length_only_the_direction_counts_and_nothing_overflows(dtype):
    rows, module = embeddings(20, 5, dtype=dtype), ResidualProjection(5, 3).to(dtype)
    assert not torch.allclose(project(module, 7.0 * rows), project(module, rows))
    module.unit_length.fill_(True)
    largest = torch.finfo(dtype).max / 10 / float(rows.abs().max())
    for scale in (7.0, largest, torch.finfo(dtype).tiny * 1e4):
        torch.testing.assert_close(project(module, scale * rows), project(module, rows), rtol=1e-3, atol=1e-3)
    assert torch.isfinite(project(module, torch.zeros(2, 5, dtype=dtype))).all()


@pytest.mark.parametrize("training", [True, False])
def test_projecting_leaves_modes_and_statistics_as_they_were(training):
    module = nn.Sequential(ResidualProjection(6, 3).double(), nn.Dropout()).train(training)
    module[0].norm.eval()
    statistics = module[0].norm.running_mean.clone()
    assert not project(module, 5.0 + embeddings()).requires_grad
    with pytest.raises(InvalidInputError, match=r"^projection "):
        project(module, embeddings(h=5))
    assert [part.training for part in (module, *module, module[0].norm)] == [training, training, training, False]
    assert torch.equal(module[0].norm.running_mean, statistics)


NOT_FINITE = nn.Linear(6, 2).double()
nn.init.constant_(NOT_FINITE.bias, torch.nan)


@pytest.mark.parametrize(
    "module",
    [nn.Flatten(0), nn.Unflatten(1, (2, 3)), nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (-1, 3))), NOT_FINITE],
    ids=["one-dimensional", "three-dimensional", "more rows", "NaN"],
)
def test_unusable_module_is_refused(module):
    with pytest.raises(InvalidInputError, match=r"^projection must"):
        KCal(projection=module.requires_grad_(False)).fit(embeddings(), np.arange(50) % 2)


def test_start_depends_neither_on_the_order_of_rows_nor_on_the_sign_of_axes():
    for seed in range(5):
        rows = embeddings(80, 6, seed) @ embeddings(6, 6, seed + 50)
        axes = started(LinearProjection, rows, 4).reduce.weight
        torch.testing.assert_close(axes, started(LinearProjection, rows.flip(0), 4).reduce.weight, rtol=0, atol=1e-9)
        assert bool((axes.gather(1, axes.abs().argmax(dim=1, keepdim=True)) > 0).all())


def test_projecting_many_rows_gives_what_the_module_gives():
    module, rows = ResidualProjection(6, 3).double().eval(), embeddings(40_000)
    torch.testing.assert_close(project(module, rows), module(rows).detach(), rtol=0, atol=1e-13)
