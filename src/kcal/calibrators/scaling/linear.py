"""Vector, matrix and structured matrix scaling: linear maps of the logits, regularised towards one temperature.

p = softmax(W·z + b),   z = log probabilities of the network;   W diagonal for vector scaling
"""

from __future__ import annotations

from typing import ClassVar

import torch

from kcal.calibrators.logit_base import Codes, Floats, LogitCalibrator, check_penalty, fitted
from kcal.calibrators.scaling.linear_fit import (
    DiagonalModel,
    LinearModel,
    fit_matrix,
    fit_structured_matrix,
    fit_vector,
)


class LinearScaling(LogitCalibrator):
    """Base class of vector, matrix and structured matrix scaling."""

    fits_each_class = True
    weights_ = fitted("weights")
    bias_ = fitted("bias")

    def __init__(self, *, penalty: float = 1.0, representation: str = "logits", seed: int = 0) -> None:
        super().__init__(representation=representation, seed=seed)
        self.penalty = penalty

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_penalty(self.penalty)


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
        return fit_vector(log_probs, codes, weights, penalty=self.penalty)


class MatrixScaling(LinearScaling):
    """Map the logits linearly: softmax(W·z + b).

    The minimiser of the summed log-loss plus a penalty, K·penalty/2·(Σ_ij u_ij² + Σ_k b_k²), where
    u = (W − I/T)·‖z‖ with T the temperature of temperature scaling and ‖z‖ the root mean square of the logits. The
    factor K, the number of classes, keeps the prior variance of a logit's change at 1/penalty for any K, so that
    hundreds of classes are not overfitted. The loss is convex and has one minimiser, on separable data too. On
    log probabilities, which the logits are turned into, this is the model of Dirichlet calibration with another
    penalty.

    Parameters
    ----------
    penalty : float
        Strength of the pull towards temperature scaling; 0 is the published loss.
    representation, seed
        As in :class:`TemperatureScaling`.

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
        return fit_matrix(log_probs, codes, weights, penalty=self.penalty)


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
    weights_ : array, (n_classes, n_classes)
        The whole matrix, for logits whose softmax sums to 1 without normalising.
    bias_ : array, (n_classes,)
        b.
    """

    method: ClassVar[str] = "sms"
    model_class = LinearModel

    def _fit_log_probs(self, log_probs: torch.Tensor, codes: Codes, weights: Floats) -> LinearModel:
        return fit_structured_matrix(log_probs, codes, weights, penalty=self.penalty)
