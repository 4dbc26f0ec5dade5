"""Dirichlet calibration cross-validates its penalties and estimates W and b."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

from kcal import DirichletCalibration, TemperatureScaling, load, save
from kcal.calibrators.dirichlet import training as dirichlet_training
from kcal.calibrators.dirichlet.grid import MAX_POINTS, published_grid, search_penalty
from kcal.calibrators.dirichlet.solver import FoldProblem, Penalty, identity, solve_folds
from kcal.calibrators.dirichlet.training import train_folds
from kcal.errors import ConvergenceWarning, InvalidInputError
from kcal.samples import stratified_folds
from pooled_network import pooled


def draw_labels(logits: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)


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
        expected = standard_errors(logs[:n], logits[:n])
        assert (np.abs(errors) < 4 * expected).all()
        sizes.append(np.sqrt((errors**2).mean()))
    assert sizes[1] < 0.25 * sizes[0]  # a hundred times the samples: a tenth is expected


def test_the_intercept_learns() -> None:
    generator = np.random.default_rng(1)
    logs = np.log(generator.dirichlet([2.0, 2.0, 2.0], size=6_000))
    intercepts = np.array([1.0, 0.0, -1.0])
    fitted = DirichletCalibration().fit(logs, draw_labels(logs + intercepts, generator))
    found = fitted.intercepts_.mean(axis=0)
    np.testing.assert_allclose(found - found.mean(), intercepts, atol=0.15)
    np.testing.assert_allclose(fitted.weights_.mean(axis=0), np.eye(3), atol=0.15)


def test_the_strongest_penalties_are_temperature_scaling(problem: Any) -> None:
    strong = DirichletCalibration(grid=[(1e4, 1e4, 1e4)]).fit(problem.logits, problem.labels)
    many = np.tile(problem.logits, (200, 1)), np.tile(problem.labels, 200)  # the prior of the temperature vanishes
    plain = TemperatureScaling().fit(*many)
    np.testing.assert_allclose(strong.weights_.mean(axis=0), np.eye(3) / plain.temperature_, atol=0.01)
    np.testing.assert_allclose(
        strong.predict_proba(problem.test_logits), plain.predict_proba(problem.test_logits), atol=0.01
    )


def test_the_prediction_is_the_mean_of_the_folds_models(problem: Any) -> None:
    fitted = DirichletCalibration(grid=[(0.1, 0.1)]).fit(problem.logits, problem.labels)
    logs = torch.log_softmax(torch.from_numpy(problem.test_logits), dim=1).clamp_min(np.log(2.2e-16)).numpy()
    models = [logs @ w.T + b for w, b in zip(fitted.weights_, fitted.intercepts_, strict=True)]
    expected = np.mean([torch.softmax(torch.from_numpy(model), dim=1).numpy() for model in models], axis=0)
    assert len(models) == 5
    expected = pooled(expected, problem.test_logits, problem.logits, problem.labels)
    np.testing.assert_allclose(fitted.predict_proba(problem.test_logits), expected, atol=1e-12)


def test_probabilities_are_clipped_at_the_published_constant_in_fitting_and_after() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(60, 3))
    logits[:, 2] -= np.where(np.arange(60) < 30, 200.0, 0.0)  # log q of the third class lies far below log 2.2e-16
    labels = generator.integers(0, 3, 60)
    clipped = torch.log_softmax(torch.from_numpy(logits), dim=1).numpy()
    clipped = np.where(clipped < np.log(2.2e-16), np.log(2.2e-16), clipped)
    fitted = DirichletCalibration(grid=[(0.1, 0.1)], folds=2).fit(logits, labels)
    folds = stratified_folds(labels, 2, 0)
    shares = torch.from_numpy((folds[None] != np.arange(2)[:, None]) / 30.0)
    rows = FoldProblem(torch.from_numpy(np.c_[clipped, np.ones(60)]), torch.from_numpy(labels), shares)
    expected = solve_folds(rows, Penalty(0.1, 0.1), identity(2, 3), tolerance=1e-12).coefficients.numpy()
    np.testing.assert_allclose(fitted.weights_, expected[..., :-1], atol=1e-4)
    models = [clipped @ w.T + b for w, b in zip(fitted.weights_, fitted.intercepts_, strict=True)]
    mean = np.mean([torch.softmax(torch.from_numpy(model), dim=1).numpy() for model in models], axis=0)
    np.testing.assert_allclose(fitted.predict_proba(logits), pooled(mean, logits, logits, labels), atol=1e-12)
    assert np.abs(fitted.weights_[:, :, 2]).max() > 1e-3  # the clipped column counts


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
    alone = fitted.model_.log_probs(torch.log_softmax(torch.from_numpy(logits), dim=1)).numpy()
    assert -alone[np.arange(n), labels].mean() < np.log(n_classes)


def test_the_losses_of_the_search_are_those_of_held_out_rows(problem: Any) -> None:
    fitted = DirichletCalibration(grid=[(0.1, 0.1), (1.0, 0.1)]).fit(problem.logits, problem.labels)
    assert (fitted.off_diagonal_, fitted.intercept_) == min(fitted.search_, key=lambda point: point[3])[:2]
    again = DirichletCalibration(grid=[(fitted.off_diagonal_, 0.1)]).fit(problem.logits, problem.labels)
    folds = stratified_folds(problem.labels, 5, 0)
    logs = torch.log_softmax(torch.from_numpy(problem.logits), dim=1).clamp_min(np.log(2.2e-16))
    losses = np.empty(len(folds))
    for fold in range(5):
        model = logs.numpy() @ again.weights_[fold].T + again.intercepts_[fold]
        of_fold = -torch.log_softmax(torch.from_numpy(model), dim=1).numpy()[np.arange(len(folds)), problem.labels]
        losses[folds == fold] = of_fold[folds == fold]
    assert again.search_[0][3] == pytest.approx(losses.mean(), abs=1e-4)


def test_the_choice_of_training_reaches_the_models(problem: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirichlet_training, "EPOCHS", 10)
    fitted = DirichletCalibration(grid=[(1.0, 1.0), (0.1, 0.1)], training="published", folds=2, seed=3)
    fitted.fit(problem.logits, problem.labels)
    folds = stratified_folds(problem.labels, 2, 3)
    shares = torch.from_numpy((folds[None] != np.arange(2)[:, None]) / 120.0)
    logs = torch.log_softmax(torch.from_numpy(problem.logits), dim=1).clamp_min(np.log(2.2e-16))
    rows = FoldProblem(torch.nn.functional.pad(logs, (0, 1), value=1.0), torch.from_numpy(problem.labels), shares)
    (solution,) = train_folds(rows, [Penalty(fitted.off_diagonal_, fitted.intercept_)], seed=3)
    expected = solution.coefficients.numpy()
    np.testing.assert_allclose(fitted.weights_, expected[..., :-1], atol=1e-9)
    np.testing.assert_allclose(fitted.intercepts_, expected[..., -1], atol=1e-9)


def test_a_penalised_diagonal_is_better_with_few_samples_per_class() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(scale=3, size=(1_200, 15))
    labels = draw_labels(logits, generator)
    nll = []
    for grid in ("tied", [(1e4, 1.0)]):
        fitted = DirichletCalibration(grid=grid).fit(1.5 * logits[:90], labels[:90])
        own = fitted.model_.log_probs(torch.from_numpy(1.5 * logits[90:]).log_softmax(dim=1))  # without the network
        nll.append(-float(own[torch.arange(1_110), torch.from_numpy(labels[90:])].mean()))
    assert nll[0] < nll[1] - 0.02


def test_the_default_grid_has_at_most_twenty_points_and_the_published_one_all_of_them(problem: Any) -> None:
    for grid in ("tied", "odir"):
        fitted = DirichletCalibration(grid=grid).fit(problem.logits, problem.labels)
        assert 5 < len(fitted.search_) <= MAX_POINTS == 20
        assert (fitted.diagonal_ == 0) == (grid == "odir")
    assert len(published_grid(10)) == 36 * 12
    assert len(published_grid(100)) == 27 * 9
    assert {penalty.off_diagonal for penalty in published_grid(10)} >= {1e-5, 2.5e-6, 5e5, 1e6}
    assert min(penalty.intercept for penalty in published_grid(100)) == 1e-2


def test_the_search_finds_the_minimum_of_a_smooth_loss() -> None:
    best = np.log10([0.02, 0.5, 0.05])

    def loss_of(penalty: Penalty) -> float:
        point = np.log10([penalty.off_diagonal, penalty.intercept, penalty.diagonal])
        return 1.0 + float(((point - best) ** 2).sum())

    found = search_penalty(loss_of, tied=True)
    assert loss_of(found) < 1.2


def test_folds_spread_every_class_and_do_not_know_its_number() -> None:
    codes = np.random.default_rng(0).integers(0, 7, 203)
    folds = stratified_folds(codes, 5, seed=3)
    for members in [codes == code for code in range(7)] + [codes >= 0]:
        counts = np.bincount(folds[members], minlength=5)
        assert counts.max() - counts.min() <= 1
    renamed = np.random.default_rng(1).permutation(7)[codes]
    np.testing.assert_array_equal(stratified_folds(renamed, 5, seed=3), folds)
    assert (stratified_folds(codes, 5, seed=4) != folds).any()


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
    with pytest.warns(ConvergenceWarning, match="separate the classes"):
        fitted = DirichletCalibration().fit(5.0 * np.eye(3)[labels], labels)
    assert np.isfinite(fitted.weights_).all()
    assert (fitted.predict(np.eye(3)) == [0, 1, 2]).all()


def test_weights_of_zero_leave_samples_out_and_the_unit_of_weights_is_free(problem: Any) -> None:
    kept = np.arange(240) < 200
    weighted = DirichletCalibration().fit(problem.logits, problem.labels, sample_weight=3.0 * kept)
    short = DirichletCalibration().fit(problem.logits[kept], problem.labels[kept])
    np.testing.assert_allclose(weighted.weights_, short.weights_, atol=1e-9)


def test_fitting_does_not_change_the_parameters(problem: Any) -> None:
    grid = [(1.0, 0.1), (0.1, 0.1)]
    fitted = DirichletCalibration(grid=grid).fit(problem.logits, problem.labels)
    assert fitted.get_params()["grid"] is grid
    assert grid == [(1.0, 0.1), (0.1, 0.1)]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"grid": "fine"}, "grid must be one of"),
        ({"grid": []}, "grid must be one of"),
        ({"grid": [(1.0,)]}, "two or three numbers"),
        ({"grid": [(1.0, -1.0)]}, "grid must be a number between 0"),
        ({"grid": [(0.0, 1.0)]}, "must have positive"),
        ({"folds": 1}, "folds must be"),
        ({"folds": True}, "folds must be"),
        ({"seed": -1}, "seed must be"),
        ({"training": "sgd"}, "training must be"),
    ],
)
def test_parameters_that_are_invalid_raise(parameters: dict[str, Any], message: str, problem: Any) -> None:
    with pytest.raises(InvalidInputError, match=message):
        DirichletCalibration(**parameters).fit(problem.logits, problem.labels)


def test_one_sample_cannot_be_cross_validated_and_two_can() -> None:
    with pytest.raises(InvalidInputError, match="at least 2 samples"):
        DirichletCalibration().fit([[0.0, 1.0]], [0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = DirichletCalibration().fit([[0.0, 1.0], [0.5, 0.2]], [0, 1])
    assert len(fitted.weights_) == 2
    np.testing.assert_allclose(fitted.predict_proba([[3.0, 1.0]]).sum(), 1.0, atol=1e-12)


def test_whole_numbers_of_any_kind_come_back_from_the_file(problem: Any, tmp_path: Path) -> None:
    made = DirichletCalibration(grid=((np.int64(1), 1.0),), folds=np.int64(3), seed=np.int32(1), progress=False)
    fitted = made.fit(problem.logits, problem.labels)
    loaded = load(save(fitted, tmp_path / "dircal.kcal"))
    assert (loaded.grid, loaded.folds, loaded.seed, loaded.progress) == ([[1.0, 1.0]], 3, 1, False)
    assert loaded.search_ == fitted.search_
    again = clone(loaded).fit(problem.logits, problem.labels)
    np.testing.assert_array_equal(again.weights_, fitted.weights_)
