"""Regularised multinomial regression on log probabilities, all folds at once, by a preconditioned Newton method.

L(W, b) = Σ_i s_i·[logsumexp(W x_i + b) − (W x_i + b)_{y_i}] + λ·Σ_{i≠j} W_ij² + μ·Σ_j b_j² + ν·Σ_j (W_jj − w̄)²

with weights s that sum to 1 in each fold and w̄ the mean of the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, log
from typing import NamedTuple

import torch

LARGEST_PRODUCT = 2**25
"""Folds × rows × classes that are solved at once (256 MB per array); larger problems are solved fold by fold."""
LEAST_CURVATURE = 1e-10  # bounds the steps in directions without curvature
NO_CURVATURE = 1e-200
HALVINGS = 30
MAX_CG_ITERATIONS = 60  # of conjugate gradients, per Newton step
SMALLEST = 1e-9  # replaces a penalty of 0 in distances
KEPT_CURVATURE = 0.99  # of the Hessian; the gradient and the line search use every row
MANY_CG_ITERATIONS = 15  # more than so many renew the preconditioner
STALLED, PATIENCE = 1e-12, 2
"""The solver stops after so many steps without a relative decrease of this size: rounding allows no more."""


@dataclass(frozen=True)
class Penalty:
    """Penalties off the diagonal (λ), of the intercepts (μ), and of the diagonal around its mean (ν)."""

    off_diagonal: float
    intercept: float
    diagonal: float = 0.0

    def distance(self, other: Penalty) -> float:
        """Return the distance to another penalty, in powers of e; that of the diagonal may be 0."""
        first, second = ((p.off_diagonal, p.intercept, p.diagonal or SMALLEST) for p in (self, other))
        return sum(abs(log(a / b)) for a, b in zip(first, second, strict=True))


@dataclass(frozen=True)
class FoldSolution:
    """The models of all folds, and their fit to every row."""

    coefficients: torch.Tensor = field(repr=False)  # (n_folds, n_classes, n_classes + 1), intercepts last
    own_log: torch.Tensor = field(repr=False)  # (n_folds, n): log probability of each row's label
    cross_entropy: torch.Tensor  # (n_folds,), on the rows of the fit
    converged: bool


@dataclass(frozen=True)
class FoldProblem:
    """Rows with a one appended, their classes, and their weights in each fold."""

    features: torch.Tensor = field(repr=False)  # (n, n_classes + 1)
    codes: torch.Tensor = field(repr=False)  # (n,)
    shares: torch.Tensor = field(repr=False)  # (n_folds, n); 0 for rows held out, each fold sums to 1

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.features.shape[1] - 1

    def of_fold(self, fold: int) -> FoldProblem:
        """Return the problem of one fold."""
        return FoldProblem(self.features, self.codes, self.shares[[fold]])

    def log_probs(self, coefficients: torch.Tensor) -> torch.Tensor:
        """Return log softmax(W x + b), (n_folds, n, n_classes)."""
        return torch.log_softmax(self.features @ coefficients.mT, dim=2)

    def own(self, log_p: torch.Tensor) -> torch.Tensor:
        """Return the entries of the labels, (n_folds, n)."""
        return log_p.gather(2, self.codes.expand(len(log_p), -1)[..., None])[..., 0]

    def loss(self, coefficients: torch.Tensor, log_p: torch.Tensor, penalty: Penalty) -> torch.Tensor:
        """Return the penalised loss of each fold, (n_folds,)."""
        penalties = 0.5 * (coefficients * penalty_slope(coefficients, penalty)).sum(dim=(1, 2))
        return penalties - (self.shares * self.own(log_p)).sum(dim=1)

    def gradient(self, coefficients: torch.Tensor, p: torch.Tensor, penalty: Penalty) -> torch.Tensor:
        """Return the gradient of every fold's loss, (n_folds, n_classes, n_classes + 1)."""
        residuals = p * self.shares[..., None]
        places = self.codes.expand(len(p), -1)[..., None]
        residuals.scatter_add_(2, places, -self.shares[..., None])
        return residuals.mT @ self.features + penalty_slope(coefficients, penalty)

    def curvature(self, direction: torch.Tensor, p: torch.Tensor, penalty: Penalty) -> torch.Tensor:
        """Return the Hessian times ``direction``, without an array larger than rows × classes."""
        change = p * (self.features @ direction.mT)
        change -= p * change.sum(dim=2, keepdim=True)
        change *= self.shares[..., None]
        return change.mT @ self.features + penalty_slope(direction, penalty)


def penalty_slope(coefficients: torch.Tensor, penalty: Penalty) -> torch.Tensor:
    """Return the gradient of the penalty; it is linear, and so also the penalty's Hessian times a direction."""
    diagonal = coefficients.diagonal(dim1=1, dim2=2)
    slope = 2 * penalty.off_diagonal * coefficients
    slope[..., -1] = 2 * penalty.intercept * coefficients[..., -1]
    slope.diagonal(dim1=1, dim2=2).copy_(2 * penalty.diagonal * (diagonal - diagonal.mean(dim=1, keepdim=True)))
    return slope


def identity(n_folds: int, n_classes: int) -> torch.Tensor:
    """Return W = I and b = 0 for every fold."""
    return torch.eye(n_classes, n_classes + 1, dtype=torch.float64).repeat(n_folds, 1, 1)


def tempered_identity(problem: FoldProblem) -> torch.Tensor:
    """Return W = I/T and b = 0 for every fold, T the power of 2, at least 1, of lowest log-loss.

    Rows that are wrong with certainty have no curvature, so that Newton steps from T = 1 may lead nowhere. The
    diagonal of a class without samples stays at 1.
    """
    start = identity(len(problem.shares), problem.n_classes)
    for fold, shares in enumerate(problem.shares):
        alone = problem.of_fold(fold)
        seen = torch.bincount(problem.codes[shares > 0], minlength=problem.n_classes).nonzero()[:, 0]
        model, least = start[[fold]], inf
        for _ in range(HALVINGS):
            loss = -float((alone.shares * alone.own(alone.log_probs(model))).sum())
            if not loss < least:
                break
            start[fold], least = model[0], loss
            model = model.clone()
            model[0, seen, seen] /= 2
    return start


def solve_folds(
    problem: FoldProblem, penalty: Penalty, start: torch.Tensor, *, tolerance: float, steps: int = 60
) -> FoldSolution:
    """Return the minimiser of every fold's loss, to ``tolerance`` in the loss, from ``start``."""
    n_folds, n = problem.shares.shape
    if n_folds == 1 or n_folds * n * problem.n_classes <= LARGEST_PRODUCT:
        return _solve(problem, penalty, start, tolerance, steps)
    parts = [_solve(problem.of_fold(fold), penalty, start[[fold]], tolerance, steps) for fold in range(n_folds)]
    return FoldSolution(
        torch.cat([part.coefficients for part in parts]),
        torch.cat([part.own_log for part in parts]),
        torch.cat([part.cross_entropy for part in parts]),
        all(part.converged for part in parts),
    )


class _Point(NamedTuple):
    """Coefficients of all folds, (n_folds, n_classes, n_classes + 1), with their log probabilities and losses."""

    coefficients: torch.Tensor
    log_p: torch.Tensor
    loss: torch.Tensor


def _evaluate(problem: FoldProblem, penalty: Penalty, coefficients: torch.Tensor) -> _Point:
    log_p = problem.log_probs(coefficients)
    return _Point(coefficients, log_p, problem.loss(coefficients, log_p, penalty))


def _solve(
    problem: FoldProblem, penalty: Penalty, coefficients: torch.Tensor, tolerance: float, steps: int
) -> FoldSolution:
    frozen = _frozen(problem, penalty)
    point = _evaluate(problem, penalty, coefficients)
    converged, iterations, stalled = False, inf, 0
    for _ in range(steps):
        p = point.log_p.exp()
        gradient = problem.gradient(point.coefficients, p, penalty).masked_fill(frozen, 0.0)
        if iterations > MANY_CG_ITERATIONS:
            precondition = _preconditioner(problem, penalty, p)
        direction, iterations = _newton_direction(problem, penalty, p, gradient, frozen, precondition)
        decrease, before = -(gradient * direction).sum(dim=(1, 2)), point.loss
        point = _line_search(problem, penalty, point, direction, decrease)
        unfinished = decrease / 2 >= tolerance
        if not bool(unfinished.any()):
            converged = True
            break
        stalled = 0 if bool((before - point.loss > STALLED * before)[unfinished].any()) else stalled + 1
        if stalled == PATIENCE:
            break
    own = problem.own(point.log_p)
    return FoldSolution(point.coefficients, own, -(problem.shares * own).sum(dim=1), converged)


def _frozen(problem: FoldProblem, penalty: Penalty) -> torch.Tensor:
    """Return which coefficients are fixed, (n_folds, n_classes, n_classes + 1).

    An unpenalised diagonal has no minimiser for a class without samples: the larger W_kk, the smaller p_k.
    """
    counted = torch.zeros(len(problem.shares), problem.n_classes, dtype=torch.float64)
    counted.scatter_add_(1, problem.codes.expand(len(counted), -1), problem.shares)
    frozen = torch.zeros(len(counted), problem.n_classes, problem.n_classes + 1, dtype=torch.bool)
    if penalty.diagonal == 0:
        frozen.diagonal(dim1=1, dim2=2).copy_(counted == 0)
    return frozen


def _newton_direction(
    problem: FoldProblem,
    penalty: Penalty,
    p: torch.Tensor,
    gradient: torch.Tensor,
    frozen: torch.Tensor,
    precondition: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, int]:
    """Return the Newton step of every fold, by conjugate gradients to a tenth of the residual, and the iterations."""

    def dot(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return (left * right).sum(dim=(1, 2), keepdim=True)

    tiny = torch.finfo(torch.float64).tiny
    problem, p = _uncertain_rows(problem, p)
    direction, residual = torch.zeros_like(gradient), -gradient
    step = precondition(residual).masked_fill_(frozen, 0.0)
    size = first = dot(residual, step)
    for iteration in range(1, MAX_CG_ITERATIONS + 1):
        curved = (problem.curvature(step, p, penalty) + LEAST_CURVATURE * step).masked_fill_(frozen, 0.0)
        curvature = dot(step, curved)
        length = torch.where(curvature > NO_CURVATURE, size / curvature, 0.0)  # nothing to gain without curvature
        direction = direction + length * step
        residual = residual - length * curved
        improved = precondition(residual).masked_fill_(frozen, 0.0)
        new_size = dot(residual, improved)
        if bool((new_size <= 1e-2 * first).all()):
            return direction, iteration
        step = improved + new_size / size.clamp_min(tiny) * step
        size = new_size
    return direction, MAX_CG_ITERATIONS


def _uncertain_rows(problem: FoldProblem, p: torch.Tensor) -> tuple[FoldProblem, torch.Tensor]:
    """Return the rows that carry nearly all of the Hessian; rows predicted with certainty carry none."""
    uncertainty = ((1 - (p * p).sum(dim=2)) * problem.shares).amax(dim=0)  # (n,)
    order = uncertainty.argsort(descending=True)
    reached = uncertainty[order].cumsum(0)
    kept = order[: int((reached < KEPT_CURVATURE * reached[-1]).sum()) + 1].sort().values
    return FoldProblem(problem.features[kept], problem.codes[kept], problem.shares[:, kept]), p[:, kept]


def _preconditioner(problem: FoldProblem, penalty: Penalty, p: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return an approximate inverse of the Hessian.

    Off the diagonal all classes share one second-moment matrix of the features, weighted by the uncertainty of the
    rows and scaled by that of the class; the diagonal of W is treated separately, its common part exactly.
    """
    uncertainty = p * (1 - p) * problem.shares[..., None]  # (n_folds, n, n_classes)
    by_row, by_class = uncertainty.sum(dim=2), uncertainty.sum(dim=1)
    scale = torch.ones(problem.n_classes + 1, dtype=torch.float64)
    scale[-1] = (penalty.off_diagonal / penalty.intercept) ** 0.5  # so that all have one penalty
    scaled = problem.features * scale
    moments = torch.stack([(scaled * weights[:, None]).T @ scaled for weights in by_row])
    total = by_row.sum(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
    values, vectors = torch.linalg.eigh(moments / total[:, None, None])
    spread = by_class[:, :, None] * values.clamp_min(0)[:, None, :] + 2 * penalty.off_diagonal
    curvature = torch.einsum("fnk,nk->fk", uncertainty, problem.features[:, :-1] ** 2) + LEAST_CURVATURE
    held = 1 / (curvature + 2 * penalty.diagonal)
    common = (curvature * held).mean(dim=1, keepdim=True)

    def apply(gradient: torch.Tensor) -> torch.Tensor:
        outside = gradient * scale
        outside.diagonal(dim1=1, dim2=2).zero_()
        step: torch.Tensor = ((outside @ vectors) / spread) @ vectors.mT * scale
        diagonal = held * gradient.diagonal(dim1=1, dim2=2)
        diagonal = diagonal + held * 2 * penalty.diagonal * diagonal.mean(dim=1, keepdim=True) / common
        step.diagonal(dim1=1, dim2=2).copy_(diagonal)
        return step

    return apply


def _line_search(
    problem: FoldProblem, penalty: Penalty, point: _Point, direction: torch.Tensor, decrease: torch.Tensor
) -> _Point:
    """Halve the step of each fold until its loss decreases sufficiently; a fold whose loss never does stays."""
    length = torch.ones_like(point.loss)
    for _ in range(HALVINGS):
        moved = _evaluate(problem, penalty, point.coefficients + length[:, None, None] * direction)
        short = ~(moved.loss <= point.loss - 1e-4 * length * decrease + 1e-13)
        if not bool(short.any()):
            return moved
        length = torch.where(short, length / 2, length)
    stay = short[:, None, None]
    return _Point(
        torch.where(stay, point.coefficients, moved.coefficients),
        torch.where(stay, point.log_p, moved.log_p),
        torch.where(short, point.loss, moved.loss),
    )
