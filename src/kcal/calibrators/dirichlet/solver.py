"""Regularised multinomial regression on log-probabilities, all folds at once, by a preconditioned Newton method.

L(W, b) = Σ_i s_i·[logsumexp(W x_i + b) − (W x_i + b)_{y_i}] + λ·Σ_{i≠j} W_ij² + μ·Σ_j b_j² + ν·Σ_j (W_jj − w̄)²

with shares s that sum to 1 in each fold and w̄ the mean of the diagonal. Knows no grids and no calibrators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, log

import torch

LARGEST_PRODUCT = 2**25
"""Folds × rows × classes that are worked on at once (256 MB an array); beyond it the folds follow one another."""
LEAST_CURVATURE = 1e-10  # keeps directions without curvature from steps without bound
NO_BEND = 1e-200
HALVINGS = 30
MOST_ITERATIONS = 60  # of conjugate gradients, in one Newton step
SMALLEST = 1e-9  # stands for no penalty where only the order matters
KEPT_CURVATURE = 0.99  # of the Hessian; the gradient and the line search see every row
MANY_ITERATIONS = 15  # of conjugate gradients: the preconditioner has grown old
STALLED, PATIENCE = 1e-12, 2
"""So many steps in a row, none of which lowers a loss by this share of it, are the last: rounding allows no more."""


@dataclass(frozen=True)
class Penalty:
    """How strongly the parameters are held: off the diagonal (λ), intercepts (μ), the diagonal to its mean (ν)."""

    off_diagonal: float
    intercept: float
    diagonal: float = 0.0

    def distance(self, other: Penalty) -> float:
        """Return how far another penalty is, in powers of e; the diagonal's may be 0."""
        own, others = (
            (penalty.off_diagonal, penalty.intercept, penalty.diagonal or SMALLEST) for penalty in (self, other)
        )
        return sum(abs(log(mine / its)) for mine, its in zip(own, others, strict=True))


@dataclass(frozen=True)
class FoldSolution:
    """The models of all folds, and how well they explain every row."""

    coefficients: torch.Tensor = field(repr=False)  # (n_folds, n_classes, n_classes + 1), intercepts last
    own_log: torch.Tensor = field(repr=False)  # (n_folds, n): log probability of each row's label
    cross_entropy: torch.Tensor  # (n_folds,), on the rows that each fold was fitted to
    converged: bool


@dataclass(frozen=True)
class FoldProblem:
    """Rows with a one appended, their classes, and how much each counts in each fold."""

    features: torch.Tensor = field(repr=False)  # (n, n_classes + 1)
    codes: torch.Tensor = field(repr=False)  # (n,)
    shares: torch.Tensor = field(repr=False)  # (n_folds, n); 0 for rows held out, each fold sums to 1

    @property
    def n_classes(self) -> int:
        """Return the number of classes."""
        return self.features.shape[1] - 1

    def log_probabilities(self, coefficients: torch.Tensor) -> torch.Tensor:
        """Return log softmax(W x + b), (n_folds, n, n_classes)."""
        return torch.log_softmax(self.features @ coefficients.mT, dim=2)

    def own(self, log_p: torch.Tensor) -> torch.Tensor:
        """Return the entries of the rows' own classes, (n_folds, n)."""
        return log_p.gather(2, self.codes.expand(len(log_p), -1)[..., None])[..., 0]

    def loss(self, coefficients: torch.Tensor, log_p: torch.Tensor, penalty: Penalty) -> torch.Tensor:
        """Return the penalised loss of each fold, (n_folds,)."""
        held = 0.5 * (coefficients * penalty_slope(coefficients, penalty)).sum(dim=(1, 2))
        return held - (self.shares * self.own(log_p)).sum(dim=1)

    def gradient(self, coefficients: torch.Tensor, p: torch.Tensor, penalty: Penalty) -> torch.Tensor:
        """Return the gradient of every fold's loss, (n_folds, n_classes, n_classes + 1)."""
        residuals = p * self.shares[..., None]
        places = self.codes.expand(len(p), -1)[..., None]
        residuals.scatter_add_(2, places, -self.shares[..., None])
        return residuals.mT @ self.features + penalty_slope(coefficients, penalty)

    def curvature(self, direction: torch.Tensor, p: torch.Tensor, penalty: Penalty) -> torch.Tensor:
        """Return the Hessian times ``direction``; nothing larger than rows × classes is made."""
        change = p * (self.features @ direction.mT)
        change -= p * change.sum(dim=2, keepdim=True)
        change *= self.shares[..., None]
        return change.mT @ self.features + penalty_slope(direction, penalty)


def penalty_slope(coefficients: torch.Tensor, penalty: Penalty) -> torch.Tensor:
    """Return the gradient of the penalty; it is linear, so that this is also its Hessian times a direction."""
    diagonal = coefficients.diagonal(dim1=1, dim2=2)
    slope = 2 * penalty.off_diagonal * coefficients
    slope[..., -1] = 2 * penalty.intercept * coefficients[..., -1]
    slope.diagonal(dim1=1, dim2=2).copy_(2 * penalty.diagonal * (diagonal - diagonal.mean(dim=1, keepdim=True)))
    return slope


def identity(n_folds: int, n_classes: int) -> torch.Tensor:
    """Return W = I and b = 0 for every fold."""
    return torch.eye(n_classes, n_classes + 1, dtype=torch.float64).repeat(n_folds, 1, 1)


def tempered_identity(problem: FoldProblem) -> torch.Tensor:
    """Return W = I/T and b = 0 for every fold, T the power of 2, at least 1, of least log-loss.

    Rows that are predicted with certainty, and wrongly, bend nothing: from there no Newton step leads anywhere.
    The diagonal of a class without samples stays at 1.
    """
    start = identity(len(problem.shares), problem.n_classes)
    for fold, shares in enumerate(problem.shares):
        alone = FoldProblem(problem.features, problem.codes, shares[None])
        seen = torch.bincount(problem.codes[shares > 0], minlength=problem.n_classes).nonzero()[:, 0]
        model, least = start[[fold]], inf
        for _ in range(HALVINGS):
            loss = -float((alone.shares * alone.own(alone.log_probabilities(model))).sum())
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
    parts = []
    for fold in range(n_folds):
        alone = FoldProblem(problem.features, problem.codes, problem.shares[fold : fold + 1])
        parts.append(_solve(alone, penalty, start[fold : fold + 1], tolerance, steps))
    return FoldSolution(
        torch.cat([part.coefficients for part in parts]),
        torch.cat([part.own_log for part in parts]),
        torch.cat([part.cross_entropy for part in parts]),
        all(part.converged for part in parts),
    )


def _solve(
    problem: FoldProblem, penalty: Penalty, coefficients: torch.Tensor, tolerance: float, steps: int
) -> FoldSolution:
    frozen = _frozen(problem, penalty)
    log_p = problem.log_probabilities(coefficients)
    loss = problem.loss(coefficients, log_p, penalty)
    converged, iterations, stalled = False, inf, 0
    for _ in range(steps):
        p = log_p.exp()
        gradient = problem.gradient(coefficients, p, penalty).masked_fill(frozen, 0.0)
        if iterations > MANY_ITERATIONS:
            precondition = _preconditioner(problem, penalty, p)
        direction, iterations = _newton_direction(problem, penalty, p, gradient, frozen, precondition)
        decrease, before = -(gradient * direction).sum(dim=(1, 2)), loss
        coefficients, log_p, loss = _line_search(problem, penalty, coefficients, log_p, loss, direction, decrease)
        unfinished = decrease / 2 >= tolerance
        if not bool(unfinished.any()):
            converged = True
            break
        stalled = 0 if bool((before - loss > STALLED * before)[unfinished].any()) else stalled + 1
        if stalled == PATIENCE:
            break
    own = problem.own(log_p)
    return FoldSolution(coefficients, own, -(problem.shares * own).sum(dim=1), converged)


def _frozen(problem: FoldProblem, penalty: Penalty) -> torch.Tensor:
    """Say which coefficients stay as they are, (n_folds, n_classes, n_classes + 1).

    A free diagonal has no minimiser for a class without samples: the larger W_kk, the smaller p_k. It stays at 1.
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
    """Solve for the Newton step of every fold by conjugate gradients, to a tenth of the residual; count iterations."""

    def dot(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return (left * right).sum(dim=(1, 2), keepdim=True)

    tiny = torch.finfo(torch.float64).tiny
    problem, p = _uncertain_rows(problem, p)
    direction, residual = torch.zeros_like(gradient), -gradient
    step = precondition(residual).masked_fill_(frozen, 0.0)
    size = first = dot(residual, step)
    for iteration in range(1, MOST_ITERATIONS + 1):
        bent = (problem.curvature(step, p, penalty) + LEAST_CURVATURE * step).masked_fill_(frozen, 0.0)
        bend = dot(step, bent)
        length = torch.where(bend > NO_BEND, size / bend, 0.0)  # where nothing bends there is nothing left to gain
        direction = direction + length * step
        residual = residual - length * bent
        improved = precondition(residual).masked_fill_(frozen, 0.0)
        new_size = dot(residual, improved)
        if bool((new_size <= 1e-2 * first).all()):
            return direction, iteration
        step = improved + new_size / size.clamp_min(tiny) * step
        size = new_size
    return direction, MOST_ITERATIONS


def _uncertain_rows(problem: FoldProblem, p: torch.Tensor) -> tuple[FoldProblem, torch.Tensor]:
    """Return the rows that hold nearly all of the Hessian; those predicted with certainty bend nothing."""
    uncertainty = ((1 - (p * p).sum(dim=2)) * problem.shares).amax(dim=0)  # (n,)
    order = uncertainty.argsort(descending=True)
    reached = uncertainty[order].cumsum(0)
    kept = order[: int((reached < KEPT_CURVATURE * reached[-1]).sum()) + 1].sort().values
    return FoldProblem(problem.features[kept], problem.codes[kept], problem.shares[:, kept]), p[:, kept]


def _preconditioner(problem: FoldProblem, penalty: Penalty, p: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return an approximate inverse of the Hessian.

    Off the diagonal every class shares one second-moment matrix of the features, weighted by the rows' uncertainty,
    scaled by the class's own uncertainty; the diagonal of W is treated by itself, its common part exactly.
    """
    uncertainty = p * (1 - p) * problem.shares[..., None]  # (n_folds, n, n_classes)
    by_row, by_class = uncertainty.sum(dim=2), uncertainty.sum(dim=1)
    scale = torch.ones(problem.n_classes + 1, dtype=torch.float64)
    scale[-1] = (penalty.off_diagonal / penalty.intercept) ** 0.5  # so that one number penalises all
    scaled = problem.features * scale
    moments = torch.stack([(scaled * weights[:, None]).T @ scaled for weights in by_row])
    total = by_row.sum(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
    values, vectors = torch.linalg.eigh(moments / total[:, None, None])
    spread = by_class[:, :, None] * values.clamp_min(0)[:, None, :] + 2 * penalty.off_diagonal
    bend = torch.einsum("fnk,nk->fk", uncertainty, problem.features[:, :-1] ** 2) + LEAST_CURVATURE
    held = 1 / (bend + 2 * penalty.diagonal)
    common = (bend * held).mean(dim=1, keepdim=True)

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
    problem: FoldProblem,
    penalty: Penalty,
    coefficients: torch.Tensor,
    log_p: torch.Tensor,
    loss: torch.Tensor,
    direction: torch.Tensor,
    decrease: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Halve each fold's step until its loss falls as it should; a fold whose loss never does stays."""
    length = torch.ones_like(loss)
    for _ in range(HALVINGS):
        moved = coefficients + length[:, None, None] * direction
        moved_log = problem.log_probabilities(moved)
        moved_loss = problem.loss(moved, moved_log, penalty)
        short = ~(moved_loss <= loss - 1e-4 * length * decrease + 1e-13)
        if not bool(short.any()):
            return moved, moved_log, moved_loss
        length = torch.where(short, length / 2, length)
    stay = short[:, None, None]
    return (
        torch.where(stay, coefficients, moved),
        torch.where(stay, log_p, moved_log),
        torch.where(short, loss, moved_loss),
    )
