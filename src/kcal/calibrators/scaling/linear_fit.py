"""Linear maps of log probabilities and their penalised fit, a convex problem.

p = softmax(W·z + b),   z = log probabilities of the network
loss = Σ_i w_i·(log-loss of sample i) + ½·Σ_j c_j·θ_j²,   θ = ((W − I/T)·unit, b)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from kcal.calibrators.fit_warnings import warn_of_early_stop
from kcal.calibrators.logit_base import Codes, Floats
from kcal.calibrators.model_state import LogitModel, tensor
from kcal.calibrators.scaling.temperature import fit_temperature

MAX_ITERATIONS = 1000


@dataclass(frozen=True)
class DiagonalModel(LogitModel):
    """softmax(w ∘ z + b)."""

    weights: torch.Tensor = tensor("classes")
    bias: torch.Tensor = tensor("classes")

    def scores(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return unnormalised log probabilities, (n, n_classes), in the precision of the input."""
        return log_probs * self.weights.to(log_probs) + self.bias.to(log_probs)

    def log_probs(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return calibrated log probabilities, (n, n_classes)."""
        return torch.log_softmax(self.scores(log_probs), dim=1)

    def summary(self) -> dict[str, str]:
        """Return the ranges of the factors and of the bias for display."""
        diagonal = self.weights if self.weights.ndim == 1 else self.weights.diagonal()
        ranges = {"diagonal": diagonal, "bias": self.bias}
        return {name: f"{float(part.min()):.3g} to {float(part.max()):.3g}" for name, part in ranges.items()}


@dataclass(frozen=True)
class LinearModel(DiagonalModel):
    """softmax(W·z + b)."""

    weights: torch.Tensor = tensor("classes", "classes")

    def scores(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return unnormalised log probabilities, (n, n_classes), in the precision of the input."""
        return torch.addmm(self.bias.to(log_probs), log_probs, self.weights.T.to(log_probs))


def fit_vector(log_probs: torch.Tensor, codes: Codes, weights: Floats, *, penalty: float) -> DiagonalModel:
    """Return the model of vector scaling: all c_j = penalty, unit = root mean square of z."""
    n_classes = log_probs.shape[1]
    penalties = np.full(2 * n_classes, float(penalty))
    return DiagonalModel(*_fit(log_probs, codes, weights, np.ones(n_classes), penalties))


def fit_matrix(log_probs: torch.Tensor, codes: Codes, weights: Floats, *, penalty: float) -> LinearModel:
    """Return the model of matrix scaling: all c_j = K·penalty, unit = root mean square of z.

    The factor K, the number of classes, keeps the prior variance of a logit's change at 1/penalty for any K.
    """
    n_classes = log_probs.shape[1]
    penalties = np.full(n_classes**2 + n_classes, penalty * n_classes)
    return LinearModel(*_fit(log_probs, codes, weights, np.eye(n_classes), penalties))


def fit_structured_matrix(
    log_probs: torch.Tensor, codes: Codes, weights: Floats, *, penalty: float = 1.0
) -> LinearModel:
    """Return the model of structured matrix scaling: unit = T.

    c_j is 2·K·penalty for the bias and the diagonal, and 2·K·(K − 1)·penalty off the diagonal.
    """
    n_classes = log_probs.shape[1]
    matrix = np.full((n_classes, n_classes), 2.0 * n_classes * (n_classes - 1))
    np.fill_diagonal(matrix, 2.0 * n_classes)
    penalties = penalty * np.concatenate([matrix.ravel(), np.full(n_classes, 2.0 * n_classes)])
    return LinearModel(*_fit(log_probs, codes, weights, np.eye(n_classes), penalties, unit_is_temperature=True))


def _fit(
    log_probs: torch.Tensor,
    codes: Codes,
    weights: Floats,
    identity: Floats,
    penalties: Floats,
    *,
    unit_is_temperature: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return W, in the shape of ``identity`` (diagonal or square), and b, starting at temperature scaling."""
    scores, n_classes, total = log_probs.numpy(), log_probs.shape[1], weights.sum()
    inverse_temperature = 1 / fit_temperature(log_probs, codes, weights).temperature
    root_mean_square = float(np.sqrt(np.average((scores**2).mean(axis=1), weights=weights)))
    unit = 1 / inverse_temperature if unit_is_temperature else root_mean_square
    features, base, rows = scores / unit, scores * inverse_temperature, np.arange(len(codes))

    def loss(flat: Floats) -> tuple[float, Floats]:
        change, bias = flat[:-n_classes].reshape(identity.shape), flat[-n_classes:]
        moved = features * change if identity.ndim == 1 else features @ change.T
        log_p = log_softmax(base + moved + bias, axis=1)
        residuals = np.exp(log_p)
        residuals[rows, codes] -= 1
        residuals *= weights[:, None]
        slope = (residuals * features).sum(axis=0) if identity.ndim == 1 else residuals.T @ features
        value = -(weights @ log_p[rows, codes]) + (penalties * flat) @ flat / 2
        gradient = np.concatenate([slope.ravel(), residuals.sum(axis=0)]) + penalties * flat
        return float(value / total), gradient / total

    options = {"maxiter": MAX_ITERATIONS, "maxcor": 20, "ftol": 1e-14, "gtol": 1e-8}
    solution = minimize(loss, np.zeros(identity.size + n_classes), jac=True, method="L-BFGS-B", options=options)
    if solution.nit >= MAX_ITERATIONS:
        warn_of_early_stop("a linear map of the logits", MAX_ITERATIONS)
    flat = np.asarray(solution.x, dtype=np.float64)
    fitted = inverse_temperature * identity + flat[:-n_classes].reshape(identity.shape) / unit
    return torch.from_numpy(fitted), torch.from_numpy(flat[-n_classes:].copy())
