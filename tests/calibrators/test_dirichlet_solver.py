"""The solver of Dirichlet calibration finds the minimum of its formula; the published training comes near it."""

from __future__ import annotations

import warnings
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.utils._python_dispatch import TorchDispatchMode

from kcal.calibrators.dirichlet import solver as dirichlet_solver
from kcal.calibrators.dirichlet import training as dirichlet_training
from kcal.calibrators.dirichlet.solver import (
    FoldProblem,
    FoldSolution,
    Penalty,
    identity,
    solve_folds,
    tempered_identity,
)
from kcal.calibrators.dirichlet.training import n_stops, train_folds

PENALTY = Penalty(0.03, 0.2, 0.05)


def make_fold_problem(n: int = 60, n_classes: int = 4, n_folds: int = 3) -> FoldProblem:
    generator = np.random.default_rng(0)
    logs = torch.log_softmax(torch.from_numpy(generator.normal(scale=2, size=(n, n_classes))), dim=1)
    codes = torch.from_numpy(generator.integers(0, n_classes, n))
    shares = torch.from_numpy(generator.random((n_folds, n)))
    shares[0, :10] = 0
    return FoldProblem(torch.nn.functional.pad(logs, (0, 1), value=1.0), codes, shares / shares.sum(1, keepdim=True))


def plain_loss(problem: FoldProblem, coefficients: torch.Tensor, penalty: Penalty) -> torch.Tensor:
    """The sum over folds, written as the formula is."""
    total = torch.zeros((), dtype=torch.float64)
    for shares, model in zip(problem.shares, coefficients, strict=True):
        weights, intercepts = model[:, :-1], model[:, -1]
        logits = problem.features[:, :-1] @ weights.T + intercepts
        losses = torch.nn.functional.cross_entropy(logits, problem.codes, reduction="none")
        outside = weights - torch.diag(torch.diagonal(weights))
        diagonal = torch.diagonal(weights)
        total = total + (shares * losses).sum() + penalty.off_diagonal * (outside**2).sum()
        total = total + penalty.intercept * (intercepts**2).sum()
        total = total + penalty.diagonal * ((diagonal - diagonal.mean()) ** 2).sum()
    return total


def test_loss_gradient_and_curvature_are_those_of_the_formula() -> None:
    problem = make_fold_problem()
    generator = torch.Generator().manual_seed(0)
    point = torch.randn(3, 4, 5, dtype=torch.float64, generator=generator)
    direction = torch.randn(3, 4, 5, dtype=torch.float64, generator=generator)
    log_p = problem.log_probs(point)
    expected = plain_loss(problem, point, PENALTY)
    torch.testing.assert_close(problem.loss(point, log_p, PENALTY).sum(), expected, rtol=1e-12, atol=0)
    gradient = problem.gradient(point, log_p.exp(), PENALTY)
    step = 1e-5
    ahead, behind = (plain_loss(problem, point + sign * step * direction, PENALTY) for sign in (1, -1))
    assert float((gradient * direction).sum()) == pytest.approx(float(ahead - behind) / (2 * step), rel=1e-7)
    by_torch = torch.autograd.functional.vhp(lambda at: plain_loss(problem, at, PENALTY), point, direction)[1]
    torch.testing.assert_close(problem.curvature(direction, log_p.exp(), PENALTY), by_torch, rtol=1e-9, atol=1e-12)


def test_the_loss_of_a_hand_computed_example_is_in_sums() -> None:
    features = torch.tensor([[-1.0, -2.0, 1.0]], dtype=torch.float64)
    problem = FoldProblem(features, torch.tensor([0]), torch.ones(1, 1, dtype=torch.float64))
    model = torch.tensor([[[2.0, 0.5, 0.1], [-1.0, 1.0, 0.3]]], dtype=torch.float64)
    first, second = -2.0 - 1.0 + 0.1, 1.0 - 2.0 + 0.3
    expected = np.log(np.exp(first) + np.exp(second)) - first + 3.0 * (0.25 + 1.0) + 7.0 * (0.01 + 0.09)
    loss = problem.loss(model, problem.log_probs(model), Penalty(3.0, 7.0))
    assert float(loss) == pytest.approx(expected, rel=1e-12)
    tied = problem.loss(model, problem.log_probs(model), Penalty(3.0, 7.0, 11.0))
    assert float(tied - loss) == pytest.approx(11.0 * (0.25 + 0.25), rel=1e-12)


@pytest.mark.parametrize("penalty", [PENALTY, Penalty(1e-3, 1e-3), Penalty(100.0, 1e-3, 10.0), Penalty(1e-2, 100.0)])
def test_the_solver_finds_the_minimum_that_scipy_finds(penalty: Penalty) -> None:
    problem = make_fold_problem()

    def value_and_slope(flat: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(flat).reshape(3, 4, 5).requires_grad_()
        loss = plain_loss(problem, point, penalty)
        loss.backward()
        return float(loss.detach()), point.grad.numpy().ravel()

    options = {"maxiter": 20_000, "maxfun": 50_000, "ftol": 1e-15, "gtol": 1e-9}
    reference = minimize(value_and_slope, identity(3, 4).numpy().ravel(), jac=True, method="L-BFGS-B", options=options)
    found = solve_folds(problem, penalty, identity(3, 4), tolerance=1e-12)
    assert found.converged
    assert float(plain_loss(problem, found.coefficients, penalty)) <= reference.fun + 1e-9
    np.testing.assert_allclose(found.coefficients.numpy().ravel(), reference.x, atol=2e-3)


@pytest.mark.parametrize(("off_diagonal", "intercept"), [(1e-3, 1e-3), (0.05, 0.2)])
def test_the_minimum_is_that_of_dirichletcal(off_diagonal: float, intercept: float) -> None:
    package = pytest.importorskip("dirichletcal.calib.fulldirichlet")
    generator = np.random.default_rng(2)
    logits = generator.normal(scale=2, size=(300, 4))
    labels = (0.6 * logits + [0.5, 0, 0, -0.5] + generator.gumbel(size=logits.shape)).argmax(axis=1)
    logs = torch.log_softmax(torch.from_numpy(logits), dim=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = package.FullDirichletCalibrator(reg_lambda=off_diagonal, reg_mu=intercept, ref_row=False)
        theirs.fit(logs.exp().numpy(), labels)
        expected = np.asarray(theirs.predict_proba(logs.exp().numpy()))
        model = torch.from_numpy(np.array(theirs.weights))[None]
    shares = torch.full((1, 300), 1 / 300, dtype=torch.float64)
    problem = FoldProblem(torch.nn.functional.pad(logs, (0, 1), value=1.0), torch.from_numpy(labels), shares)
    penalty = Penalty(off_diagonal, intercept)
    found = solve_folds(problem, penalty, identity(1, 4), tolerance=1e-12).coefficients
    assert float(plain_loss(problem, found, penalty)) <= float(plain_loss(problem, model, penalty)) + 1e-9
    np.testing.assert_allclose(problem.log_probs(found)[0].exp(), expected, atol=1e-4)


class LargestTensor(TorchDispatchMode):
    """Remembers how many numbers the largest tensor made so far holds."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        parts = made if isinstance(made, tuple | list) else (made,)
        self.numbers = max([self.numbers, *(part.numel() for part in parts if isinstance(part, torch.Tensor))])
        return made


def test_nothing_larger_than_rows_times_classes_is_made() -> None:
    problem = make_fold_problem(n=90, n_classes=40, n_folds=1)
    with LargestTensor() as largest:
        solve_folds(problem, PENALTY, identity(1, 40), tolerance=1e-6)
    assert 90 * 40 <= largest.numbers <= 90 * 41


def test_folds_that_follow_one_another_give_what_folds_together_give(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_fold_problem()
    together = solve_folds(problem, PENALTY, identity(3, 4), tolerance=1e-13)
    monkeypatch.setattr(dirichlet_solver, "LARGEST_PRODUCT", 1)
    apart = solve_folds(problem, PENALTY, identity(3, 4), tolerance=1e-13)
    torch.testing.assert_close(apart.coefficients, together.coefficients, rtol=0, atol=1e-6)
    torch.testing.assert_close(apart.own_log, together.own_log, rtol=0, atol=1e-6)


def train(problem: FoldProblem, penalty: Penalty, seed: int = 0) -> FoldSolution:
    """The published training of one penalty."""
    (solution,) = train_folds(problem, [penalty], seed=seed)
    return solution


def train_alone(problem: FoldProblem, penalty: Penalty, seed: int) -> torch.Tensor:
    """The published training of one penalty and the rows of one fold by torch's own Adam and derivatives."""
    best = identity(1, problem.n_classes)
    n = len(problem.codes)
    for phase, rate in enumerate(dirichlet_training.LEARNING_RATES):
        generator = np.random.default_rng([seed, 0, phase])
        model, least, waited = best.clone().requires_grad_(), inf, 0
        optimiser = torch.optim.Adam([model], lr=rate, eps=1e-7)
        for _ in range(dirichlet_training.EPOCHS):
            order, total = torch.from_numpy(generator.permutation(n)), 0.0
            for rows in order.split(dirichlet_training.BATCH):
                shares = problem.shares[:, rows] * n / len(rows)
                loss = plain_loss(FoldProblem(problem.features[rows], problem.codes[rows], shares), model, penalty)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += float(loss.detach()) * len(rows)
            waited += 1
            if total < least:
                best, least, waited = model.detach().clone(), total, 0
            if waited == dirichlet_training.PATIENCE:
                break
    return best


def test_penalties_trained_side_by_side_give_what_each_gives_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirichlet_training, "BATCH", 25)
    monkeypatch.setattr(dirichlet_training, "EPOCHS", 40)
    monkeypatch.setattr(dirichlet_training, "PATIENCE", 3)
    monkeypatch.setattr(dirichlet_training, "LEARNING_RATES", (0.1, 0.01))
    problem = make_fold_problem(n_folds=1)
    kept = problem.shares[0] > 0
    rows = FoldProblem(problem.features[kept], problem.codes[kept], problem.shares[:, kept])
    penalties = [PENALTY, Penalty(10.0, 1e-3), Penalty(1e-3, 10.0, 1.0)]
    stops: list[str] = []
    found = list(train_folds(problem, penalties, seed=4, advance=stops.append))
    for penalty, solution in zip(penalties, found, strict=True):
        torch.testing.assert_close(solution.coefficients, train_alone(rows, penalty, 4), rtol=0, atol=1e-9)
    assert len(stops) == n_stops(problem, penalties) == 6


def test_the_published_training_in_one_batch_reaches_the_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirichlet_training, "LEARNING_RATES", (0.05, 0.005))
    problem = make_fold_problem(n=dirichlet_training.BATCH, n_folds=2)
    least = solve_folds(problem, PENALTY, identity(2, 4), tolerance=1e-12).coefficients
    losses = [float(plain_loss(problem, model, PENALTY)) for model in (least, train(problem, PENALTY).coefficients)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-3)


def test_the_published_training_is_drawn_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirichlet_training, "EPOCHS", 5)
    problem = make_fold_problem(n=300)
    found, again, other = (train(problem, PENALTY, seed=seed).coefficients for seed in (0, 0, 1))
    assert torch.equal(found, again)
    assert not torch.equal(found, other)


def test_the_published_training_sees_no_row_that_is_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirichlet_training, "EPOCHS", 20)
    problem = make_fold_problem()
    short = FoldProblem(problem.features[10:], problem.codes[10:], problem.shares[:1, 10:])
    found = train(problem, PENALTY)
    torch.testing.assert_close(found.coefficients[:1], train(short, PENALTY).coefficients)
    torch.testing.assert_close(found.own_log, problem.own(problem.log_probs(found.coefficients)))


def test_the_published_training_keeps_the_best_epoch_and_stops_when_nothing_is_gained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each epoch adds 1 to every coefficient; the third is the best at the first rate, the second at the next."""
    losses = iter([5.0, 4.0, 3.0, *[9.0] * dirichlet_training.PATIENCE, 8.0, 2.0, *[9.0] * dirichlet_training.PATIENCE])

    def epoch(models: Any, *_: Any) -> torch.Tensor:
        models.coefficients += 1
        return torch.tensor([next(losses)], dtype=torch.float64)

    monkeypatch.setattr(dirichlet_training.Models, "epoch", epoch)
    assert torch.equal(train(make_fold_problem(n_folds=1), PENALTY).coefficients, identity(1, 4) + 3 + 2)
    assert next(losses, None) is None


def make_saturated_problem() -> FoldProblem:
    """Rows that are predicted with certainty, many of them wrongly; the first fold has no sample of class 3."""
    generator = np.random.default_rng(0)
    logs = torch.log_softmax(torch.from_numpy(generator.normal(scale=1e3, size=(60, 4))), dim=1)
    codes = torch.where(torch.arange(60) % 3 > 0, logs.argmax(dim=1), torch.from_numpy(generator.integers(0, 4, 60)))
    shares = torch.ones(2, 60, dtype=torch.float64)
    shares[0, codes == 3] = 0
    features = torch.nn.functional.pad(logs.clamp_min(np.log(2.2e-16)), (0, 1), value=1.0)
    return FoldProblem(features, codes, shares / shares.sum(dim=1, keepdim=True))


def test_the_tempered_start_is_the_best_power_of_two() -> None:
    problem = make_saturated_problem()
    start = tempered_identity(problem)
    candidates = [identity(2, 4) / 2.0**power for power in range(15)]
    for candidate in candidates:
        candidate[0, 3, 3] = 1.0
    losses = torch.stack([-(problem.shares * problem.own(problem.log_probs(c))).sum(1) for c in candidates])
    for fold, best in enumerate(losses.argmin(dim=0).tolist()):
        assert 0 < best < 14
        torch.testing.assert_close(start[fold], candidates[best][fold])
    calm = make_fold_problem()
    sure = FoldProblem(calm.features, calm.features[:, :-1].argmax(dim=1), calm.shares)
    assert torch.equal(tempered_identity(sure), identity(3, 4))


def test_a_fold_that_cannot_move_stops_soon_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, searches = make_saturated_problem(), []
    search = dirichlet_solver._line_search
    monkeypatch.setattr(dirichlet_solver, "_line_search", lambda *values: searches.append(1) or search(*values))
    stuck = solve_folds(problem, PENALTY, 1e3 * identity(2, 4), tolerance=1e-9)
    assert not stuck.converged
    assert len(searches) < 10
    found = solve_folds(problem, PENALTY, tempered_identity(problem), tolerance=1e-9)
    assert found.converged
    assert bool((found.cross_entropy < np.log(4)).all())


def test_saturated_logits_stay_finite_and_take_few_steps() -> None:
    logs = torch.log_softmax(torch.from_numpy(np.where(np.eye(3)[np.arange(12) % 3] > 0, 1e4, -1e4)), dim=1)
    features = torch.nn.functional.pad(logs.clamp_min(np.log(2.2e-16)), (0, 1), value=1.0)
    problem = FoldProblem(features, torch.arange(12) % 3, torch.full((1, 12), 1 / 12, dtype=torch.float64))
    coefficients = identity(1, 3)
    for penalty in (Penalty(100.0, 0.01, 1.0), Penalty(1.0, 1e-6, 1e-6), Penalty(1e-6, 1e4), PENALTY):
        for _ in range(5):  # from where the last one stopped, as the search does
            found = solve_folds(problem, penalty, coefficients, tolerance=1e-5, steps=5)
            coefficients = found.coefficients
            assert found.converged
            assert bool(torch.isfinite(coefficients).all())
