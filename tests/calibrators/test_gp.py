"""Gaussian-process calibration: its bound, its predictions, and the truth that it finds."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from kcal import GaussianProcessCalibration
from kcal.errors import MissingExtraError
from synthetic import warped

NAMES = ("mean", "deviation", "variance", "lengthscale")


@pytest.fixture(scope="module")
def fitted(problem: Any) -> GaussianProcessCalibration:
    return GaussianProcessCalibration().fit(problem.logits, problem.labels)


def softmax(logits: np.ndarray) -> np.ndarray:
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def dense_process(model: Any, values: dict[str, torch.Tensor]) -> Any:
    """The posterior at the inducing points with dense matrices: k, k(Z, Z), mean and covariance."""

    def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return values["variance"] * torch.exp(-((a[..., None] - b) ** 2) / (2 * values["lengthscale"] ** 2))

    prior = kernel(model.inducing, model.inducing) + 0.01 * torch.eye(len(model.inducing)).double()
    root = torch.linalg.cholesky(prior)
    return kernel, prior, root @ values["mean"], root @ torch.diag(values["deviation"] ** 2) @ root.T


def dense_marginals(model: Any, values: dict[str, torch.Tensor], scores: torch.Tensor) -> Any:
    """Mean and variance of the latent function at scores (n, n_classes)."""
    kernel, prior, u_mean, u_cov = dense_process(model, values)
    to_u = kernel(scores, model.inducing) @ torch.linalg.inv(prior)
    mean = (scores if model.representation == "logits" else scores.log()) + to_u @ u_mean
    return mean, values["variance"] + 0.01 - ((to_u @ (prior - u_cov)) * to_u).sum(dim=-1)


def dense_bound(model: Any, values: dict[str, torch.Tensor], scores: torch.Tensor, labels: Any, weights: Any) -> Any:
    """The bound of methods.md, per unit of weight."""
    mean, variance = dense_marginals(model, values, scores)
    share = mean.softmax(dim=1)
    own = mean.log_softmax(dim=1)[torch.arange(len(scores)), torch.as_tensor(labels)]
    fits = own + 0.5 * ((share**2 - share) * variance).sum(dim=1)
    _, prior, u_mean, u_cov = dense_process(model, values)
    q, p = (torch.distributions.MultivariateNormal(*pair) for pair in ((u_mean, u_cov), (0 * u_mean, prior)))
    return (torch.as_tensor(weights) @ fits - torch.distributions.kl_divergence(q, p)) / weights.sum()


@pytest.mark.parametrize("n", [60, 4_000])  # many scores are interpolated on a grid
@pytest.mark.parametrize("representation", ["logits", "probabilities"])
def test_the_fit_maximises_the_bound(representation: str, n: int) -> None:
    logits, labels, _ = warped(n, seed=3)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, n)
    weights /= weights.mean()
    rows = logits if representation == "logits" else softmax(logits)
    calibrator = GaussianProcessCalibration(representation=representation, inducing_points=5)
    model = calibrator.fit(rows, labels, sample_weight=weights).model_
    scores = torch.log_softmax(torch.from_numpy(logits), dim=1)
    scores = scores if representation == "logits" else scores.exp()
    values = {name: getattr(model, name) for name in NAMES}
    bound = dense_bound(model, values, scores, labels, weights)
    assert highest_bound(model, values, scores, labels, weights) - float(bound) < 1e-5
    at_bound = float(values["lengthscale"]) > 9.99
    for name in NAMES:  # the bound depends on each of them
        moved = {**values, name: 1.3 * values[name] + 0.05 * (name == "mean")}
        if not (at_bound and name == "lengthscale"):
            assert dense_bound(model, moved, scores, labels, weights) < bound - 1e-5


def highest_bound(model: Any, values: dict[str, torch.Tensor], *data: Any) -> float:
    """The maximum of the bound, searched by another optimiser from the fit."""
    parts = {name: value if name == "mean" else value.log() for name, value in values.items()}
    sizes = [part.numel() for part in parts.values()]

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        vector = torch.from_numpy(point).requires_grad_()
        split = dict(zip(parts, torch.split(vector, sizes), strict=True))
        moved = {name: part if name == "mean" else part.exp() for name, part in split.items()}
        moved |= {name: moved[name][0] for name in ("variance", "lengthscale")}
        value = -dense_bound(model, moved, *data)
        value.backward()
        return float(value.detach()), vector.grad.numpy()

    start = torch.cat([part.reshape(-1) for part in parts.values()]).numpy()
    bounds = [
        (None, np.log(10) if name == "lengthscale" else None)
        for name, part in parts.items()
        for _ in range(part.numel())
    ]
    return -minimize(loss, start, jac=True, bounds=bounds, method="TNC", options={"maxfun": 500}).fun


@pytest.mark.parametrize("representation", ["logits", "probabilities"])
def test_a_prediction_is_the_integral_over_its_marginals(representation: str, problem: Any) -> None:
    rows = problem.logits if representation == "logits" else softmax(problem.logits)
    fitted = GaussianProcessCalibration(samples=20_000, representation=representation).fit(rows, problem.labels)
    queries = problem.test_logits[:3]
    scores = torch.log_softmax(torch.from_numpy(queries), dim=1)
    scores = scores if representation == "logits" else scores.exp()
    means, variances = dense_marginals(fitted.model_, {name: getattr(fitted.model_, name) for name in NAMES}, scores)
    points, masses = np.polynomial.hermite_e.hermegauss(24)
    masses = masses / masses.sum()
    found = fitted.predict_proba(queries if representation == "logits" else softmax(queries))
    for row, mean, deviation in zip(found, means.numpy(), variances.sqrt().numpy(), strict=True):
        grid = np.stack(np.meshgrid(*(m + d * points for m, d in zip(mean, deviation, strict=True)), indexing="ij"))
        odds = np.exp(grid - grid.max(axis=0))
        expected = np.einsum("kabc,a,b,c->k", odds / odds.sum(axis=0), masses, masses, masses)
        np.testing.assert_allclose(row, expected, atol=2e-3)


def test_predictions_do_not_depend_on_the_batch(fitted: GaussianProcessCalibration, problem: Any) -> None:
    whole = fitted.predict_proba(np.tile(problem.test_logits, (2, 1)))  # more than one block
    alone = np.concatenate([fitted.predict_proba(problem.test_logits[i : i + 1]) for i in range(20)])
    np.testing.assert_allclose(alone, whole[:20], atol=1e-13)
    np.testing.assert_allclose(whole[600:], whole[:600], atol=1e-13)


def test_classes_of_equal_score_get_equal_probabilities(fitted: GaussianProcessCalibration) -> None:
    rows = fitted.predict_proba(np.array([[1.0, 1.0, 1.0], [0.0, 2.0, 2.0], [-1.0, 3.0, -1.0]]))
    np.testing.assert_allclose(rows[0], 1 / 3, rtol=1e-14)
    assert rows[1, 1] == rows[1, 2]
    assert rows[2, 0] == rows[2, 2]
    np.testing.assert_allclose(rows.sum(axis=1), 1.0, rtol=1e-13)


def test_inducing_points_are_the_k_means_whatever_the_order_or_multiplicity() -> None:
    logits, labels, _ = warped(60, seed=0)

    def inducing(rows: Any, y: Any) -> np.ndarray:
        return GaussianProcessCalibration(inducing_points=8).fit(rows, y).model_.inducing.numpy()

    points = inducing(logits, labels)
    np.testing.assert_allclose(points, inducing(logits[::-1], labels[::-1]))
    np.testing.assert_allclose(points, inducing(np.tile(logits, (2, 1)), np.tile(labels, 2)))
    scores = torch.log_softmax(torch.from_numpy(logits), dim=1).numpy().ravel()
    nearest = np.abs(scores[:, None] - points).argmin(axis=1)
    np.testing.assert_allclose(points, [scores[nearest == i].mean() for i in range(8)], atol=1e-2)


def test_without_gpytorch_the_message_says_how_to_install_it(problem: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gpytorch", None)
    with pytest.raises(MissingExtraError, match=r"kcal\[gp\]"):
        GaussianProcessCalibration().fit(problem.logits, problem.labels)


@pytest.mark.parametrize(("draws", "expected"), [(1, 2), (7, 8), (8, 8)])
def test_every_draw_has_its_negative(draws: int, expected: int, problem: Any) -> None:
    normals = GaussianProcessCalibration(samples=draws).fit(problem.logits[:40], problem.labels[:40]).model_.normals
    assert normals.shape == (expected, 3)
    assert torch.equal(normals.sort(dim=0).values, (-normals).sort(dim=0).values)
