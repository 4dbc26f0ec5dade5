"""Ridge refit of the last layer, shrunk towards the network.

p = softmax(b·z + Wᵀẽ + a),   ẽ = (e − mean)/r,   r² = mean of ‖e − mean‖²
loss = Σ_i w_i·(log-loss of sample i) + λ/2·(‖W‖² + ‖a‖²) + max(λ, 1/0.3²)/2·c²,   b = (1 + c)/T
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np
import torch

from kcal.calibrators.holdout import fold_codes, stratified_folds
from kcal.calibrators.kcal.samples import Samples
from kcal.calibrators.logit_base import LARGEST_PENALTY, Codes, Floats, fitted
from kcal.calibrators.model_state import tensor
from kcal.calibrators.quasi_newton import minimise_convex
from kcal.calibrators.temperature_prior import DEVIATION, fit_temperature
from kcal.calibrators.with_embeddings.base import TwoInputCalibrator, TwoInputModel
from kcal.validation import check_number, parameter

PENALTIES = tuple(np.logspace(2.5, -1, 8).tolist())
"""Values of λ, from strong to weak: each fit starts at the solution of the one before."""
FOLDS = 5
COARSE, FINE = 1e-4, 1e-13
"""Relative tolerances of the loss, in the fits that are compared, and of the one that is kept."""
PENALTY = 'must be "cv" or a positive number'


@dataclass(frozen=True, eq=False)
class RefitModel(TwoInputModel):
    """softmax(b·z + Wᵀ(e − mean)/r + a)."""

    factor: float
    scale: float
    penalty: float
    mean: torch.Tensor = tensor("features")
    weights: torch.Tensor = tensor("features", "classes")
    bias: torch.Tensor = tensor("classes")

    def log_probs(self, embeddings: torch.Tensor, log_probs: torch.Tensor) -> torch.Tensor:
        """Return calibrated log probabilities, (n, n_classes)."""
        change = (embeddings - self.mean) / self.scale @ self.weights + self.bias
        return torch.log_softmax(self.factor * log_probs + change, dim=1)

    def example_embeddings(self, noise: torch.Tensor) -> torch.Tensor:
        """Return rows with the mean and the spread of the calibration set, (n, h)."""
        return self.mean + self.scale / sqrt(len(self.mean)) * noise

    def summary(self) -> dict[str, str]:
        """Return the chosen penalty and the factor of the logits for display."""
        return {"penalty": f"{self.penalty:.4g}", "factor of the logits": f"{self.factor:.4g}"}


@dataclass(kw_only=True, eq=False, repr=False)
class LastLayerRefit(TwoInputCalibrator):
    """Add a linear map of the embeddings to the scaled logits, with a ridge penalty towards the network alone.

    T is that of temperature scaling, and c has at most the standard deviation of its prior. Without data, or with a
    large λ, the prediction is that of the scaled network. The embeddings are centred and divided by the root mean
    square of their distance from the mean, so that λ has no unit: each logit's change has a prior standard deviation
    of about 1/√λ. The loss is convex.

    Parameters
    ----------
    penalty : "cv" or float
        λ; "cv" takes the one of 300 to 0.1, in steps of √10, with the lowest log-loss in 5-fold cross-validation,
        stratified by class, or by whole groups.
    representation, seed
        As in :class:`TemperatureScaling`; the seed is that of the folds.

    Attributes
    ----------
    factor_, penalty_ : float
        b and λ.
    weights_, bias_ : array, (h, n_classes) and (n_classes,)
        W and a.
    """

    method: ClassVar[str] = "refit"
    model_class = RefitModel
    factor_ = fitted("factor")
    penalty_ = fitted("penalty")
    weights_ = fitted("weights")
    bias_ = fitted("bias")
    penalty: str | float = parameter(
        "cv", check_number, minimum=np.finfo(np.float64).tiny, maximum=LARGEST_PENALTY, expected=PENALTY
    )

    def _fit_model(self, samples: Samples, log_probs: torch.Tensor) -> RefitModel:
        embeddings, codes, weights = samples.embeddings.cpu().double(), samples.codes, samples.weights
        shares = torch.from_numpy(weights / weights.sum())
        mean = shares @ embeddings
        scale = float((shares @ (embeddings - mean).square()).sum().sqrt()) or 1.0
        features = torch.nn.functional.pad((embeddings - mean) / scale, (0, 1), value=1.0)  # the last is that of a
        axes = torch.linalg.eigh(features.T @ (shares[:, None] * features)).eigenvectors  # a rotation keeps the ridge
        features, temperature = features @ axes, fit_temperature(log_probs, codes, weights)
        base = log_probs / temperature
        penalty = choose_penalty(base, features, samples, self.seed) if self.penalty == "cv" else float(self.penalty)
        point = solve_ridge(base, features, codes, weights, penalty, start_point(base, features), FINE)
        matrix = axes @ torch.from_numpy(point[1:]).view(features.shape[1], -1)
        factor = float(1 + point[0]) / temperature
        return RefitModel(factor, scale, penalty, mean, matrix[:-1].clone(), matrix[-1].clone())


def choose_penalty(base: torch.Tensor, features: torch.Tensor, samples: Samples, seed: int) -> float:
    """Return the λ with the lowest out-of-fold log-loss; single precision is enough to compare."""
    base, features = base.float(), features.float()
    if samples.groups is None:
        fold_of = stratified_folds(samples.codes, min(FOLDS, len(samples.codes)), seed)
    else:
        fold_of = fold_codes(samples.codes, min(FOLDS, samples.n_parts), samples.groups, seed)
    losses = np.zeros(len(PENALTIES))
    for fold in np.unique(fold_of).tolist():
        outside, inside = np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)
        held_out = samples.rows(outside)
        point = start_point(base, features)
        for place, penalty in enumerate(PENALTIES):
            part = samples.codes[inside], samples.weights[inside]
            point = solve_ridge(base[inside], features[inside], *part, penalty, point, COARSE)
            log_probs = torch.log_softmax(linear_scores(base[outside], features[outside], point), dim=1).numpy()
            losses[place] -= held_out.weights @ log_probs[np.arange(len(outside)), held_out.codes]
    return float(PENALTIES[int(np.argmin(losses))])


def start_point(base: torch.Tensor, features: torch.Tensor) -> Floats:
    """Return c and V of the scaled network, flat in one array: zeros."""
    return np.zeros(1 + features.shape[1] * base.shape[1])


def linear_scores(base: torch.Tensor, features: torch.Tensor, point: Floats) -> torch.Tensor:
    """Return (1 + c)·z/T + Vᵀf, (n, n_classes), of c and V, flat in one array."""
    matrix = torch.from_numpy(point[1:]).to(features).view(features.shape[1], -1)
    return torch.addmm(base * float(1 + point[0]), features, matrix)


def solve_ridge(
    base: torch.Tensor,
    features: torch.Tensor,
    codes: Codes,
    weights: Floats,
    penalty: float,
    start: Floats,
    tolerance: float,
) -> Floats:
    """Return c and V, flat in one array, that minimise the loss; ``features`` with orthogonal columns converge fast."""
    total, rows, labels = float(weights.sum()), torch.arange(len(codes)), torch.from_numpy(codes)
    importance = torch.from_numpy(weights).to(base)[:, None]
    penalties = np.full(len(start), penalty)
    penalties[0] = max(penalty, 1 / DEVIATION**2)  # of c
    scales = np.sqrt(curvatures(base, features, importance) + penalties)

    def loss(scaled: Floats) -> tuple[float, Floats]:
        point = scaled / scales
        log_p = torch.log_softmax(linear_scores(base, features, point), dim=1)
        value = -float(importance[:, 0] @ log_p[rows, labels]) + float((penalties * point) @ point) / 2
        residuals = log_p.exp_()
        residuals[rows, labels] -= 1
        residuals.mul_(importance)
        slopes = [(residuals * base).sum()[None], (features.T @ residuals).ravel()]
        gradient = torch.cat(slopes).double().numpy() + penalties * point
        return value / total, gradient / scales / total

    options = {"maxcor": 20, "ftol": tolerance, "gtol": 1e-8}
    solution: Floats = minimise_convex(loss, start * scales, name="the last layer", bounds=None, **options) / scales
    return solution


def curvatures(base: torch.Tensor, features: torch.Tensor, importance: torch.Tensor) -> Floats:
    """Return roughly the second derivatives of the log-loss at c = 0 and V = 0, in the order of the flat array."""
    probs = torch.softmax(base, dim=1)
    variances = (probs * base.square()).sum(dim=1) - (probs * base).sum(dim=1).square()
    of_classes = (importance * probs * (1 - probs)).sum(dim=0) / importance.sum()
    of_features = (importance * features.square()).sum(dim=0)
    parts = [(importance[:, 0] @ variances)[None], (of_features[:, None] * of_classes).ravel()]
    return torch.cat(parts).clamp_min(0.0).double().numpy()
