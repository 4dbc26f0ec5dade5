"""Predictions corrected for a temperature and a bias per class, so that they are calibrated for every class.

log q_k = a·log p_k + b_k − log Σ_j exp(a·log p_j + b_j), fitted to labelled predictions by the penalised log-loss
Σ_i −log q_{i,y_i} + ½·‖b‖². Estimated class frequencies are wrong where predictions are biased for a class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax

from kcal.validation import ALMOST_ZERO

Floats = NDArray[np.float64]

PENALTY = 1.0
"""Inverse variance of the prior of the bias of a class."""


@dataclass(frozen=True, eq=False)
class BiasCorrection:
    """An exponent and a bias per class; ``changes``, (n, 1 + n_classes), are the influence of each labelled sample."""

    exponent: float
    bias: Floats
    changes: Floats

    def apply(self, probs: Floats) -> Floats:
        """Return corrected probabilities, (n, n_classes)."""
        return np.asarray(np.exp(log_softmax(self.exponent * log_of(probs) + self.bias, axis=1)))


def log_of(probs: Floats) -> Floats:
    """Return logarithms, of at least 1e-12."""
    return np.log(np.maximum(probs, ALMOST_ZERO))


def fit_bias_correction(probs: Floats, labels: NDArray[np.intp]) -> BiasCorrection:
    """Fit to labelled predictions that the calibrator was not fitted on; ``labels`` are columns."""
    logs, targets = log_of(probs), np.eye(probs.shape[1])[labels]

    def loss_and_gradient(parameters: Floats) -> tuple[float, Floats]:
        log_probs = log_softmax(parameters[0] * logs + parameters[1:], axis=1)
        errors = np.exp(log_probs) - targets
        bias = parameters[1:]
        loss = -(log_probs * targets).sum() + 0.5 * PENALTY * bias @ bias
        gradient = np.append((errors * logs).sum(), errors.sum(axis=0) + PENALTY * bias)
        return loss / len(labels), gradient / len(labels)

    start = np.append(1.0, np.zeros(probs.shape[1]))
    bounds = [(1e-3, 1e3)] + [(None, None)] * probs.shape[1]
    found = minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    fitted = np.exp(log_softmax(found[0] * logs + found[1:], axis=1))
    return BiasCorrection(float(found[0]), found[1:], _influences(logs, fitted, targets))


def _influences(logs: Floats, fitted: Floats, targets: Floats) -> Floats:
    """Return H⁻¹·(−gradient) of each sample, (n, 1 + n_classes); H is the Hessian of the penalised loss."""
    n_classes = logs.shape[1]
    centred = logs - (fitted * logs).sum(axis=1, keepdims=True)
    hessian = np.empty((1 + n_classes, 1 + n_classes))
    hessian[0, 0] = (fitted * centred * logs).sum()
    hessian[0, 1:] = hessian[1:, 0] = (fitted * centred).sum(axis=0)
    hessian[1:, 1:] = np.diag(fitted.sum(axis=0)) - fitted.T @ fitted + PENALTY * np.eye(n_classes)
    errors = targets - fitted
    gradients = np.column_stack([(errors * logs).sum(axis=1), errors])
    return np.asarray(gradients @ np.linalg.pinv(hessian))
