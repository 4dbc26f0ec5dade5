"""Scaling of the logits: by one temperature, by a mixture, by a linear map; and not at all.

uncal            p = softmax(z)
ts               p = softmax(z / T)
ets              p = w₁·softmax(z / T) + w₂·softmax(z) + w₃/K
vector, matrix   p = softmax(W·z + b), W diagonal for vector scaling
svs, sms         the same with structured penalties
"""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch.nn.functional import threshold

from kcal.calibrators.base import Tags, buffer, fitted
from kcal.calibrators.logits import MAX_PENALTY, LogitCalibrator, LogitModel
from kcal.calibrators.solvers import minimise, softmax_loss
from kcal.calibrators.temperature_prior import fit_temperature
from kcal.errors import ConvergenceWarning, warn
from kcal.samples import Floats, Samples
from kcal.validation import ALMOST_ZERO, check_number, parameter

MASKED_LOG_PROB = -1e8
"""Log-probabilities of a class that is masked out are lower."""
MAX_GAP = 1e-9
"""The log-loss of fitted mixture weights exceeds the minimum by at most this."""
MAX_MIXTURE_STEPS = 10_000


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

    method = "uncal"
    _tags = Tags(preserves_order=True)
    _model_class = IdentityModel

    def _fit_model(self, samples: Samples) -> IdentityModel:
        return IdentityModel()


class TemperatureModel(LogitModel):
    """softmax(z / T)."""

    temperature: torch.Tensor = buffer()

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        return torch.log_softmax(log_probs / self.temperature, dim=1)


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

    method = "ts"
    _tags = Tags(preserves_order=True)
    _model_class = TemperatureModel
    temperature_ = fitted("temperature")

    def _fit_model(self, samples: Samples) -> TemperatureModel:
        return TemperatureModel(temperature=fit_temperature(samples.logits, samples.codes, samples.weights))


class EnsembleModel(LogitModel):
    """w₁·softmax(z / T) + w₂·softmax(z) + w₃/K."""

    temperature: torch.Tensor = buffer()
    weights: torch.Tensor = buffer(3)

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        parts = mixture_parts(log_probs, self.temperature)
        return torch.log_softmax(torch.logsumexp(parts + self.weights.log()[:, None, None], dim=0), dim=1)


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

    method = "ets"
    _tags = Tags(preserves_order=True)
    _model_class = EnsembleModel
    temperature_ = fitted("temperature")
    weights_ = fitted("weights")

    def _fit_model(self, samples: Samples) -> EnsembleModel:
        temperature = fit_temperature(samples.logits, samples.codes, samples.weights)
        codes = torch.from_numpy(samples.codes)
        own = mixture_parts(samples.logits, temperature)[:, torch.arange(len(codes)), codes]  # (3, n)
        weights = fit_ensemble_weights(np.exp(own.numpy().T), samples.weights)
        return EnsembleModel(temperature=temperature, weights=weights)


def mixture_parts(log_probs: torch.Tensor, temperature: torch.Tensor | float) -> torch.Tensor:
    """Return the log-probabilities of the three parts, (3, n, n_classes)."""
    scaled = torch.log_softmax(log_probs / temperature, dim=1)
    return torch.stack([scaled, log_probs, torch.full_like(log_probs, -log(log_probs.shape[1]))])


def fit_ensemble_weights(densities: Floats, weights: Floats) -> Floats:
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
    for _ in range(MAX_MIXTURE_STEPS):
        ratios = (importance / (densities @ shares)) @ densities
        if np.log(ratios.max()) <= MAX_GAP:
            return shares
        shares = shares * ratios
    warn("The weights of the mixture did not converge.", ConvergenceWarning)
    return shares


class DiagonalModel(LogitModel):
    """softmax(w ∘ z + b)."""

    weights: torch.Tensor = buffer("n_classes")
    bias: torch.Tensor = buffer("n_classes")

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        change = unmasked(log_probs) * (self.weights - 1)
        return torch.log_softmax(change.add_(self.bias).add_(log_probs), dim=1)


class MatrixModel(LogitModel):
    """softmax(W·z + b)."""

    weights: torch.Tensor = buffer("n_classes", "n_classes")
    bias: torch.Tensor = buffer("n_classes")

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        change = self.weights - torch.eye(len(self.weights)).to(self.weights)
        return torch.log_softmax(torch.addmm(self.bias, unmasked(log_probs), change.T).add_(log_probs), dim=1)


def unmasked(log_probs: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities with 0 for a class that is masked out: it contributes nothing to any class."""
    return threshold(log_probs, MASKED_LOG_PROB, 0.0)


class VectorScaling(LogitCalibrator):
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

    method = "vector"
    _fits_each_class = True
    _model_class = DiagonalModel
    weights_ = fitted("weights")
    bias_ = fitted("bias")
    penalty: float = parameter(1.0, check_number, minimum=0, maximum=MAX_PENALTY)

    def _fit_model(self, samples: Samples) -> LogitModel:
        return DiagonalModel(**fit_linear(samples, self.penalty))


class MatrixScaling(LogitCalibrator):
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

    method = "matrix"
    _fits_each_class = True
    _model_class = MatrixModel
    weights_ = fitted("weights")
    bias_ = fitted("bias")
    penalty: float = parameter(1.0, check_number, minimum=0, maximum=MAX_PENALTY)

    def _fit_model(self, samples: Samples) -> LogitModel:
        penalty = samples.n_classes * self.penalty
        return MatrixModel(**fit_linear(samples, penalty, off_diagonal=penalty))


class StructuredMatrixScaling(LogitCalibrator):
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

    method = "sms"
    _fits_each_class = True
    _model_class = MatrixModel
    weights_ = fitted("weights")
    bias_ = fitted("bias")
    penalty: float = parameter(1.0, check_number, minimum=0, maximum=MAX_PENALTY)

    def _fit_model(self, samples: Samples) -> LogitModel:
        penalty = 2.0 * samples.n_classes * self.penalty
        off_diagonal = penalty * (samples.n_classes - 1)
        return MatrixModel(**fit_linear(samples, penalty, off_diagonal=off_diagonal, structured=True))


class StructuredVectorScaling(LogitCalibrator):
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

    method = "svs"
    _fits_each_class = True
    _model_class = DiagonalModel
    weights_ = fitted("weights")
    bias_ = fitted("bias")
    penalty: float = parameter(1.0, check_number, minimum=0, maximum=MAX_PENALTY)

    def _fit_model(self, samples: Samples) -> LogitModel:
        return DiagonalModel(**fit_linear(samples, 2.0 * samples.n_classes * self.penalty, structured=True))


def fit_linear(
    samples: Samples, penalty: float, *, off_diagonal: float | None = None, structured: bool = False
) -> dict[str, Any]:
    """Return the W and b of a linear map of the logits that is regularised towards temperature scaling.

    loss = Σ_i w_i·(log-loss of sample i) + ½·Σ_j c_j·θ_j²,   θ = ((W − I/T)·unit, b)

    The c_j are ``penalty`` for b and the diagonal of W, and ``off_diagonal`` for its other entries; W is diagonal if
    that is None. The unit is T if the penalties are ``structured``, else the root mean square of z.
    """
    log_probs, diagonal, n_classes = samples.logits, off_diagonal is None, samples.n_classes
    penalties = np.full(n_classes if diagonal else (n_classes, n_classes), penalty if diagonal else off_diagonal)
    if not diagonal:
        np.fill_diagonal(penalties, penalty)
    labels, weights, total = torch.from_numpy(samples.codes), torch.from_numpy(samples.weights), samples.weights.sum()
    factor = 1 / fit_temperature(log_probs, samples.codes, samples.weights)
    visible = unmasked(log_probs)
    root_mean_square = float(((visible.square() * weights[:, None]).sum() / (total * n_classes)).sqrt())
    unit = 1 / factor if structured else root_mean_square
    features, base = visible / unit, log_probs * factor
    all_penalties = np.append(penalties, np.full(n_classes, penalty))
    probs = torch.softmax(base, dim=1)
    uncertainty, squares = probs * (1 - probs) * weights[:, None], features.square()
    curvature = (uncertainty * squares).sum(dim=0) if diagonal else uncertainty.T @ squares
    curvatures = torch.cat([curvature.ravel(), uncertainty.sum(dim=0)]).numpy() + all_penalties
    scales = np.sqrt(np.maximum(curvatures, ALMOST_ZERO))  # about the same curvature in all directions: fewer steps

    def loss(scaled: Floats) -> tuple[float, Floats]:
        flat = scaled / scales
        change, bias = torch.from_numpy(flat[:-n_classes]).view(penalties.shape), torch.from_numpy(flat[-n_classes:])
        moved = features * change if diagonal else features @ change.T
        value, residuals = softmax_loss(moved.add_(base).add_(bias), labels, weights)
        slopes = (residuals * features).sum(dim=0) if diagonal else residuals.T @ features
        gradient = torch.cat([slopes.ravel(), residuals.sum(dim=0)]).numpy() + all_penalties * flat
        return (value + float((all_penalties * flat) @ flat / 2)) / total, gradient / scales / total

    start, name = np.zeros(len(scales)), "a linear map of the logits"
    flat = minimise(loss, start, name=name, maxcor=20, ftol=1e-14, gtol=1e-9) / scales
    identity, change = np.ones(n_classes) if diagonal else np.eye(n_classes), flat[:-n_classes] / unit
    return {"weights": factor * identity + change.reshape(penalties.shape), "bias": flat[-n_classes:]}
