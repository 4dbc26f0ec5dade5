"""Dirichlet calibration minimises its formula in every fold and cross-validates its penalties."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from kcal import DirichletCalibration, TemperatureScaling
from kcal.errors import ConvergenceWarning, InvalidInputError
from kcal.samples import stratified_folds
from pooled_network import pooled

pytestmark = pytest.mark.filterwarnings("ignore::kcal.FewSamplesWarning")


def clipped_log_probs(logits: np.ndarray) -> torch.Tensor:
    return torch.log_softmax(torch.from_numpy(logits), dim=1).clamp_min(np.log(2.2e-16))


def draw_labels(logits: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)


def formula(model: torch.Tensor, logs: torch.Tensor, labels: Any, weights: Any, penalty: tuple[float, ...]) -> Any:
    """The penalised loss of one fold, written as in the documentation; ``model`` has the intercepts last."""
    off_diagonal, intercept, diagonal = penalty
    entries, intercepts = model[:, :-1], model[:, -1]
    losses = torch.nn.functional.cross_entropy(logs @ entries.T + intercepts, torch.as_tensor(labels), reduction="none")
    shares = torch.as_tensor(weights / weights.sum())
    own = torch.diagonal(entries)
    outside = (entries - torch.diag(own)).square().sum()
    differences = (own - own.mean()).square().sum()
    return shares @ losses + off_diagonal * outside + intercept * intercepts.square().sum() + diagonal * differences


@pytest.mark.parametrize("penalty", [(0.03, 0.2, 0.05), (1e-3, 1e-3, 0.0), (100.0, 1e-3, 10.0), (1e-2, 100.0, 0.0)])
def test_models_of_folds_are_minimisers_of_the_formula(penalty: tuple[float, ...]) -> None:
    generator = np.random.default_rng(0)
    logits, weights = generator.normal(scale=2, size=(80, 4)), generator.uniform(0.2, 3.0, 80)
    logits[:20, 3] -= 200.0  # clipped
    labels = generator.integers(0, 4, 80)
    fitted = DirichletCalibration(grid=[penalty], folds=3, seed=2).fit(logits, labels, sample_weight=weights)
    assert (fitted.off_diagonal_, fitted.intercept_, fitted.diagonal_) == penalty
    folds = stratified_folds(labels, 3, 2)
    for fold in range(3):
        kept = folds != fold
        model = torch.from_numpy(np.c_[fitted.weights_[fold], fitted.intercepts_[fold]])

        def loss(flat: torch.Tensor, kept: Any = kept) -> Any:
            return formula(flat.view(4, 5), clipped_log_probs(logits)[kept], labels[kept], weights[kept], penalty)

        slopes = torch.autograd.functional.jacobian(loss, model.ravel())
        assert float(slopes.abs().max()) < 1e-7
        newton = torch.linalg.solve(torch.autograd.functional.hessian(loss, model.ravel()), slopes)
        assert float(newton.abs().max()) < 1e-5  # the distance from the minimiser, by dense matrices


def standard_errors(logs: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Those of the maximum-likelihood W and b, centred over classes, (K, K + 1), from the Fisher information."""
    p = torch.softmax(torch.from_numpy(logits), dim=1).numpy()
    features = np.c_[logs, np.ones(len(logs))]
    bends = p[:, :, None] * (np.eye(p.shape[1]) - p[:, None, :])  # (n, K, K)
    information = np.einsum("nij,na,nb->iajb", bends, features, features, optimize=True)
    size = information.shape[0] * information.shape[1]
    covariance = np.linalg.pinv(information.reshape(size, size), rcond=1e-10)
    return np.sqrt(np.diag(covariance)).reshape(p.shape[1], -1)


def test_known_weights_and_intercepts_are_recovered_at_the_rate_of_maximum_likelihood() -> None:
    generator = np.random.default_rng(0)
    logs = np.log(generator.dirichlet([1.0, 1.5, 2.0], size=80_000))
    truth = np.array([[1.2, -0.3, 0.2, 0.5], [0.1, 0.7, -0.2, -0.8], [-0.2, 0.2, 0.9, 0.3]])
    logits = logs @ truth[:, :3].T + truth[:, 3]
    labels = draw_labels(logits, generator)
    sizes = []
    for n in (800, 80_000):
        fitted = DirichletCalibration(grid=[(1e-7, 1e-7)], folds=2).fit(logs[:n], labels[:n])
        found = np.c_[fitted.weights_.mean(axis=0), fitted.intercepts_.mean(axis=0)]
        errors = (found - found.mean(axis=0)) - (truth - truth.mean(axis=0))
        assert (np.abs(errors) < 4 * standard_errors(logs[:n], logits[:n])).all()
        sizes.append(np.sqrt((errors**2).mean()))
    assert sizes[1] < 0.25 * sizes[0]  # a hundred times the samples: a tenth is expected


def test_the_strongest_penalties_are_temperature_scaling(problem: Any) -> None:
    strong = DirichletCalibration(grid=[(1e4, 1e4, 1e4)]).fit(problem.logits, problem.labels)
    many = np.tile(problem.logits, (200, 1)), np.tile(problem.labels, 200)  # the prior of the temperature vanishes
    plain = TemperatureScaling().fit(*many)
    np.testing.assert_allclose(strong.weights_.mean(axis=0), np.eye(3) / plain.temperature_, atol=0.01)


def test_the_prediction_is_the_mean_of_the_models_of_the_folds(problem: Any) -> None:
    fitted = DirichletCalibration(grid=[(0.1, 0.1)]).fit(problem.logits, problem.labels)
    logs = clipped_log_probs(problem.test_logits).numpy()
    models = [logs @ w.T + b for w, b in zip(fitted.weights_, fitted.intercepts_, strict=True)]
    mean = np.mean([torch.softmax(torch.from_numpy(model), dim=1).numpy() for model in models], axis=0)
    expected = pooled(mean, problem.test_logits, problem.logits, problem.labels)
    assert len(models) == 5
    np.testing.assert_allclose(fitted.predict_proba(problem.test_logits), expected, atol=1e-12)


@pytest.mark.parametrize(("n", "n_classes", "scale"), [(60, 4, 1e3), (30, 3, 1e17)])
def test_saturated_logits_reach_the_minimum(n: int, n_classes: int, scale: float) -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(n, n_classes)) * scale
    labels = generator.integers(0, n_classes, n)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        fitted = DirichletCalibration().fit(logits, labels)
    assert fitted.search_[0][3] < 2 * np.log(n_classes)  # a fold left at its start has twenty times that
    assert min(point[3] for point in fitted.search_) < np.log(n_classes) + 0.1


def test_losses_of_the_search_are_those_of_held_out_rows(problem: Any) -> None:
    fitted = DirichletCalibration(grid=[(0.1, 0.1), (1.0, 0.1)]).fit(problem.logits, problem.labels)
    assert (fitted.off_diagonal_, fitted.intercept_) == min(fitted.search_, key=lambda point: point[3])[:2]
    again = DirichletCalibration(grid=[(fitted.off_diagonal_, 0.1)]).fit(problem.logits, problem.labels)
    folds = stratified_folds(problem.labels, 5, 0)
    losses = np.empty(len(folds))
    for fold in range(5):
        rows = folds == fold
        logits = clipped_log_probs(problem.logits)[rows].numpy() @ again.weights_[fold].T + again.intercepts_[fold]
        own = torch.log_softmax(torch.from_numpy(logits), dim=1)[torch.arange(rows.sum()), problem.labels[rows]]
        losses[rows] = -own.numpy()
    assert again.search_[0][3] == pytest.approx(losses.mean(), abs=1e-4)


@pytest.mark.parametrize("grid", ["tied", "odir"])
def test_a_search_tries_at_most_twenty_points_and_takes_the_best(grid: str, problem: Any) -> None:
    fitted = DirichletCalibration(grid=grid).fit(problem.logits, problem.labels)
    losses = {point[:3]: point[3] for point in fitted.search_}
    assert 5 < len(losses) == len(fitted.search_) <= 20
    assert (fitted.diagonal_ == 0) == (grid == "odir")
    chosen = losses[fitted.off_diagonal_, fitted.intercept_, fitted.diagonal_]
    assert chosen * (1 - 2e-4) <= min(losses.values()) < fitted.search_[0][3]


def test_the_published_grid_has_all_its_points(problem: Any) -> None:
    fitted = DirichletCalibration(grid="published", folds=2).fit(problem.logits[:40], problem.labels[:40])
    assert len({point[:2] for point in fitted.search_}) == len(fitted.search_) == 36 * 12
    assert {point[0] for point in fitted.search_} >= {1e-5, 2.5e-6, 5e5, 1e6}
    assert {point[2] for point in fitted.search_} == {0.0}


def test_a_free_diagonal_of_a_class_without_samples_stays(problem: Any) -> None:
    logits = np.hstack([problem.logits, problem.logits.mean(axis=1, keepdims=True)])
    fitted = DirichletCalibration(grid=[(0.1, 0.1)]).fit(logits, problem.labels)
    np.testing.assert_array_equal(fitted.weights_[:, 3, 3], 1.0)
    tied = DirichletCalibration().fit(logits, problem.labels)
    own = tied.model_.log_probs(torch.from_numpy(logits).log_softmax(dim=1))  # without the network
    assert (own[:, 3].exp() < 0.05).all()


@pytest.mark.filterwarnings("ignore::kcal.errors.LeakageWarning")
def test_separable_samples_warn_and_stay_finite() -> None:
    labels = np.arange(30) % 3
    with pytest.warns(ConvergenceWarning, match="Dirichlet"):
        fitted = DirichletCalibration().fit(5.0 * np.eye(3)[labels], labels)
    assert np.isfinite(fitted.weights_).all()
    assert (fitted.predict(np.eye(3)) == [0, 1, 2]).all()


@pytest.mark.parametrize(
    "grid", ["fine", [], 3, [1.0, 2.0], [(1.0,)], ["ab"], [(1.0, -1.0)], [(0.0, 1.0)], [(1.0, 0.0)], [(1.0, 1.0, "a")]]
)
def test_invalid_grid_raises(grid: Any, problem: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^grid"):
        DirichletCalibration(grid=grid).fit(problem.logits, problem.labels)


@pytest.mark.filterwarnings("ignore::kcal.errors.ConvergenceWarning")
def test_one_sample_cannot_be_cross_validated_and_two_can() -> None:
    with pytest.raises(InvalidInputError, match="X must hold"):
        DirichletCalibration().fit([[0.0, 1.0]], [0])
    fitted = DirichletCalibration().fit([[0.0, 1.0], [0.5, 0.2]], [0, 1])
    assert len(fitted.weights_) == 2
    np.testing.assert_allclose(fitted.predict_proba([[3.0, 1.0]]).sum(), 1.0, atol=1e-12)
