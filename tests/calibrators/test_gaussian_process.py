"""Gaussian-process calibration: its bound, its predictions, and the truth that it finds."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from kcal import GaussianProcessCalibration, TemperatureScaling
from kcal.calibrators.base import CalibratorState
from kcal.calibrators.gaussian_process.estimator import (
    GaussianProcessModel,
    choose_inducing_points,
    require_latent_process,
)
from kcal.calibrators.gaussian_process.posterior import expected_softmax, standard_normals
from kcal.calibrators.gaussian_process.score_grid import ScoreGrid, make_grid
from kcal.errors import InvalidInputError, MissingExtraError
from synthetic import warped


@pytest.fixture(scope="module")
def fitted(problem: Any) -> GaussianProcessCalibration:
    return GaussianProcessCalibration().fit(problem.logits, problem.labels)


def dense_bound(
    scores: Any, own: Any, weights: Any, inducing: Any, parameters: dict[str, torch.Tensor], representation: str
) -> torch.Tensor:
    """Compute the bound of methods.md sample by sample, with dense matrices and a full covariance."""
    variance, lengthscale = parameters["log_variance"].exp(), parameters["log_lengthscale"].exp()
    deviation = parameters["deviation"].reshape(-1)

    def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return variance.reshape(()) * torch.exp(-((a[:, None] - b) ** 2) / (2 * lengthscale.reshape(()) ** 2))

    k_uu = kernel(inducing, inducing) + 0.01 * torch.eye(len(inducing)).double()
    root = torch.linalg.cholesky(k_uu)
    u_mean, u_cov = root @ parameters["mean"].reshape(-1), root @ torch.diag(deviation**2) @ root.T
    total = torch.zeros(()).double()
    for row, label, weight in zip(scores, own, weights, strict=True):
        to_u = kernel(row, inducing) @ torch.linalg.inv(k_uu)
        mean = (row if representation == "logits" else row.log()) + to_u @ u_mean
        cov = kernel(row, row) + 0.01 * torch.eye(len(row)).double() - to_u @ (k_uu - u_cov) @ to_u.T
        share = mean.softmax(0)
        total = total + weight * (
            mean.log_softmax(0)[label] + 0.5 * ((share**2 * cov.diag()).sum() - (share * cov.diag()).sum())
        )
    q = torch.distributions.MultivariateNormal(u_mean, u_cov)
    p = torch.distributions.MultivariateNormal(torch.zeros_like(u_mean), k_uu)
    return total - torch.distributions.kl_divergence(q, p)


@pytest.mark.parametrize("block_size", [6, 2**16])
@pytest.mark.parametrize("spacing", [None, 1e-4])
@pytest.mark.parametrize("representation", ["logits", "probabilities"])
def test_the_bound_and_its_slope_equal_the_dense_computation(
    representation: str, spacing: float | None, block_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = require_latent_process()
    monkeypatch.setattr(process, "BLOCK_SIZE", block_size)
    generator = torch.Generator().manual_seed(0)
    scores = torch.log_softmax(2 * torch.randn(7, 3, generator=generator, dtype=torch.float64), dim=1)
    scores = scores if representation == "logits" else scores.exp()
    own, weights = torch.tensor([0, 1, 2, 0, 1, 2, 0]), torch.linspace(0.5, 2.0, 7).double()
    inducing = torch.linspace(float(scores.min()), float(scores.max()), 4).double()
    function = process.LatentFunction(inducing, representation=representation).train()
    named = function.parameters_by_name()
    with torch.no_grad():
        for parameter in named.values():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    grid = make_grid(scores, 1.0) if spacing is None else scores_between_nodes(scores, spacing, monkeypatch)
    assert grid.exact == (spacing is None)
    value = process.negative_bound(function, grid, own, weights)
    twins = {name: parameter.detach().clone().requires_grad_() for name, parameter in named.items()}
    expected = -dense_bound(scores, own, weights, inducing, twins, representation) / weights.sum()
    expected.backward()
    assert value == pytest.approx(float(expected.detach()), rel=1e-9 if spacing is None else 1e-7)
    for name, parameter in named.items():
        torch.testing.assert_close(parameter.grad, twins[name].grad, rtol=1e-6, atol=1e-9 if spacing is None else 1e-6)


def scores_between_nodes(scores: torch.Tensor, spacing: float, monkeypatch: pytest.MonkeyPatch) -> ScoreGrid:
    """Spread scores over a grid however few they are: each is there three times, a hair apart."""
    monkeypatch.setattr("kcal.calibrators.gaussian_process.score_grid.FEW", 0)
    near = torch.cat([scores, *(scores + step * 1e-9 for step in (1, 2, 3, 4))])
    grid = make_grid(near, spacing)
    n = len(scores)
    assert grid.share is not None
    return ScoreGrid(scores, grid.nodes, grid.below[:n], grid.share[:n])


def test_predictions_are_the_integral_of_softmax() -> None:
    points, masses = np.polynomial.hermite_e.hermegauss(60)
    masses = masses / masses.sum()
    means, variances = torch.tensor([[0.3, -1.0]]).double(), torch.tensor([[0.8, 2.0]]).double()
    first, second = np.meshgrid(points * 0.8**0.5 + 0.3, points * 2.0**0.5 - 1.0, indexing="ij")
    expected = float((np.outer(masses, masses) / (1 + np.exp(second - first))).sum())
    errors = []
    for draws in (100, 200_000):
        found = expected_softmax(means, variances, standard_normals(draws, 2, seed=0), means).exp()
        assert float(found.sum()) == pytest.approx(1.0)
        errors.append(abs(float(found[0, 0]) - expected))
    assert errors[0] < 0.03
    assert errors[1] < 1e-3


def gpytorch_marginals(model: GaussianProcessModel, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and variance of the latent function at the scores, both (n, n_classes), by gpytorch."""
    function = require_latent_process().LatentFunction(model.inducing, representation=model.representation).eval()
    with torch.no_grad():
        for name, parameter in function.parameters_by_name().items():
            parameter.copy_(getattr(model, name).reshape(parameter.shape))
        posterior = function(scores.reshape(-1, 1))
    return posterior.mean.reshape(scores.shape), posterior.variance.reshape(scores.shape)


@pytest.mark.parametrize("representation", ["logits", "probabilities"])
def test_the_marginals_are_those_of_gpytorch(representation: str, problem: Any) -> None:
    probs = np.exp(problem.logits) / np.exp(problem.logits).sum(axis=1, keepdims=True)
    rows = problem.logits if representation == "logits" else probs
    model = GaussianProcessCalibration(representation=representation).fit(rows, problem.labels).model_
    scores = torch.log_softmax(torch.from_numpy(problem.test_logits), dim=1)
    scores = torch.cat([scores, 10 * scores]) if representation == "logits" else scores.exp()
    for found, expected in zip(model.prepare(3).marginals(scores), gpytorch_marginals(model, scores), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_fitted_prediction_is_the_integral_over_its_own_marginals(problem: Any) -> None:
    fitted = GaussianProcessCalibration(samples=20_000).fit(problem.logits, problem.labels)
    rows = problem.test_logits[:3]
    scores = torch.log_softmax(torch.from_numpy(rows), dim=1)
    means, variances = gpytorch_marginals(fitted.model_, scores)
    points, masses = np.polynomial.hermite_e.hermegauss(24)
    masses = masses / masses.sum()
    for row, mean, deviation in zip(fitted.predict_proba(rows), means.numpy(), variances.sqrt().numpy(), strict=True):
        grid = np.stack(np.meshgrid(*(m + d * points for m, d in zip(mean, deviation, strict=True)), indexing="ij"))
        odds = np.exp(grid - grid.max(axis=0))
        expected = np.einsum("kabc,a,b,c->k", odds / odds.sum(axis=0), masses, masses, masses)
        np.testing.assert_allclose(row, expected, atol=2e-3)


def test_it_recovers_a_monotone_warp_as_samples_grow() -> None:
    logits, _, truth = warped(4_000, seed=99)

    def divergence(calibrator: Any) -> float:
        return float((truth * np.log(truth / calibrator.predict_proba(logits))).sum(axis=1).mean())

    losses = [divergence(GaussianProcessCalibration().fit(*warped(n, seed=1)[:2])) for n in (100, 4_000)]
    assert losses[1] < 0.3 * losses[0]
    assert losses[1] < 0.002
    assert losses[1] < 0.5 * divergence(TemperatureScaling().fit(*warped(4_000, seed=1)[:2]))


def test_predictions_do_not_depend_on_the_batch(
    fitted: GaussianProcessCalibration, problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fitted.predict_proba(problem.test_logits)
    alone = np.concatenate([fitted.predict_proba(problem.test_logits[i : i + 1]) for i in range(20)])
    np.testing.assert_allclose(alone, whole[:20], atol=1e-13)
    monkeypatch.setattr("kcal.calibrators.logit_base.BLOCK_NUMBERS", 1)
    np.testing.assert_allclose(fitted.predict_proba(problem.test_logits[:20]), whole[:20], atol=1e-13)


def test_a_prediction_never_draws_more_numbers_at_once_than_it_says(
    fitted: GaussianProcessCalibration, problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, multiply = [], torch.bmm

    def record(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        sizes.append(max(first.numel(), second.numel()))
        return multiply(first, second)

    monkeypatch.setattr(torch, "bmm", record)
    monkeypatch.setattr("kcal.calibrators.logit_base.BLOCK_NUMBERS", 3_000)
    fitted.predict_proba(problem.test_logits)
    assert max(sizes) == 3_000  # ten rows of 100 draws of 3 classes
    assert len(sizes) == 2 * 60


def test_classes_of_equal_score_get_equal_probabilities(fitted: GaussianProcessCalibration) -> None:
    rows = fitted.predict_proba(np.array([[1.0, 1.0, 1.0], [0.0, 2.0, 2.0], [-1.0, 3.0, -1.0]]))
    np.testing.assert_allclose(rows[0], 1 / 3, rtol=1e-14)
    assert rows[1, 1] == rows[1, 2]
    assert rows[2, 0] == rows[2, 2]
    np.testing.assert_allclose(rows.sum(axis=1), 1.0, rtol=1e-13)


def test_a_certain_row_far_from_the_data_has_finite_log_probs(fitted: GaussianProcessCalibration) -> None:
    log_probs = fitted.predict_log_proba(np.array([[1e4, 0.0, -1e4]]))
    np.testing.assert_allclose(log_probs, [[0.0, -1e4, -2e4]], atol=20)


def test_inducing_points_are_the_k_means_whatever_the_order_or_multiplicity() -> None:
    scores = np.random.default_rng(0).normal(size=(50, 4))
    points = choose_inducing_points(scores, np.ones(50), 10, 0)
    assert len(points) == 10
    np.testing.assert_allclose(points, choose_inducing_points(scores[::-1, ::-1], np.ones(50), 10, 0))
    np.testing.assert_allclose(points, choose_inducing_points(np.tile(scores, (2, 1)), np.ones(100), 10, 0))
    nearest = np.abs(scores.ravel()[:, None] - points).argmin(axis=1)
    np.testing.assert_allclose(points, [scores.ravel()[nearest == i].mean() for i in range(10)], atol=1e-2)
    assert choose_inducing_points(np.zeros((5, 3)), np.ones(5), 10, 0).tolist() == [0.0]
    many = np.random.default_rng(0).normal(size=(30_000, 4))
    points = choose_inducing_points(many, np.ones(30_000), 10, 0)
    nearest = np.abs(many.ravel()[:, None] - points).argmin(axis=1)
    np.testing.assert_allclose(points, [many.ravel()[nearest == i].mean() for i in range(10)], atol=1e-2)


def test_probabilities_are_taken_only_when_named(problem: Any) -> None:
    odds = np.exp(problem.logits - problem.logits.max(axis=1, keepdims=True))
    probabilities = odds / odds.sum(axis=1, keepdims=True)
    fitted = GaussianProcessCalibration(representation="probabilities").fit(probabilities, problem.labels)
    found = fitted.predict_proba(probabilities)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)
    own = np.arange(len(found)), problem.labels
    assert -np.log(found[own]).mean() < -np.log(probabilities[own]).mean() - 0.1
    with pytest.raises(InvalidInputError, match="row 0, which sums to"):
        fitted.fit(problem.logits, problem.labels)


def test_a_class_missing_from_calibration_keeps_a_probability(problem: Any) -> None:
    keep = problem.labels != 2
    found = (
        GaussianProcessCalibration().fit(problem.logits[keep], problem.labels[keep]).predict_proba(problem.test_logits)
    )
    assert found.shape == (600, 3)
    assert (found > 0).all()


def test_torchs_own_generator_is_left_as_it_was(problem: Any) -> None:
    before = torch.get_rng_state()
    GaussianProcessCalibration().fit(problem.logits, problem.labels).predict_proba(problem.test_logits)
    assert torch.equal(before, torch.get_rng_state())


def test_without_gpytorch_the_message_says_how_to_install_it(problem: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kcal.calibrators.gaussian_process.latent_process", raising=False)
    monkeypatch.delattr("kcal.calibrators.gaussian_process.latent_process", raising=False)
    monkeypatch.setitem(sys.modules, "gpytorch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'kcal\[gp\]'"):
        GaussianProcessCalibration().fit(problem.logits, problem.labels)


def test_the_largest_numbers_that_a_file_may_hold_give_probabilities(fitted: GaussianProcessCalibration) -> None:
    state = fitted.state()
    for name, number in (("inducing", -1e100), ("mean", -1e100), ("mean", 1e100)):
        tensors = {**state.tensors, name: state.tensors[name].clone()}
        tensors[name][0] = number
        stored = CalibratorState(state.method, state.parameters, state.values, tensors)
        logits = np.array([[1.0, 0, -2], [-9e17, 0, 9e17], [-20, -30, 0]])
        log_probs = GaussianProcessCalibration.from_state(stored).predict_log_proba(logits)
        assert np.isfinite(log_probs).all()
        np.testing.assert_allclose(np.exp(log_probs).sum(axis=1), 1.0)


@pytest.mark.parametrize(("draws", "expected"), [(1, 2), (7, 8), (8, 8)])
def test_every_draw_has_its_negative(draws: int, expected: int) -> None:
    normals = standard_normals(draws, 3, seed=0)
    assert normals.shape == (expected, 3)
    assert torch.equal(normals.sort(dim=0).values, (-normals).sort(dim=0).values)
