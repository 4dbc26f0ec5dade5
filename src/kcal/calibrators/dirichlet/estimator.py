"""Dirichlet calibration: a linear map of log-probabilities, its entries held by penalties that are cross-validated.

p = softmax(W·log clip(q, 2.2e-16) + b),   q the network's probabilities
"""

from __future__ import annotations

import warnings
from math import inf, log
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.base import Calibrator, CalibratorState, refuse_extra
from kcal.calibrators.dirichlet.grid import (
    MOST_POINTS,
    check_grid,
    is_better,
    published_grid,
    search_penalty,
)
from kcal.calibrators.dirichlet.solver import FoldProblem, FoldSolution, Penalty, solve_folds, tempered_identity
from kcal.calibrators.dirichlet.training import train_folds
from kcal.calibrators.holdout import stratified_folds
from kcal.calibrators.logits import encode_columns, log_probabilities
from kcal.errors import ConvergenceWarning, FileFormatError, InvalidInputError
from kcal.progress import progress_bar
from kcal.validation import check_weights

LEAST_LOG = log(2.2e-16)
SEARCH_TOLERANCE, FINAL_TOLERANCE = 1e-5, 1e-9
SEPARABLE = 1e-6  # a mean log-loss that only separable rows reach
TRAININGS = ("exact", "published")


class DirichletCalibration(Calibrator):
    """Softmax of a linear map of the log-probabilities, W·log q + b, with off-diagonal and intercept penalties (ODIR).

    W and b minimise  mean log-loss + λ·Σ_{i≠j} W_ij² + μ·Σ_j b_j² + ν·Σ_j (W_jj − w̄)²,  w̄ the mean of the diagonal.
    λ, μ and ν minimise the cross-validated log-loss; the prediction is the mean probability of the folds' models.

    The published penalty has ν = 0 and relies on stopping its training early: at the minimiser itself a diagonal
    that nothing holds fits a few samples a class far too closely. With ν, which is not published, the strongest
    penalties are temperature scaling and the weakest are ODIR, so that little data cost little. The method to the
    letter is ``grid="published", training="published"``, many times slower.

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
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Draws the folds, and the batches of the published training.
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

    inputs: ClassVar[str] = "logits"
    method: ClassVar[str] = "dircal"
    weights_: NDArray[np.float64]
    intercepts_: NDArray[np.float64]
    off_diagonal_: float
    intercept_: float
    diagonal_: float
    search_: list[tuple[float, float, float, float]]

    def __init__(
        self,
        *,
        grid: Any = "tied",
        training: str = "exact",
        folds: int = 5,
        representation: str = "logits",
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        self.grid = grid
        self.training = training
        self.folds = folds
        self.representation = representation
        self.seed = seed
        self.progress = progress

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, classes: Any = None) -> Self:
        """Choose the penalties and fit the folds' models; integer labels ``y`` are columns of the logits ``X``."""
        grid = self._check_parameters()
        rows, _ = self._check_rows(X, fitting=True)
        self._remember(rows)
        features = _features(log_probabilities(rows, self.representation))
        codes, self.classes_ = encode_columns(y, len(features), rows.shape[1], classes)
        weights = np.ones(len(codes)) if sample_weight is None else check_weights(sample_weight, len(codes))
        counted = np.flatnonzero(weights)
        if len(counted) < 2:
            raise InvalidInputError(
                f"cross-validation needs at least 2 samples of weight above 0; got {len(counted)}. Use ts instead."
            )
        fold_of = stratified_folds(codes[counted], min(int(self.folds), len(counted)), int(self.seed))
        published_seed = int(self.seed) if self.training == "published" else None
        search = _Search(features[counted], codes[counted], weights[counted], fold_of, published_seed)
        self._choose(search, grid, len(self.classes_))
        return self

    def _check_parameters(self) -> str | list[Penalty]:
        """Refuse a parameter that cannot be meant, and return the grid."""
        if not (isinstance(self.training, str) and self.training in TRAININGS):
            raise InvalidInputError(f"training must be one of {TRAININGS}; got {self.training!r}.")
        for name, least in (("folds", 2), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                raise InvalidInputError(f"{name} must be an integer of at least {least}; got {value!r}.")
        return check_grid(self.grid)

    def _choose(self, search: _Search, grid: str | list[Penalty], n_classes: int) -> None:
        points = published_grid(n_classes) if grid == "published" else grid
        total = MOST_POINTS if isinstance(points, str) else len(points)
        with progress_bar("Dirichlet calibration", total, show=self.progress) as advance:

            def loss_of(penalty: Penalty) -> float:
                loss = search.loss_of(penalty)
                advance(f"log-loss {search.best_loss:.4f}")
                return loss

            if isinstance(points, str):
                search_penalty(loss_of, tied=points == "tied")
            else:
                for penalty in points:
                    loss_of(penalty)
        penalty, solution = search.finish()
        _warn_of(solution)
        self.off_diagonal_, self.intercept_, self.diagonal_ = (
            penalty.off_diagonal,
            penalty.intercept,
            penalty.diagonal,
        )
        self.search_ = search.tried
        self.weights_ = solution.coefficients[..., :-1].numpy().copy()
        self.intercepts_ = solution.coefficients[..., -1].numpy().copy()

    def _log_probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        logs = log_probabilities(rows, self.representation).clamp_min(LEAST_LOG)
        summed: torch.Tensor | None = None
        for weights, intercepts in zip(self.weights_, self.intercepts_, strict=True):
            of_fold = torch.log_softmax(logs @ torch.from_numpy(weights).T + torch.from_numpy(intercepts), dim=1)
            summed = of_fold if summed is None else torch.logaddexp(summed, of_fold)
        assert summed is not None  # there are at least two folds
        return torch.log_softmax(summed, dim=1)

    def state(self) -> CalibratorState:
        """Return what the fitted calibrator is made of."""
        check_is_fitted(self)
        values = {
            "off_diagonal": self.off_diagonal_,
            "intercept": self.intercept_,
            "diagonal": self.diagonal_,
            "search": [list(point) for point in self.search_],
        }
        tensors = {"weights": torch.from_numpy(self.weights_), "intercepts": torch.from_numpy(self.intercepts_)}
        grid = self.grid if isinstance(self.grid, str) else [[float(number) for number in point] for point in self.grid]
        parameters = {**self.get_params(), "grid": grid, "folds": int(self.folds), "seed": int(self.seed)}
        return self._state(parameters, values, **tensors)

    @classmethod
    def from_state(cls, state: CalibratorState, **extra: Any) -> Self:
        """Return the fitted calibrator that ``state`` describes."""
        refuse_extra(cls, extra)
        calibrator = cls(**state.parameters)._restore(state)
        try:
            calibrator._check_parameters()
        except InvalidInputError as error:
            raise FileFormatError(f"a stored parameter is damaged: {error}") from error
        weights, intercepts = state.tensors["weights"], state.tensors["intercepts"]
        n_classes, n_folds = len(calibrator.classes_), len(weights)
        shapes = tuple(weights.shape), tuple(intercepts.shape)
        if n_folds < 1 or shapes != ((n_folds, n_classes, n_classes), (n_folds, n_classes)):
            raise FileFormatError(f"the stored models have shapes {shapes} for {n_classes} classes.")
        for stored in (weights, intercepts):
            if stored.dtype != torch.float64 or not bool(torch.isfinite(stored).all()):
                raise FileFormatError("the stored models are damaged.")
        if calibrator.n_features_in_ != n_classes:
            raise FileFormatError(f"{calibrator.n_features_in_} columns are stored for {n_classes} classes.")
        calibrator.weights_, calibrator.intercepts_ = weights.numpy(), intercepts.numpy()
        calibrator.off_diagonal_ = float(state.values["off_diagonal"])
        calibrator.intercept_ = float(state.values["intercept"])
        calibrator.diagonal_ = float(state.values["diagonal"])
        calibrator.search_ = [(float(a), float(b), float(c), float(d)) for a, b, c, d in state.values["search"]]
        return calibrator


class _Search:
    """Cross-validated losses of penalties, each solved from a solution that is already known."""

    def __init__(
        self,
        features: torch.Tensor,
        codes: NDArray[np.int64],
        weights: NDArray[np.float64],
        fold_of: NDArray[np.int64],
        published_seed: int | None,
    ) -> None:
        n_folds = int(fold_of.max()) + 1
        counts = np.where(fold_of[None, :] == np.arange(n_folds)[:, None], 0.0, weights)  # (n_folds, n)
        shares = torch.from_numpy(counts / counts.sum(axis=1, keepdims=True))
        self.problem = FoldProblem(features, torch.from_numpy(codes), shares)
        self.fold_of, self.weights = torch.from_numpy(fold_of), torch.from_numpy(weights / weights.sum())
        self.published_seed = published_seed
        start = tempered_identity(self.problem)
        self.latest = self.best = FoldSolution(start, torch.empty(0), torch.empty(0), converged=False)
        self.latest_penalty = self.best_penalty = Penalty(1.0, 1.0)
        self.best_loss = inf
        self.tried: list[tuple[float, float, float, float]] = []

    def loss_of(self, penalty: Penalty) -> float:
        """Return the log-loss of the held-out rows."""
        solution = self._solve(penalty, self._nearest(penalty), SEARCH_TOLERANCE)
        own = solution.own_log.gather(0, self.fold_of[None, :])[0]  # by the model that did not see the row
        loss = -float(self.weights @ own)
        self.tried.append((penalty.off_diagonal, penalty.intercept, penalty.diagonal, loss))
        self.latest, self.latest_penalty = solution, penalty
        if is_better(loss, self.best_loss):
            self.best, self.best_loss, self.best_penalty = solution, loss, penalty
        return loss

    def _solve(self, penalty: Penalty, start: FoldSolution, tolerance: float) -> FoldSolution:
        if self.published_seed is not None:
            return train_folds(self.problem, penalty, seed=self.published_seed)
        return solve_folds(self.problem, penalty, start.coefficients, tolerance=tolerance)

    def _nearest(self, penalty: Penalty) -> FoldSolution:
        """Return the solution to start from: the latest or the best, whichever penalty is nearer."""
        to_latest, to_best = (penalty.distance(other) for other in (self.latest_penalty, self.best_penalty))
        return self.latest if to_latest < to_best else self.best

    def finish(self) -> tuple[Penalty, FoldSolution]:
        """Return the best penalty and its models, solved to the end where there is one."""
        if self.published_seed is None:
            self.best = self._solve(self.best_penalty, self.best, FINAL_TOLERANCE)
        return self.best_penalty, self.best


def _features(logs: torch.Tensor) -> torch.Tensor:
    """Return clipped log-probabilities with a column of ones, (n, n_classes + 1)."""
    return torch.nn.functional.pad(logs.clamp_min(LEAST_LOG), (0, 1), value=1.0)


def _warn_of(solution: FoldSolution) -> None:
    reason = ""
    if bool((solution.cross_entropy < SEPARABLE).any()):
        reason = "the logits separate the classes, so that there is no minimiser and probabilities are near 0 and 1"
    elif not solution.converged:
        reason = "the steps ran out"
    if reason:
        warnings.warn(
            f"Dirichlet calibration stopped before its minimum: {reason}. Use more calibration samples, or a grid of "
            "stronger penalties.",
            ConvergenceWarning,
            stacklevel=5,
        )
