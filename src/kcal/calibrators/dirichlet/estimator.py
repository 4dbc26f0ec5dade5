"""Dirichlet calibration: a linear map of log probabilities with cross-validated penalties."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, log
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from kcal.calibrators.dirichlet.grid import MAX_POINTS, check_grid, is_better, published_grid, search_penalty
from kcal.calibrators.dirichlet.solver import FoldProblem, FoldSolution, Penalty, solve_folds, tempered_identity
from kcal.calibrators.dirichlet.training import n_stops, train_folds
from kcal.calibrators.logit_base import Codes, Floats, LogitCalibrator, fitted
from kcal.calibrators.model_state import LogitModel, tensor
from kcal.errors import ConvergenceWarning, InvalidInputError, warn
from kcal.progress import Advance, progress_bar
from kcal.samples import MAX_FOLDS, stratified_folds
from kcal.validation import check_choice, check_integer, parameter

LEAST_LOG_PROB = log(2.2e-16)
SEARCH_TOLERANCE, FINAL_TOLERANCE = 1e-5, 1e-9
SEPARABLE = 1e-6  # a mean log-loss that only separable rows reach
TRAININGS = ("exact", "published")


@dataclass(frozen=True)
class DirichletModel(LogitModel):
    """The mean over the folds of softmax(W·log max(q, 2.2e-16) + b), and the search for the penalties."""

    off_diagonal: float
    intercept: float
    diagonal: float
    weights: torch.Tensor = tensor("folds", "classes", "classes")
    intercepts: torch.Tensor = tensor("folds", "classes")
    search: torch.Tensor = tensor("points", 4)  # λ, μ, ν and cross-validated log-loss of every point

    def log_probs(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return calibrated log probabilities, (n, n_classes)."""
        clipped = log_probs.clamp_min(LEAST_LOG_PROB)
        summed = torch.full_like(log_probs, -inf)
        for weights, intercepts in zip(self.weights, self.intercepts, strict=True):
            summed = torch.logaddexp(summed, torch.log_softmax(clipped @ weights.T + intercepts, dim=1))
        return torch.log_softmax(summed, dim=1)

    def summary(self) -> dict[str, str]:
        """Return the penalties for display."""
        return {
            "penalty off the diagonal": f"{self.off_diagonal:.3g}",
            "penalty of the intercepts": f"{self.intercept:.3g}",
            "penalty of the diagonal": f"{self.diagonal:.3g}",
            "models": str(len(self.weights)),
        }


@dataclass(kw_only=True, eq=False, repr=False)
class DirichletCalibration(LogitCalibrator):
    """Softmax of a linear map of the log probabilities, W·log q + b, with off-diagonal and intercept penalties (ODIR).

    W and b minimise  mean log-loss + λ·Σ_{i≠j} W_ij² + μ·Σ_j b_j² + ν·Σ_j (W_jj − w̄)²,  w̄ the mean of the diagonal.
    λ, μ and ν minimise the cross-validated log-loss; the prediction is the mean probability of the folds' models.

    The published penalty has ν = 0 and relies on early stopping: at the minimiser itself an unpenalised diagonal
    overfits a few samples per class. With ν, which is not published, the strongest penalties are temperature scaling
    and the weakest are ODIR, so that small calibration sets lose little. The method to the letter is
    ``grid="published", training="published"``, many times slower.

    Parameters
    ----------
    grid : "tied", "odir", "published" or a list of points
        "tied" searches λ, μ and ν, coarse steps first, with at most 20 points; "odir" searches λ and μ so, with ν = 0;
        "published" tries the published grid of λ and μ (432 points, 243 from 100 classes on), ν = 0. A list holds
        (λ, μ) or (λ, μ, ν), for sums of squares as above.
    training : "exact" or "published"
        "exact" minimises the loss, each point of the grid from its neighbour's solution; "published" runs Adam from
        W = I, b = 0 and stops early.
    folds : int
        Folds of the cross-validation, and models that are averaged; fewer if there are fewer samples.
    representation, seed
        As in :class:`TemperatureScaling`; the seed is that of the folds, and of the batches of the published training.
    progress : bool, optional
        Show a progress bar; None shows it in a terminal only.

    Attributes
    ----------
    weights_ : array (n_folds, n_classes, n_classes)
        W of each fold's model.
    intercepts_ : array (n_folds, n_classes)
        b of each fold's model.
    off_diagonal_, intercept_, diagonal_ : float
        λ, μ and ν.
    search_ : list of tuple
        (λ, μ, ν, cross-validated log-loss) of every point that was tried.
    """

    method: ClassVar[str] = "dircal"
    pools_network: ClassVar[bool] = True
    model_class = DirichletModel
    weights_ = fitted("weights")
    intercepts_ = fitted("intercepts")
    off_diagonal_ = fitted("off_diagonal")
    intercept_ = fitted("intercept")
    diagonal_ = fitted("diagonal")
    grid: Any = parameter("tied", check_grid)
    training: str = parameter("exact", check_choice, choices=TRAININGS)
    folds: int = parameter(5, check_integer, minimum=2, maximum=MAX_FOLDS)
    progress: bool | None = None
    model_: DirichletModel = field(init=False)

    @property
    def search_(self) -> list[tuple[float, ...]]:
        """(λ, μ, ν, cross-validated log-loss) of every point that was tried."""
        return [tuple(point) for point in self.model_.search.tolist()]

    def _fit_log_probs(self, log_probs: torch.Tensor, codes: Codes, weights: Floats) -> DirichletModel:
        if len(codes) < 2:
            raise InvalidInputError(
                "X", "must hold at least 2 samples for cross-validation", got="1 sample", remedy="Use ts instead."
            )
        folds = stratified_folds(codes, min(int(self.folds), len(codes)), int(self.seed))
        published_seed = int(self.seed) if self.training == "published" else None
        search = _Search(log_probs, codes, weights, folds, published_seed)
        self._try_penalties(search, log_probs.shape[1])
        penalty, solution = search.best.penalty, search.finish()
        _warn_unless_minimal(solution)
        return DirichletModel(
            weights=solution.coefficients[..., :-1].contiguous(),
            intercepts=solution.coefficients[..., -1].contiguous(),
            off_diagonal=penalty.off_diagonal,
            intercept=penalty.intercept,
            diagonal=penalty.diagonal,
            search=torch.tensor(search.tried, dtype=torch.float64),
        )

    def _try_penalties(self, search: _Search, n_classes: int) -> None:
        grid = check_grid(self.grid)
        points = published_grid(n_classes) if grid == "published" else grid
        if self.training == "published" and not isinstance(points, str):
            with progress_bar("Dirichlet calibration", n_stops(search.problem, points), show=self.progress) as advance:
                search.train_all(points, advance)
            return
        total = MAX_POINTS if isinstance(points, str) else len(points)
        with progress_bar("Dirichlet calibration", total, show=self.progress) as advance:

            def loss_of(penalty: Penalty) -> float:
                loss = search.loss_of(penalty)
                advance(f"log-loss {search.best.loss:.4f}")
                return loss

            if isinstance(points, str):
                search_penalty(loss_of, tied=points == "tied")
            else:
                for penalty in points:
                    loss_of(penalty)


class _Trial(NamedTuple):
    """A penalty, its models, and their cross-validated log-loss."""

    penalty: Penalty
    solution: FoldSolution
    loss: float


class _Search:
    """Cross-validated losses of penalties, each solved from a known solution."""

    def __init__(
        self, log_probs: torch.Tensor, codes: Codes, weights: Floats, fold_of: Codes, published_seed: int | None
    ) -> None:
        n_folds = int(fold_of.max()) + 1
        features = torch.nn.functional.pad(log_probs.clamp_min(LEAST_LOG_PROB), (0, 1), value=1.0)
        counts = np.where(fold_of[None, :] == np.arange(n_folds)[:, None], 0.0, weights)  # (n_folds, n)
        shares = torch.from_numpy(counts / counts.sum(axis=1, keepdims=True))
        self.problem = FoldProblem(features, torch.from_numpy(codes), shares)
        self.fold_of, self.weights = torch.from_numpy(fold_of), torch.from_numpy(weights / weights.sum())
        self.published_seed = published_seed
        start = FoldSolution(tempered_identity(self.problem), torch.empty(0), torch.empty(0), converged=False)
        self.latest = self.best = _Trial(Penalty(1.0, 1.0), start, inf)
        self.tried: list[tuple[float, float, float, float]] = []

    def loss_of(self, penalty: Penalty) -> float:
        """Return the cross-validated log-loss, solved from the latest or the best trial, whichever is nearer."""
        nearest = min(self.best, self.latest, key=lambda trial: penalty.distance(trial.penalty))
        return self._record(penalty, self._solve(penalty, nearest.solution, SEARCH_TOLERANCE))

    def train_all(self, penalties: list[Penalty], advance: Advance) -> None:
        """Train the models of all penalties side by side as published."""
        assert self.published_seed is not None
        solutions = train_folds(self.problem, penalties, seed=self.published_seed, advance=advance)
        for penalty, solution in zip(penalties, solutions, strict=True):
            self._record(penalty, solution)

    def _record(self, penalty: Penalty, solution: FoldSolution) -> float:
        """Return the cross-validated log-loss, and keep the models if it is the lowest."""
        own = solution.own_log.gather(0, self.fold_of[None, :])[0]  # by the model of the fold that held the row out
        loss = -float(self.weights @ own)
        self.tried.append((penalty.off_diagonal, penalty.intercept, penalty.diagonal, loss))
        self.latest = _Trial(penalty, solution, loss)
        if is_better(loss, self.best.loss):
            self.best = self.latest
        return loss

    def _solve(self, penalty: Penalty, start: FoldSolution, tolerance: float) -> FoldSolution:
        if self.published_seed is not None:
            return next(train_folds(self.problem, [penalty], seed=self.published_seed))
        return solve_folds(self.problem, penalty, start.coefficients, tolerance=tolerance)

    def finish(self) -> FoldSolution:
        """Return the models of the best penalty; exact training solves them to the final tolerance."""
        if self.published_seed is not None:
            return self.best.solution
        return self._solve(self.best.penalty, self.best.solution, FINAL_TOLERANCE)


def _warn_unless_minimal(solution: FoldSolution) -> None:
    reason = ""
    if bool((solution.cross_entropy < SEPARABLE).any()):
        reason = "the logits separate the classes, so that there is no minimiser and probabilities are near 0 and 1"
    elif not solution.converged:
        reason = "it reached its maximum of steps"
    if reason:
        warn(
            f"Dirichlet calibration stopped before its minimum: {reason}. Use more calibration samples, or a grid of "
            "stronger penalties.",
            ConvergenceWarning,
        )
