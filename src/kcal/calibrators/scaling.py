"""Scaling of the logits: by one temperature, by a mixture, by a linear map; and not at all.

uncal            p = softmax(z)
ts               p = softmax(z / T)
ets              p = w₁·softmax(z / T) + w₂·softmax(z) + w₃/K
vector, matrix   p = softmax(W·z + b), W diagonal for vector scaling
svs, sms         the same with structured penalties
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import log
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.optimize import minimize

from kcal.calibrators.base import fitted
from kcal.calibrators.logits import MAX_PENALTY, Floats, LogitCalibrator, LogitModel
from kcal.calibrators.quasi_newton import minimise_convex
from kcal.calibrators.temperature_prior import fit_temperature
from kcal.errors import ConvergenceWarning, warn
from kcal.samples import Samples
from kcal.validation import ALMOST_ZERO, check_number, parameter

MAX_GAP = 1e-9
"""The log-loss of fitted mixture weights exceeds the minimum by at most this."""
MAX_STEPS = 10_000


class IdentityModel(LogitModel):
    """softmax(z)."""

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return the network's log-probabilities, (n, n_classes)."""
        return log_probs


class Uncalibrated(LogitCalibrator):
    """Softmax of the logits, unchanged; ``fit`` checks the data and stores the classes.

    Parameters
    ----------
    representation, seed
        As in :class:`TemperatureScaling`.
    """

    method: ClassVar[str] = "uncal"
    preserves_order: ClassVar[bool] = True
    model_class = IdentityModel

    def _fit_model(self, samples: Samples) -> IdentityModel:
        return IdentityModel()


class TemperatureModel(LogitModel):
    """softmax(z / T)."""

    temperature: torch.Tensor

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.declare(temperature=())

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        return torch.log_softmax(log_probs / self.temperature, dim=1)

    def summary(self) -> dict[str, str]:
        """Return the temperature for display."""
        return {"temperature": f"{float(self.temperature):.4g}"}


class TemperatureScaling(LogitCalibrator):
    """Divide all logits by one temperature, the most probable one given the calibration set.

    T in [0.01, 100] minimises the summed log-loss plus H((log T − 0.2)/0.3), H(a) = a²/2, from |a| = 1.5 on linear: a
    prior on log T, without which a calibration set without errors would have T = 0 and probabilities of 0 and 1. It
    vanishes as samples grow.

    Parameters
    ----------
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Accepted by every calibrator; nothing here is random.

    Attributes
    ----------
    temperature_ : float
        T; above 1 for an overconfident network.
    """

    method: ClassVar[str] = "ts"
    preserves_order: ClassVar[bool] = True
    model_class = TemperatureModel
    model_: TemperatureModel
    temperature_ = fitted("temperature")

    def _fit_model(self, samples: Samples) -> TemperatureModel:
        return TemperatureModel().fill(temperature=fit_temperature(samples.logits, samples.codes, samples.weights))


class EnsembleModel(LogitModel):
    """w₁·softmax(z / T) + w₂·softmax(z) + w₃/K."""

    temperature: torch.Tensor
    weights: torch.Tensor

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.declare(temperature=(), weights=(3,))

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        parts = mixture_parts(log_probs, self.temperature)
        return torch.log_softmax(torch.logsumexp(parts + self.weights.log()[:, None, None], dim=0), dim=1)

    def summary(self) -> dict[str, str]:
        """Return temperature and weights for display."""
        names = ("scaled", "unscaled", "uniform")
        shares = ", ".join(f"{name} {weight:.3f}" for name, weight in zip(names, self.weights.tolist(), strict=True))
        return {"temperature": f"{float(self.temperature):.4g}", "weights": shares}


class EnsembleTemperatureScaling(LogitCalibrator):
    """Mix temperature-scaled probabilities with the network's own and with uniform ones.

    p = w₁·softmax(z / T) + w₂·softmax(z) + w₃/K,   w ≥ 0, Σ w = 1

    T is that of temperature scaling; the weights then minimise the log-loss of the mixture, which is convex in them.
    Every part ranks the classes alike, so that the order of the classes, and the accuracy, never changes.

    Parameters
    ----------
    representation, seed
        As in :class:`TemperatureScaling`.

    Attributes
    ----------
    temperature_ : float
        T; above 1 for an overconfident network.
    weights_ : array, (3,)
        Weights of the scaled, the network's own and the uniform probabilities.
    """

    method: ClassVar[str] = "ets"
    preserves_order: ClassVar[bool] = True
    model_class = EnsembleModel
    temperature_ = fitted("temperature")
    weights_ = fitted("weights")

    def _fit_model(self, samples: Samples) -> EnsembleModel:
        temperature = fit_temperature(samples.logits, samples.codes, samples.weights)
        codes = torch.from_numpy(samples.codes)
        own = mixture_parts(samples.logits, temperature)[:, torch.arange(len(codes)), codes]  # (3, n)
        weights = fit_mixture(np.exp(own.numpy().T), samples.weights)
        return EnsembleModel().fill(temperature=temperature, weights=weights)


def mixture_parts(log_probs: torch.Tensor, temperature: torch.Tensor | float) -> torch.Tensor:
    """Return the log-probabilities of the three parts, (3, n, n_classes)."""
    scaled = torch.log_softmax(log_probs / temperature, dim=1)
    return torch.stack([scaled, log_probs, torch.full_like(log_probs, -log(log_probs.shape[1]))])


def fit_mixture(densities: Floats, weights: Floats) -> Floats:
    """Return the weights of the parts, (m,), that minimise the weighted mean of −log(densities @ weights).

    With r_j the mean of densities_j / (densities @ weights), the loss exceeds the minimum by at most log(max_j r_j).
    SLSQP comes close; multiplying the weights by r, which never increases the loss, then converges.
    """
    densities, importance = np.maximum(densities, ALMOST_ZERO), weights / weights.sum()

    def loss(shares: Floats) -> tuple[float, Floats]:
        mixed = np.maximum(densities @ shares, ALMOST_ZERO)
        return -float(importance @ np.log(mixed)), -(importance / mixed) @ densities

    n_parts = densities.shape[1]
    solution = minimize(
        loss,
        np.full(n_parts, 1 / n_parts),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * n_parts,
        constraints={"type": "eq", "fun": lambda shares: shares.sum() - 1, "jac": np.ones_like},
        options={"maxiter": 500, "ftol": 1e-15},
    )
    shares: Floats = np.maximum(solution.x, ALMOST_ZERO)
    shares /= shares.sum()
    for _ in range(MAX_STEPS):
        ratios = (importance / (densities @ shares)) @ densities
        if np.log(ratios.max()) <= MAX_GAP:
            return shares
        shares = shares * ratios
    warn("The weights of the mixture did not converge.", ConvergenceWarning)
    return shares


class LinearModel(LogitModel):
    """softmax(W·z + b), or softmax(w ∘ z + b) if the map is ``diagonal``."""

    weights: torch.Tensor
    bias: torch.Tensor

    def __init__(self, *, n_classes: int, diagonal: bool, **config: Any) -> None:
        super().__init__(n_classes=n_classes, diagonal=diagonal, **config)
        self.declare(weights=(n_classes,) if diagonal else (n_classes, n_classes), bias=(n_classes,))

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        if self.weights.ndim == 1:
            return torch.log_softmax(log_probs * self.weights + self.bias, dim=1)
        return torch.log_softmax(torch.addmm(self.bias, log_probs, self.weights.T), dim=1)

    def summary(self) -> dict[str, str]:
        """Return the ranges of the factors and of the bias for display."""
        diagonal = self.weights if self.weights.ndim == 1 else self.weights.diagonal()
        ranges = {"diagonal": diagonal, "bias": self.bias}
        return {name: f"{float(part.min()):.3g} to {float(part.max()):.3g}" for name, part in ranges.items()}


@dataclass(kw_only=True, eq=False, repr=False)
class LinearScaling(LogitCalibrator):
    """Base class: linear maps of the logits, regularised towards temperature scaling.

    loss = Σ_i w_i·(log-loss of sample i) + ½·Σ_j c_j·θ_j²,   θ = ((W − I/T)·unit, b)

    A method names the penalties c_j, and whether the unit is T or the root mean square of z.
    """

    diagonal: ClassVar[bool]
    unit_is_temperature: ClassVar[bool] = False
    model_class = LinearModel
    fits_each_class = True
    weights_ = fitted("weights")
    bias_ = fitted("bias")
    penalty: float = parameter(1.0, check_number, minimum=0, maximum=MAX_PENALTY)

    @abstractmethod
    def _penalties(self, n_classes: int) -> tuple[Floats | float, float]:
        """Return the c_j of the entries of W, one number or in its shape, and that of the entries of b."""

    def _fit_model(self, samples: Samples) -> LinearModel:
        n_classes = samples.logits.shape[1]
        identity = np.ones(n_classes) if self.diagonal else np.eye(n_classes)
        of_weights, of_bias = self._penalties(n_classes)
        penalties = np.concatenate(
            [np.broadcast_to(of_weights, identity.shape).ravel(), np.full(n_classes, float(of_bias))]
        )
        weights, bias = fit_linear(samples, identity, penalties, unit_is_temperature=self.unit_is_temperature)
        return LinearModel(n_classes=n_classes, diagonal=self.diagonal).fill(weights=weights, bias=bias)


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
    diagonal: ClassVar[bool] = True

    def _penalties(self, n_classes: int) -> tuple[float, float]:
        return self.penalty, self.penalty


class MatrixScaling(LinearScaling):
    """Map the logits linearly: softmax(W·z + b).

    The minimiser of the summed log-loss plus a penalty, K·penalty/2·(Σ_ij u_ij² + Σ_k b_k²), u = (W − I/T)·‖z‖, with T
    and ‖z‖ as in :class:`VectorScaling`. The factor K, the number of classes, keeps the prior variance of a logit's
    change at 1/penalty for any K, so that hundreds of classes are not overfitted. On log-probabilities, which the
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
    diagonal: ClassVar[bool] = False

    def _penalties(self, n_classes: int) -> tuple[float, float]:
        return self.penalty * n_classes, self.penalty * n_classes


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
    diagonal: ClassVar[bool] = False
    unit_is_temperature: ClassVar[bool] = True

    def _penalties(self, n_classes: int) -> tuple[Floats, float]:
        matrix = np.full((n_classes, n_classes), 2.0 * n_classes * (n_classes - 1))
        np.fill_diagonal(matrix, 2.0 * n_classes)
        return self.penalty * matrix, 2.0 * n_classes * self.penalty


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
    diagonal: ClassVar[bool] = True
    unit_is_temperature: ClassVar[bool] = True

    def _penalties(self, n_classes: int) -> tuple[float, float]:
        return 2.0 * n_classes * self.penalty, 2.0 * n_classes * self.penalty


def fit_linear(
    samples: Samples, identity: Floats, penalties: Floats, *, unit_is_temperature: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return W, in the shape of ``identity`` (diagonal or square), and b, starting at temperature scaling.

    ``penalties`` are the c_j; the unit is T, or else the root mean square of z.
    """
    log_probs, codes, weights = samples.logits, samples.codes, samples.weights
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
    mapped = inverse_temperature * identity + flat[:-n_classes].reshape(identity.shape) / unit
    return torch.from_numpy(mapped), torch.from_numpy(flat[-n_classes:].copy())
