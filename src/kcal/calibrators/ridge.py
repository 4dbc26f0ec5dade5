"""Ridge refit of a network's last layer: a linear map of embeddings that is added to the scaled logits.

p = softmax((1 + c)·z/T + Vᵀf),   f = (e − mean)/r and a constant, on principal axes,   r² = mean of ‖e − mean‖²
loss = Σ_i w_i·(log-loss of sample i) + λ/2·‖V‖² + max(λ, 1/0.3²)/2·c²

λ has no unit: each logit's change has a prior standard deviation of about 1/√λ, and a large λ leaves softmax(z/T). The
solutions (c, V) of several λ are averaged, each with its share of the out-of-fold likelihood, weaker ones with a
lower prior: one λ alone would be a matter of chance where several fit about as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.model_state import StoredModel, tensor
from kcal.calibrators.quasi_newton import minimise_convex
from kcal.calibrators.temperature_prior import DEVIATION

Index = NDArray[np.int64]
Floats = NDArray[np.float64]

PENALTIES = tuple(np.logspace(3, -2, 11).tolist())
"""Values of λ, from strong to weak; each fit starts at the one before."""
PRIOR_STEP = 0.5
"""Logarithm by which a penalty is more probable than the next weaker one, before any sample."""
NEGLIGIBLE = 1e-3
"""Share below which a penalty is left out of the average."""
COARSE, FINE = 1e-4, 1e-13
"""Relative tolerances of the loss, in the fits that are compared, and of the one that is kept."""
MAX_FEATURES = 256
"""Principal axes of the embeddings in use, at most."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RidgeModel(StoredModel):
    """The scores b·z + Wᵀe + a, b = (1 + c)/T."""

    factor: float
    penalty: float
    weights: torch.Tensor = tensor("dimension", "classes")
    bias: torch.Tensor = tensor("classes")

    def log_probs(self, embeddings: torch.Tensor, log_probs: torch.Tensor) -> torch.Tensor:
        """Return log probabilities, (n, n_classes), of embeddings, (n, h), and the network's log probabilities."""
        change = embeddings @ self.weights.to(embeddings) + self.bias.to(embeddings)
        return torch.log_softmax(self.factor * log_probs + change, dim=1)


@dataclass(frozen=True, eq=False)
class RidgeProblem:
    """The data of a refit: scaled log probabilities of the network, features, classes and weights of samples."""

    base: torch.Tensor  # (n, n_classes), log probabilities over T
    features: torch.Tensor  # (n, n_features)
    codes: Index
    weights: Floats

    def rows(self, index: Index) -> RidgeProblem:
        """Return the problem of some samples."""
        return RidgeProblem(self.base[index], self.features[index], self.codes[index], self.weights[index])

    def single(self) -> RidgeProblem:
        """Return the problem in single precision, which is enough to compare penalties."""
        return RidgeProblem(self.base.float(), self.features.float(), self.codes, self.weights)

    def scores(self, point: Floats) -> torch.Tensor:
        """Return (1 + c)·z/T + Vᵀf, (n, n_classes), of c and V, flat in one array."""
        matrix = torch.from_numpy(point[1:]).to(self.features).view(self.features.shape[1], -1)
        return torch.addmm(self.base * float(1 + point[0]), self.features, matrix)

    @property
    def start(self) -> Floats:
        """C and V of the scaled network: zeros."""
        return np.zeros(1 + self.features.shape[1] * self.base.shape[1])

    def curvatures(self) -> Floats:
        """Return roughly the second derivatives of the log-loss at c = 0 and V = 0, in the order of the flat array."""
        importance = torch.from_numpy(self.weights).to(self.base)[:, None]
        probs = torch.softmax(self.base, dim=1)
        variances = (probs * self.base.square()).sum(dim=1) - (probs * self.base).sum(dim=1).square()
        of_classes = (importance * probs * (1 - probs)).sum(dim=0) / importance.sum()
        of_features = (importance * self.features.square()).sum(dim=0)
        parts = [(importance[:, 0] @ variances)[None], (of_features[:, None] * of_classes).ravel()]
        return torch.cat(parts).clamp_min(0.0).double().numpy()

    def solve(self, penalty: float, start: Floats, tolerance: float) -> Floats:
        """Return the c and V, flat in one array, that minimise the loss; principal axes make it converge fast."""
        total, rows, labels = float(self.weights.sum()), torch.arange(len(self.codes)), torch.from_numpy(self.codes)
        importance = torch.from_numpy(self.weights).to(self.base)[:, None]
        penalties = np.full(len(start), penalty)
        penalties[0] = max(penalty, 1 / DEVIATION**2)  # of c
        scales = np.sqrt(self.curvatures() + penalties)

        def loss(scaled: Floats) -> tuple[float, Floats]:
            point = scaled / scales
            log_p = torch.log_softmax(self.scores(point), dim=1)
            value = -float(importance[:, 0] @ log_p[rows, labels]) + float((penalties * point) @ point) / 2
            residuals = log_p.exp_()
            residuals[rows, labels] -= 1
            residuals.mul_(importance)
            slopes = [(residuals * self.base).sum()[None], (self.features.T @ residuals).ravel()]
            gradient = torch.cat(slopes).double().numpy() + penalties * point
            return value / total, gradient / scales / total

        options = {"maxcor": 20, "ftol": tolerance, "gtol": 1e-8}
        solution: Floats = minimise_convex(loss, start * scales, name="the last layer", bounds=None, **options)
        return np.asarray(solution / scales)


@dataclass(frozen=True, eq=False)
class PrincipalAxes:
    """The map from embeddings to features: centred, divided by r, with a constant, on principal axes."""

    mean: torch.Tensor  # (h,)
    scale: float  # r
    axes: torch.Tensor  # (h + 1, n_features); a rotation keeps the ridge

    @classmethod
    def of(cls, embeddings: torch.Tensor, weights: Floats) -> PrincipalAxes:
        """Return the axes of weighted embeddings, in float64."""
        shares = torch.from_numpy(weights / weights.sum())
        mean = shares @ embeddings
        scale = float((shares @ (embeddings - mean).square()).sum().sqrt()) or 1.0
        features = torch.nn.functional.pad((embeddings - mean) / scale, (0, 1), value=1.0)
        axes = torch.linalg.eigh(features.T @ (shares[:, None] * features)).eigenvectors
        return cls(mean, scale, axes[:, -MAX_FEATURES:])

    def features(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return features, (n, n_features), of embeddings, (n, h)."""
        return torch.nn.functional.pad((embeddings - self.mean) / self.scale, (0, 1), value=1.0) @ self.axes

    def model(self, point: Floats, temperature: float, penalty: float, n_classes: int) -> RidgeModel:
        """Return the model of c and V, flat in one array."""
        matrix = self.axes @ torch.from_numpy(point[1:]).view(-1, n_classes)
        weights = matrix[:-1] / self.scale
        factor = float(1 + point[0]) / temperature
        return RidgeModel(factor=factor, penalty=penalty, weights=weights, bias=matrix[-1] - self.mean @ weights)


def cross_fit(problem: RidgeProblem, fold_of: Index) -> tuple[dict[float, float], torch.Tensor]:
    """Return the share of each λ, and log probabilities of each sample from the average without its fold.

    The shares are proportional to the out-of-fold likelihoods times the prior.
    """
    problem, rows = problem.single(), np.arange(len(fold_of))
    folds = [(np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)) for fold in np.unique(fold_of)]
    points = [problem.start] * len(folds)
    scores = torch.empty(len(PENALTIES), *problem.base.shape)
    for penalty, out_of_fold in zip(PENALTIES, scores, strict=True):
        for place, (outside, inside) in enumerate(folds):
            points[place] = problem.rows(inside).solve(penalty, points[place], COARSE)
            out_of_fold[outside] = problem.rows(outside).scores(points[place])
    own = torch.log_softmax(scores, dim=2)[:, rows, problem.codes].double()
    log_prior = -PRIOR_STEP * torch.arange(len(PENALTIES), dtype=torch.float64)
    posterior = torch.softmax(own @ torch.from_numpy(problem.weights) + log_prior, dim=0)
    shares = dict(zip(PENALTIES, posterior.tolist(), strict=True))
    shares = {penalty: share for penalty, share in shares.items() if share > NEGLIGIBLE}
    kept = torch.tensor([shares.get(penalty, 0.0) for penalty in PENALTIES])
    average = torch.tensordot(kept / kept.sum(), scores, 1)
    return shares, torch.log_softmax(average.double(), dim=1)


def solve_average(problem: RidgeProblem, shares: dict[float, float], tolerance: float) -> Floats:
    """Return the average of c and V, flat in one array, over penalties with their shares."""
    point, average = problem.start, np.zeros(len(problem.start))
    for penalty, share in shares.items():
        point = problem.solve(penalty, point, tolerance)
        average += share * point
    return average / sum(shares.values())


def mean_penalty(shares: dict[float, float]) -> float:
    """Return the geometric mean of penalties with their shares."""
    return float(np.exp(np.average(np.log(list(shares)), weights=list(shares.values()))))
