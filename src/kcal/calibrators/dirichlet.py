"""Dirichlet calibration: a linear map of the log-probabilities, with cross-validated penalties.

p = mean over folds of softmax(W·x + b),   x = log max(q, 2.2e-16)

W and b of a fold minimise, with weights s_i that sum to 1,

Σ_i s_i·[logsumexp(W x_i + b) − (W x_i + b)_{y_i}] + λ·Σ_{i≠j} W_ij² + μ·Σ_j b_j² + ν·Σ_j (W_jj − w̄)²

where w̄ is the mean of the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, log
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import logsumexp, softmax
from torch.nn.functional import pad

from kcal.calibrators.base import buffer, fitted
from kcal.calibrators.logits import MAX_PENALTY, LogitCalibrator, LogitModel, check_two_parts
from kcal.calibrators.solvers import minimise
from kcal.calibrators.temperature_prior import fit_temperature
from kcal.errors import ConvergenceWarning, InvalidInputError, warn
from kcal.progress import progress_bar
from kcal.samples import MAX_FOLDS, Floats, Index, Samples, stratified_folds
from kcal.validation import ALMOST_ZERO, check_integer, check_number, parameter, shown

MIN_FEATURE = log(2.2e-16)
SEPARABLE_LOSS = 1e-6
"""A mean log-loss that only separable rows reach."""
GRIDS = ("tied", "odir", "published")
MAX_PENALTIES = 20
"""Number of penalties that a search tries at most."""
MAX_GRID = 10_000
FIRST_PENALTY = {"off_diagonal": 100.0, "diagonal": 1.0, "intercept": 0.01}
"""Start of a search: close to temperature scaling, where every problem is easy."""
FACTORS = (100.0, 10.0, 10**0.5)
MIN_SEARCHED, MAX_SEARCHED = 1e-6, 1e4
MIN_IMPROVEMENT = 1e-4
"""A penalty is better if its loss is lower by this fraction."""
SEARCH_TOLERANCES, FINAL_TOLERANCES = (1e-7, 1e-6), (0.0, 1e-10)
"""Of the relative decrease of the loss, and of the largest entry of its gradient, in the search and for the result."""
MIN_CURVATURE = 1e-10
"""Bounds the steps in directions without curvature."""


class Penalty(NamedTuple):
    """Penalties off the diagonal (λ), of the intercepts (μ), and of the diagonal around its mean (ν)."""

    off_diagonal: float
    intercept: float
    diagonal: float = 0.0


class DirichletModel(LogitModel):
    """The mean over the folds of softmax(W·x + b), and the search for the penalties."""

    weights: torch.Tensor = buffer("n_folds", "n_classes", "n_classes")
    intercepts: torch.Tensor = buffer("n_folds", "n_classes")
    off_diagonal: torch.Tensor = buffer()
    intercept: torch.Tensor = buffer()
    diagonal: torch.Tensor = buffer()
    search: torch.Tensor = buffer("n_points", 4)

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        clipped = log_probs.clamp_min(MIN_FEATURE)
        summed = torch.full_like(log_probs, -inf)
        for weights, intercepts in zip(self.weights, self.intercepts, strict=True):
            summed = torch.logaddexp(summed, torch.log_softmax(clipped @ weights.T + intercepts, dim=1))
        return torch.log_softmax(summed, dim=1)

    def entries_per_row(self) -> int:
        """Return the number of classes."""
        return self.weights.shape[1]


def check_grid(grid: Any, name: str = "grid") -> str | list[Penalty]:
    """Return the name of a grid, or the penalties given as (λ, μ) or (λ, μ, ν)."""
    if isinstance(grid, str) and grid in GRIDS:
        return grid
    is_list = isinstance(grid, Sequence) and not isinstance(grid, str) and 0 < len(grid) <= MAX_GRID
    if not is_list or any(isinstance(p, str) or not isinstance(p, Sequence) or len(p) not in (2, 3) for p in grid):
        expected = f"must be one of {', '.join(map(repr, GRIDS))} or a list of (λ, μ) or (λ, μ, ν)"
        raise InvalidInputError(name, expected, got=shown(grid))
    penalties = [Penalty(*(check_number(x, name, minimum=0, maximum=MAX_PENALTY) for x in point)) for point in grid]
    if any(penalty.off_diagonal == 0 or penalty.intercept == 0 for penalty in penalties):
        raise InvalidInputError(name, "must have positive λ and μ, or there may be no minimiser", got=shown(grid))
    return penalties


class DirichletCalibration(LogitCalibrator):
    """Softmax of a linear map of the log-probabilities, W·log q + b, with off-diagonal and intercept penalties (ODIR).

    W and b minimise  mean log-loss + λ·Σ_{i≠j} W_ij² + μ·Σ_j b_j² + ν·Σ_j (W_jj − w̄)²,  w̄ the mean of the diagonal.
    λ, μ and ν minimise the cross-validated log-loss; the prediction is the mean probability of the folds' models.

    The published penalty has ν = 0 and relies on early stopping: at the minimiser itself an unpenalised diagonal
    overfits a few samples per class. With ν, which is not published, the strongest penalties are temperature scaling
    and the weakest are ODIR: small calibration sets lose little.

    Parameters
    ----------
    grid : "tied", "odir", "published" or a list of points
        "tied" searches λ, μ and ν, coarse steps first, with at most 20 points; "odir" searches λ and μ so, with ν = 0;
        "published" tries the published grid of λ and μ (432 points, 243 for 100 classes or more), ν = 0. A list holds
        (λ, μ) or (λ, μ, ν), for sums of squares as above.
    folds : int
        Folds of the cross-validation, and models that are averaged; fewer if there are fewer samples.
    representation, seed
        As in :class:`TemperatureScaling`; the seed is that of the folds.
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

    method = "dircal"
    _pools_network = True
    _model_class = DirichletModel
    weights_ = fitted("weights")
    intercepts_ = fitted("intercepts")
    off_diagonal_ = fitted("off_diagonal")
    intercept_ = fitted("intercept")
    diagonal_ = fitted("diagonal")
    grid: Any = parameter("tied", check_grid)
    folds: int = parameter(5, check_integer, minimum=2, maximum=MAX_FOLDS)
    progress: bool | None = None

    @property
    def search_(self) -> list[tuple[float, ...]]:
        """(λ, μ, ν, cross-validated log-loss) of every point that was tried."""
        return [tuple(point) for point in self.model_.search.tolist()]

    def _fit_model(self, samples: Samples) -> DirichletModel:
        check_two_parts(samples)
        grid = check_grid(self.grid)
        points = published_grid(samples.n_classes) if grid == "published" else grid
        total = MAX_PENALTIES if isinstance(points, str) else len(points)
        validation = CrossValidation(samples, int(self.folds), int(self.seed))
        with progress_bar("Dirichlet calibration", total, show=self.progress) as advance:

            def loss_of(penalty: Penalty) -> float:
                loss = validation.loss_of(penalty)
                advance(f"log-loss {validation.best.loss:.4f}")
                return loss

            if isinstance(points, str):
                search_penalty(loss_of, tied=points == "tied")
            else:
                for penalty in points:
                    loss_of(penalty)
        return validation.best_model()


def published_grid(n_classes: int) -> list[Penalty]:
    """Return the published grid for the sums, strongest first, neighbours next to each other."""
    exponents = range(6, -3 if n_classes >= 100 else -6, -1)
    off_diagonal = [share * 10.0**exponent for exponent in exponents for share in (1.0, 0.5, 0.25)]
    return [
        Penalty(value, 10.0**exponent)
        for turn, exponent in enumerate(exponents)
        for value in (off_diagonal if turn % 2 == 0 else reversed(off_diagonal))
    ]


def search_penalty(loss_of: Callable[[Penalty], float], *, tied: bool) -> None:
    """Try at most 20 penalties, coarse steps first.

    One coordinate after the other moves to weaker, or else stronger, penalties as long as the loss falls: first by
    factors of 100, then of 10, then of √10.
    """
    numbers = FIRST_PENALTY if tied else {**FIRST_PENALTY, "diagonal": 0.0}
    best = loss_of(Penalty(**numbers))
    tried = {tuple(numbers.values())}
    moves = [(factor, name) for factor in FACTORS for name, value in numbers.items() if value > 0]
    for factor, name in moves:
        for ratio in (1 / factor, factor):
            start = best
            while len(tried) < MAX_PENALTIES:
                candidate = {**numbers, name: float(f"{numbers[name] * ratio:.6g}")}
                if tuple(candidate.values()) in tried or not MIN_SEARCHED <= candidate[name] <= MAX_SEARCHED:
                    break
                tried.add(tuple(candidate.values()))
                loss = loss_of(Penalty(**candidate))
                if not is_better(loss, best):
                    break
                best, numbers = loss, candidate
            if best < start:
                break


def is_better(loss: float, best: float) -> bool:
    """Return whether a loss is lower by more than rounding and chance."""
    return loss < best * (1 - MIN_IMPROVEMENT)


class PenaltyTrial(NamedTuple):
    """A penalty, the models of its folds, (n_folds, n_classes, n_classes + 1), and their cross-validated log-loss."""

    penalty: Penalty
    models: Floats
    loss: float


class CrossValidation:
    """The models of all folds, for one penalty after another."""

    def __init__(self, samples: Samples, n_folds: int, seed: int) -> None:
        folds = stratified_folds(samples.codes, min(n_folds, len(samples)), seed)
        features = pad(samples.logits.T.clamp_min(MIN_FEATURE), (0, 0, 0, 1), value=1.0).numpy()
        rows = Rows(features, samples.codes, samples.weights / samples.weights.sum())
        self.kept, held_out = ([np.flatnonzero((folds == f) == out) for f in np.unique(folds)] for out in (False, True))
        self.samples = rows
        self.shares = [rows.shares[index].sum() for index in held_out]
        self.held_out = [rows.select(index) for index in held_out]
        start = np.stack([rows.select(index).tempered_identity() for index in self.kept])
        self.latest = self.best = PenaltyTrial(Penalty(1.0, 1.0), start, inf)
        self.tried: list[tuple[float, ...]] = []

    def loss_of(self, penalty: Penalty) -> float:
        """Return the cross-validated log-loss of a penalty, solved from the solution before."""
        return self.record(penalty, self.solve(penalty, self.latest.models, SEARCH_TOLERANCES))

    def solve(self, penalty: Penalty, start: Floats, tolerances: tuple[float, float]) -> Floats:
        """Return the models of a penalty."""
        folds = zip(self.kept, start, strict=True)
        return np.stack([minimise_loss(self.samples.select(kept), penalty, model, tolerances) for kept, model in folds])

    def record(self, penalty: Penalty, models: Floats) -> float:
        """Return the cross-validated log-loss of models, and keep them if it is the lowest."""
        parts = zip(self.shares, self.held_out, models, strict=True)
        loss = float(sum(share * rows.log_loss(model) for share, rows, model in parts))
        self.latest = PenaltyTrial(penalty, models, loss)
        self.tried.append((*penalty, loss))
        if is_better(loss, self.best.loss):
            self.best = self.latest
        return loss

    def best_model(self) -> DirichletModel:
        """Return the model of the best penalty, solved to the final tolerance."""
        models = self.solve(self.best.penalty, self.best.models, FINAL_TOLERANCES)
        folds = zip(self.kept, models, strict=True)
        if min(self.samples.select(kept).log_loss(model) for kept, model in folds) < SEPARABLE_LOSS:
            warn(
                "Dirichlet calibration stopped before its minimum: the logits separate the classes, there is no "
                "minimiser, and probabilities are near 0 and 1. Use more calibration samples, or a grid of stronger "
                "penalties.",
                ConvergenceWarning,
            )
        return self.as_model(models)

    def as_model(self, models: Floats) -> DirichletModel:
        """Return the calibration model of fitted models, with the best penalty and the search."""
        weights, intercepts, search = models[..., :-1], models[..., -1], np.array(self.tried)
        penalties = self.best.penalty._asdict()
        return DirichletModel(weights=weights, intercepts=intercepts, search=search, **penalties)


class Rows(NamedTuple):
    """Samples of a fold; a model (W, b) is (n_classes, n_classes + 1), and its logits are model @ features."""

    features: Floats  # (n_classes + 1, n): x of each sample, and ones
    codes: Index  # (n,)
    shares: Floats  # (n,), weights that sum to 1

    def select(self, index: Index) -> Rows:
        """Return some of the samples."""
        shares = self.shares[index]
        return Rows(self.features[:, index], self.codes[index], shares / shares.sum())

    def log_loss(self, model: Floats) -> float:
        """Return the log-loss of a model, without penalty."""
        logits = model @ self.features
        return float(self.shares @ (logsumexp(logits, axis=0) - logits[self.codes, np.arange(len(self.codes))]))

    def tempered_identity(self) -> Floats:
        """Return W = I/T and b = 0, T at least 1; entries of classes without samples are 1.

        Rows that are wrong with certainty have no curvature: steps from T = 1 may lead nowhere.
        """
        n_classes, seen = len(self.features) - 1, np.unique(self.codes)
        model = np.eye(n_classes, n_classes + 1)
        log_probs = torch.from_numpy(self.features[:-1].T)
        model[seen, seen] = 1 / max(1.0, fit_temperature(log_probs, self.codes, self.shares * len(self.shares)))
        return model


def minimise_loss(rows: Rows, penalty: Penalty, start: Floats, tolerances: tuple[float, float]) -> Floats:
    """Return the model that minimises the penalised loss, by L-BFGS from ``start`` in whitened coordinates."""
    features, codes, shares = rows
    n_classes, places = len(start), np.arange(len(codes))
    diagonal = np.diag_indices(n_classes)
    squares = np.full_like(start, penalty.off_diagonal)  # the penalty of each squared entry
    squares[:, -1] = penalty.intercept
    squares[diagonal] = 0.0
    to_change, to_slopes = whitening(rows, penalty, start)

    def loss(point: Floats) -> tuple[float, Floats]:
        model = start + to_change(point)
        slopes = 2 * squares * model
        slopes[diagonal] = 2 * penalty.diagonal * (model[diagonal] - model[diagonal].mean())
        logits = model @ features
        logits -= logits.max(axis=0)
        own = logits[codes, places]
        odds = np.exp(logits, out=logits)
        totals = odds.sum(axis=0)
        value = shares @ (np.log(totals) - own) + 0.5 * np.vdot(model, slopes)
        odds *= shares / totals
        odds[codes, places] -= shares
        slopes += odds @ features.T
        return float(value), to_slopes(slopes)

    zero, (ftol, gtol) = np.zeros(start.size + n_classes), tolerances
    point = minimise(loss, zero, name="Dirichlet calibration", maxcor=20, ftol=ftol, gtol=gtol)
    return start + to_change(point)


def whitening(
    rows: Rows, penalty: Penalty, model: Floats
) -> tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]:
    """Return coordinates of changes of a model in which the loss has about the same curvature in all directions.

    The first function returns the change of the model, (n_classes, n_classes + 1), at a point; the second, its
    transpose, the gradient in these coordinates from that in the model.

    Off the diagonal of W all classes share one matrix of second moments of the features, weighted by the uncertainty
    of the rows, V diag(e) Vᵀ, and the curvature is c_k·e_j + 2λ with c_k the uncertainty of class k. On the diagonal
    it is d_k + 2ν, minus 2ν/K in common.
    """
    features, codes, shares = rows
    n_classes = len(model)
    p = softmax(model @ features, axis=0)
    uncertainty = p * (1 - p) * shares  # (n_classes, n)
    by_row, by_class = uncertainty.sum(axis=0), uncertainty.sum(axis=1)
    units = np.ones(n_classes + 1)
    units[-1] = (penalty.off_diagonal / penalty.intercept) ** 0.5  # all columns then have the penalty λ
    moments = (features * by_row) @ features.T / max(by_row.sum(), ALMOST_ZERO)
    values, vectors = np.linalg.eigh(moments * units * units[:, None])
    lengths = (by_class[:, None] * values.clip(0.0) + 2 * penalty.off_diagonal) ** -0.5
    curvature = (uncertainty * features[:-1] ** 2).sum(axis=1) + MIN_CURVATURE + 2 * penalty.diagonal
    root = np.linalg.cholesky(np.diag(curvature) - 2 * penalty.diagonal / n_classes)
    on_diagonal = np.linalg.inv(root).T
    if penalty.diagonal == 0:  # there is no minimiser for a class without samples: its entry stays
        on_diagonal[np.bincount(codes, minlength=n_classes) == 0] = 0.0

    def to_change(point: Floats) -> Floats:
        outside, diagonal = np.split(point, [lengths.size])
        change: Floats = (outside.reshape(lengths.shape) * lengths) @ vectors.T * units
        np.fill_diagonal(change, on_diagonal @ diagonal)
        return change

    def to_slopes(gradient: Floats) -> Floats:
        outside = gradient * units
        np.fill_diagonal(outside, 0.0)
        return np.concatenate([((outside @ vectors) * lengths).ravel(), on_diagonal.T @ gradient.diagonal()])

    return to_change, to_slopes
