"""Vector and matrix scaling, plain and structured: linear maps of the logits, regularised towards one temperature.

p = softmax(W·z + b),   z = log probabilities of the network;   W diagonal for vector scaling
loss = Σ_i w_i·(log-loss of sample i) + ½·Σ_j c_j·θ_j²,   θ = ((W − I/T)·unit, b)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from kcal.calibrators.logit_base import LARGEST_PENALTY, Codes, Floats, LogitCalibrator, fitted
from kcal.calibrators.model_state import LogitModel, tensor
from kcal.calibrators.quasi_newton import minimise_convex
from kcal.calibrators.temperature_prior import fit_temperature
from kcal.validation import check_number, parameter


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


@dataclass(kw_only=True, eq=False, repr=False)
class LinearScaling(LogitCalibrator):
    """Base class of vector, matrix and structured matrix scaling."""

    fits_each_class = True
    weights_ = fitted("weights")
    bias_ = fitted("bias")
    penalty: float = parameter(1.0, check_number, minimum=0, maximum=LARGEST_PENALTY)


class VectorScaling(LinearScaling):
    """Multiply each logit by a factor of its class and add a bias: softmax(w ∘ z + b).

    The minimiser of the summed log-loss plus a penalty, penalty/2·(Σ_k u_k² + Σ_k b_k²), where u_k = (w_k − 1/T)·‖z‖
    with T the temperature of temperature scaling and ‖z‖ the root mean square of the logits: a normal prior with
    variance 1/penalty on how far each logit moves from temperature scaling. The loss is convex and has one minimiser,
    on separable data too.

    Parameters
    ----------
    penalty : float
        Strength of the pull towards temperature scaling; 0 is the published loss.
    representation, seed
        As in :class:`TemperatureScaling`.

    Attributes
    ----------
    weights_ : array, (n_classes,)
        w, for logits whose softmax sums to 1 without normalising.
    bias_ : array, (n_classes,)
        b.
    """

    method: ClassVar[str] = "vector"
    model_class = DiagonalModel

    def _fit_log_probs(self, log_probs: torch.Tensor, codes: Codes, weights: Floats) -> DiagonalModel:
        n_classes = log_probs.shape[1]
        penalties = np.full(2 * n_classes, float(self.penalty))
        return DiagonalModel(*fit_linear(log_probs, codes, weights, np.ones(n_classes), penalties))


class MatrixScaling(LinearScaling):
    """Map the logits linearly: softmax(W·z + b).

    The minimiser of the summed log-loss plus a penalty, K·penalty/2·(Σ_ij u_ij² + Σ_k b_k²), u = (W − I/T)·‖z‖, with T
    and ‖z‖ as in :class:`VectorScaling`. The factor K, the number of classes, keeps the prior variance of a logit's
    change at 1/penalty for any K, so that hundreds of classes are not overfitted. On log probabilities, which the
    logits are turned into, this is the model of Dirichlet calibration with another penalty.

    Parameters
    ----------
    penalty, representation, seed
        As in :class:`VectorScaling`.

    Attributes
    ----------
    weights_ : array, (n_classes, n_classes)
        W, for logits whose softmax sums to 1 without normalising.
    bias_ : array, (n_classes,)
        b.
    """

    method: ClassVar[str] = "matrix"
    model_class = LinearModel

    def _fit_log_probs(self, log_probs: torch.Tensor, codes: Codes, weights: Floats) -> LinearModel:
        n_classes = log_probs.shape[1]
        penalties = np.full(n_classes**2 + n_classes, self.penalty * n_classes)
        return LinearModel(*fit_linear(log_probs, codes, weights, np.eye(n_classes), penalties))


class StructuredMatrixScaling(LinearScaling):
    """Map the logits linearly, each part of the map with a penalty in proportion to its number of entries.

    p = softmax((I + diag(v) + M)·z/T + b),   M with zeros on the diagonal
    loss = mean log-loss + (K·‖b‖² + K·‖v‖² + K·(K − 1)·‖M‖²)·penalty/n

    Temperature scaling first; then a bias and a factor per class, and a matrix of interactions between classes, each
    with a ridge penalty (Berta, Holzmüller, Jordan and Bach, 2026). Nothing is tuned, and the loss is convex.

    Parameters
    ----------
    penalty : float
        Factor of all penalties; 1 is the published one.
    representation, seed
        As in :class:`TemperatureScaling`.

    Attributes
    ----------
    weights_, bias_ : array
        The whole matrix and b, as in :class:`MatrixScaling`.
    """

    method: ClassVar[str] = "sms"
    model_class = LinearModel

    def _fit_log_probs(self, log_probs: torch.Tensor, codes: Codes, weights: Floats) -> LinearModel:
        return fit_structured_matrix(log_probs, codes, weights, penalty=self.penalty)


class StructuredVectorScaling(LinearScaling):
    """Structured matrix scaling without interactions between classes: 2·K numbers, for many classes.

    p = softmax((1 + v) ∘ z/T + b),   loss = mean log-loss + (K·‖b‖² + K·‖v‖²)·penalty/n

    Parameters
    ----------
    penalty, representation, seed
        As in :class:`StructuredMatrixScaling`.

    Attributes
    ----------
    weights_, bias_ : array, (n_classes,)
        (1 + v)/T and b.
    """

    method: ClassVar[str] = "svs"
    model_class = DiagonalModel

    def _fit_log_probs(self, log_probs: torch.Tensor, codes: Codes, weights: Floats) -> DiagonalModel:
        return fit_structured_vector(log_probs, codes, weights, penalty=self.penalty)


def fit_structured_vector(
    log_probs: torch.Tensor, codes: Codes, weights: Floats, *, penalty: float = 1.0
) -> DiagonalModel:
    """Return the model of structured vector scaling: unit = T, c_j = 2·K·penalty."""
    n_classes = log_probs.shape[1]
    penalties = np.full(2 * n_classes, 2.0 * n_classes * penalty)
    identity = np.ones(n_classes)
    return DiagonalModel(*fit_linear(log_probs, codes, weights, identity, penalties, unit_is_temperature=True))


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
    return LinearModel(*fit_linear(log_probs, codes, weights, np.eye(n_classes), penalties, unit_is_temperature=True))


def fit_linear(
    log_probs: torch.Tensor,
    codes: Codes,
    weights: Floats,
    identity: Floats,
    penalties: Floats,
    *,
    unit_is_temperature: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return W, in the shape of ``identity`` (diagonal or square), and b, starting at temperature scaling.

    ``penalties`` are the c_j; the unit is T, or else the root mean square of z.
    """
    n_classes, total = log_probs.shape[1], float(weights.sum())
    inverse_temperature = 1 / fit_temperature(log_probs, codes, weights)
    shares, labels, rows = torch.from_numpy(weights)[:, None], torch.from_numpy(codes), torch.arange(len(codes))
    root_mean_square = float(((log_probs.square() * shares).sum() / (total * n_classes)).sqrt())
    unit = 1 / inverse_temperature if unit_is_temperature else root_mean_square
    features, base = log_probs / unit, log_probs * inverse_temperature

    def loss(flat: Floats) -> tuple[float, Floats]:
        change = torch.from_numpy(flat[:-n_classes]).view(identity.shape)
        moved = features * change if identity.ndim == 1 else features @ change.T
        log_p = torch.log_softmax(moved.add_(base).add_(torch.from_numpy(flat[-n_classes:])), dim=1)
        value = -float(shares[:, 0] @ log_p[rows, labels]) + float((penalties * flat) @ flat / 2)
        residuals = log_p.exp_()
        residuals[rows, labels] -= 1
        residuals.mul_(shares)
        slope = (residuals * features).sum(dim=0) if identity.ndim == 1 else residuals.T @ features
        gradient = torch.cat([slope.ravel(), residuals.sum(dim=0)]).numpy() + penalties * flat
        return value / total, gradient / total

    start = np.zeros(identity.size + n_classes)
    flat = minimise_convex(loss, start, name="a linear map of the logits", maxcor=20, ftol=1e-14, gtol=1e-8)
    fitted = inverse_temperature * identity + flat[:-n_classes].reshape(identity.shape) / unit
    return torch.from_numpy(fitted), torch.from_numpy(flat[-n_classes:].copy())
