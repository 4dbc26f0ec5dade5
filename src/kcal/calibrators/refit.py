"""Ridge refit of a network's last layer: a linear map of embeddings that is added to the scaled logits.

p = softmax(b·z + Wᵀe + a) = softmax((1 + c)·z/T + Vᵀf)
f = (e − mean)/r and a constant, on principal axes,   r² = mean of ‖e − mean‖²
loss = Σ_i w_i·(log-loss of sample i) + λ/2·‖V‖² + max(λ, 1/0.3²)/2·c²

λ has no unit: each logit's change has a prior standard deviation of about 1/√λ, and a large λ leaves softmax(z/T). The
solutions (c, V) of several λ are averaged, each with its share of the out-of-fold likelihood, weaker ones with a
lower prior: one λ alone would be a matter of chance where several fit about as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log

import numpy as np
import torch

from kcal.calibrators.base import CalibrationModel, buffer, fitted, submodule
from kcal.calibrators.logits import (
    MAX_PENALTY,
    LogitCalibrator,
    LogitModel,
    fit_with_embeddings,
    required,
)
from kcal.calibrators.solvers import minimise, softmax_loss
from kcal.calibrators.temperature_prior import DEVIATION, fit_temperature
from kcal.samples import Floats, Index, Samples, random_folds
from kcal.threads import map_blocks
from kcal.validation import check_number, parameter

PENALTY_FOLDS = 5
MIN_PENALTY = np.finfo(np.float64).tiny
PENALTIES = tuple(np.logspace(3, -2, 11).tolist())
"""Values of λ, from strong to weak; each fit starts at the one before."""
PRIOR_STEP = 0.5
"""Logarithm by which a penalty is more probable than the next weaker one, before any sample."""
NEGLIGIBLE_SHARE = 1e-3
"""Share below which a penalty is left out of the average."""
MAX_LOSS_RATIO = 1.1
"""Ratio to the lowest out-of-fold loss above which weaker penalties are not tried; the loss may have two minima."""
MAX_DOUBLE_ENTRIES = 2_000_000
"""Samples × features × classes, above which penalties are compared in single precision: below, that saves nothing."""
COARSE, FINE = 1e-4, 1e-13
"""Relative tolerances of the loss, in the fits that are compared, and of the one that is kept."""
MAX_AXES = 256
"""Principal axes of the embeddings in use, at most."""
ROUNDING = 1e-12
"""Spread of embeddings, in units of the length of their mean, up to which they are equal; more in single precision."""
ROWS_AT_ONCE = 8_192
"""Embeddings that are in float64 at a time."""


class RidgeModel(CalibrationModel):
    """softmax(b·z + Wᵀe + a), b = (1 + c)/T, of logits or log-probabilities z: a part of other models."""

    factor: torch.Tensor = buffer()
    penalty: torch.Tensor = buffer()
    centre: torch.Tensor = buffer("n_features")  # mean of the embeddings: products of centred ones lose no digits
    weights: torch.Tensor = buffer("n_features", "n_classes")
    bias_at_centre: torch.Tensor = buffer("n_classes")

    def forward(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return log-probabilities, (n, n_classes)."""
        return self.log_probs(required(embeddings, "embeddings"), required(logits, "logits"))

    def log_probs(self, embeddings: torch.Tensor, log_probs: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities, (n, n_classes), of embeddings, (n, h), and the network's log-probabilities."""
        centred = embeddings - self.centre.to(embeddings)
        change = centred @ self.weights.to(embeddings) + self.bias_at_centre.to(embeddings)
        return torch.log_softmax(self.factor * log_probs + change, dim=1)

    @property
    def bias(self) -> torch.Tensor:
        """The bias a, (n_classes,)."""
        return self.bias_at_centre - self.centre @ self.weights


class RefitModel(LogitModel):
    """The refitted layer."""

    ridge: RidgeModel = submodule(RidgeModel.from_state)

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        return self.ridge(embeddings, log_probs)  # type: ignore[no-any-return]


class LastLayerRefit(LogitCalibrator):
    """Add a linear map of the embeddings to the scaled logits, with a ridge penalty towards the network alone.

    T is that of temperature scaling, and c has at most the standard deviation of its prior. Without data, or with a
    large λ, the prediction is that of the scaled network. The embeddings are centred and divided by the root mean
    square of their distance from the mean, so that λ has no unit: each logit's change has a prior standard deviation
    of about 1/√λ. The loss is convex.

    Parameters
    ----------
    penalty : "cv" or float
        λ; "cv" averages the solutions of 1,000 to 0.01, in steps of √10, each with its share of the likelihood in
        5-fold cross-validation, at random or by whole groups.
    representation, seed
        As in :class:`TemperatureScaling`; the seed is that of the folds.

    Attributes
    ----------
    factor_, penalty_ : float
        b and λ; with "cv" the geometric mean of λ.
    weights_, bias_ : array, (h, n_classes) and (n_classes,)
        W and a.
    """

    method = "refit"
    inputs = "both"
    fit = fit_with_embeddings
    _model_class = RefitModel
    factor_ = fitted("ridge.factor")
    penalty_ = fitted("ridge.penalty")
    weights_ = fitted("ridge.weights")
    bias_ = fitted("ridge.bias")
    penalty: str | float = parameter(
        "cv", check_number, minimum=MIN_PENALTY, maximum=MAX_PENALTY, expected='must be "cv" or a positive number'
    )

    def _fit_model(self, samples: Samples) -> RefitModel:
        embeddings, log_probs, weights = samples.embeddings, samples.logits, samples.weights
        axes = PrincipalAxes.from_embeddings(embeddings, weights)
        temperature = fit_temperature(log_probs, samples.codes, weights)
        problem = RidgeProblem(log_probs / temperature, axes.features(embeddings), samples.codes, weights)
        if self.penalty == "cv":
            shares, _ = cross_fit(problem, random_folds(samples.codes, samples.groups, PENALTY_FOLDS, self.seed))
        else:
            shares = {float(self.penalty): 1.0}
        point = solve_average(problem, shares, FINE)
        return RefitModel(ridge=axes.model(point, temperature, mean_penalty(shares), log_probs.shape[1]))


@dataclass(frozen=True, eq=False)
class PrincipalAxes:
    """The map from embeddings to features: centred, divided by r, with a constant, on principal axes."""

    mean: torch.Tensor  # (h,)
    scale: float  # r
    axes: torch.Tensor  # (h + 1, n_features); a rotation keeps the ridge

    @classmethod
    def from_embeddings(cls, embeddings: torch.Tensor, weights: Floats) -> PrincipalAxes:
        """Return the axes of weighted embeddings."""
        shares = torch.from_numpy(weights / weights.sum())
        blocks = zip(_split(shares), _split(embeddings), strict=True)
        mean = torch.stack([some @ rows for some, rows in blocks]).sum(dim=0)
        covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64)
        for some, rows in zip(_split(shares), _split(embeddings), strict=True):
            centred = rows - mean
            covariance.addmm_(centred.T * some, centred)
        length, scale = float(torch.linalg.vector_norm(mean)), float(covariance.trace().sqrt())
        if scale <= max(10.0 * torch.finfo(embeddings.dtype).eps, ROUNDING) * length:
            scale = 0.0  # equal embeddings, but for rounding
        scale = scale or length or 1.0
        moments = torch.nn.functional.pad(covariance / scale**2, (0, 1, 0, 1))
        moments[-1, -1] = 1.0  # of the constant
        return cls(mean, scale, torch.linalg.eigh(moments).eigenvectors[:, -MAX_AXES:])

    def features(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return features, (n, n_features), of embeddings, (n, h)."""
        constant, axes = self.axes[-1], self.axes[:-1] / self.scale
        return torch.cat([torch.addmm(constant, rows - self.mean, axes) for rows in _split(embeddings)])

    def model(self, point: Floats, temperature: float, penalty: float, n_classes: int) -> RidgeModel:
        """Return the model of c and V, flat in one array."""
        matrix = self.axes @ torch.from_numpy(point[1:]).view(-1, n_classes)
        parts = {"centre": self.mean, "weights": matrix[:-1] / self.scale, "bias_at_centre": matrix[-1]}
        return RidgeModel(factor=float(1 + point[0]) / temperature, penalty=penalty, **parts)


def _split(rows: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield rows in float64 on the CPU, some at once: all of them would be a second copy of the embeddings."""
    return (some.cpu().double() for some in torch.split(rows, ROWS_AT_ONCE))


@dataclass(frozen=True, eq=False)
class RidgeProblem:
    """The data of a refit: scaled log-probabilities of the network, features, classes and weights of samples."""

    base: torch.Tensor  # (n, n_classes), log-probabilities over T
    features: torch.Tensor  # (n, n_features)
    codes: Index
    weights: Floats

    def rows(self, index: Index) -> RidgeProblem:
        """Return the problem of some samples."""
        return RidgeProblem(self.base[index], self.features[index], self.codes[index], self.weights[index])

    def in_single(self) -> RidgeProblem:
        """Return the problem in single precision."""
        return replace(self, base=self.base.float(), features=self.features.float())

    def scores(self, point: Floats) -> torch.Tensor:
        """Return (1 + c)·z/T + Vᵀf, (n, n_classes), of c and V, flat in one array."""
        matrix = torch.from_numpy(point[1:]).to(self.features).view(self.features.shape[1], -1)
        return (self.base * float(1 + point[0])).addmm_(self.features, matrix)

    @property
    def start(self) -> Floats:
        """C and V of the scaled network: zeros."""
        return np.zeros(1 + self.features.shape[1] * self.base.shape[1])

    def curvatures(self) -> Floats:
        """Roughly the second derivatives of the log-loss at c = 0 and V = 0, in the order of the flat array."""
        importance = torch.from_numpy(self.weights).to(self.base)[:, None]
        probs = torch.softmax(self.base, dim=1)
        variances = (probs * self.base.square()).sum(dim=1) - (probs * self.base).sum(dim=1).square()
        of_classes = (importance * probs * (1 - probs)).sum(dim=0) / importance.sum()
        of_features = (importance * self.features.square()).sum(dim=0)
        parts = [(importance[:, 0] @ variances)[None], (of_features[:, None] * of_classes).ravel()]
        return torch.cat(parts).clamp_min(0.0).double().numpy()

    def solve(self, penalty: float, start: Floats, tolerance: float, curvatures: Floats) -> Floats:
        """Return the c and V, flat in one array, that minimise the loss; principal axes make it converge fast."""
        total, labels = float(self.weights.sum()), torch.from_numpy(self.codes)
        importance = torch.from_numpy(self.weights).to(self.base)
        penalties = np.full(len(start), penalty)
        penalties[0] = max(penalty, 1 / DEVIATION**2)  # of c
        scales, flat_base = np.sqrt(curvatures + penalties), self.base.ravel()

        def loss(scaled: Floats) -> tuple[float, Floats]:
            point = scaled / scales
            value, residuals = softmax_loss(self.scores(point), labels, importance)
            slopes = [torch.dot(residuals.ravel(), flat_base)[None], (self.features.T @ residuals).ravel()]
            gradient = torch.cat(slopes).double().numpy() + penalties * point
            return (value + float((penalties * point) @ point) / 2) / total, gradient / scales / total

        solution = minimise(loss, start * scales, name="the last layer", maxcor=20, ftol=tolerance, gtol=1e-8)
        return np.asarray(solution / scales)


def cross_fit(problem: RidgeProblem, fold_of: Index, *, mixed: bool = False) -> tuple[dict[float, float], torch.Tensor]:
    """Return the share of each λ, and log-probabilities of each sample from the average without its fold.

    The shares are proportional to the out-of-fold likelihoods times the prior; with ``mixed``, to those of the even
    mixture of refit and scaled network.
    """
    is_large = problem.features.numel() * problem.base.shape[1] > MAX_DOUBLE_ENTRIES
    if is_large:
        problem = problem.in_single()
    log_weights, scores = torch.empty(0, dtype=torch.float64), {}
    folds = [(np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)) for fold in np.unique(fold_of)]
    points = [problem.start] * len(folds)
    curvatures = [problem.rows(inside).curvatures() for _, inside in folds]
    weights, of_network = torch.from_numpy(problem.weights), own_log_probs(problem.base, problem.codes)
    for place, penalty in enumerate(PENALTIES):
        out_of_fold = torch.empty_like(problem.base)

        def solve(fold: int) -> Floats:
            return problem.rows(folds[fold][1]).solve(penalty, points[fold], COARSE, curvatures[fold])  # noqa: B023

        numbers = range(len(folds))
        points = map_blocks(solve, numbers, problem.base.device) if is_large else list(map(solve, numbers))
        for point, (outside, _) in zip(points, folds, strict=True):
            out_of_fold[outside] = problem.rows(outside).scores(point)
        own = own_log_probs(out_of_fold, problem.codes)
        log_weight = (torch.logaddexp(own, of_network) - log(2) if mixed else own) @ weights - PRIOR_STEP * place
        log_weights = torch.cat([log_weights, log_weight[None]])
        scores[place] = out_of_fold
        for other in (log_weights < log_weights.max() + log(NEGLIGIBLE_SHARE)).nonzero()[:, 0].tolist():
            scores.pop(other, None)
        if log_weight < min(log_weights.max() + log(NEGLIGIBLE_SHARE), MAX_LOSS_RATIO * log_weights.max()):
            break
    posterior = torch.softmax(log_weights, dim=0).tolist()
    kept = {place: posterior[place] for place in scores if posterior[place] > NEGLIGIBLE_SHARE}
    average = sum(share * scores[place].double() for place, share in kept.items()) / sum(kept.values())
    return {PENALTIES[place]: share for place, share in kept.items()}, torch.log_softmax(average, dim=1)


def own_log_probs(scores: torch.Tensor, codes: Index) -> torch.Tensor:
    """Return the logarithm of the softmax of the class of each row, (n,)."""
    return torch.log_softmax(scores, dim=1)[np.arange(len(codes)), codes].double()


def solve_average(problem: RidgeProblem, shares: dict[float, float], tolerance: float) -> Floats:
    """Return the average of c and V, flat in one array, over penalties with their shares."""
    point, average, curvatures = problem.start, np.zeros(len(problem.start)), problem.curvatures()
    for penalty, share in shares.items():
        point = problem.solve(penalty, point, tolerance, curvatures)
        average += share * point
    return average / sum(shares.values())


def mean_penalty(shares: dict[float, float]) -> float:
    """Return the geometric mean of penalties with their shares."""
    return float(np.exp(np.average(np.log(list(shares)), weights=list(shares.values()))))
