"""Vector and matrix scaling: a linear map of the logits, found by a convex solver and held near one temperature.

output = softmax(W·z + b),   z = log p;   W diagonal for vector scaling
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.base import Calibrator, CalibratorState, refuse_extra
from kcal.calibrators.binary.beta import check_penalty
from kcal.calibrators.binary.one_versus_rest import warn_of_missing_classes
from kcal.calibrators.binary.platt import warn_of_early_stop
from kcal.calibrators.logits import encode_columns, log_probabilities
from kcal.calibrators.scaling.temperature import solve_temperature
from kcal.errors import FileFormatError
from kcal.validation import check_weights

Floats = NDArray[np.float64]

MOST_ITERATIONS = 1000


class LinearScaling(Calibrator):
    """Base of vector and matrix scaling: what they share is all but the shape of W."""

    inputs: ClassVar[str] = "logits"
    weights_: Floats
    bias_: Floats

    def __init__(self, *, penalty: float = 1.0, representation: str = "logits", seed: int = 0) -> None:
        self.penalty = penalty
        self.representation = representation
        self.seed = seed

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, classes: Any = None) -> Self:
        """Find W and b for logits ``X`` (n, n_classes) and labels ``y``; integer labels are columns.

        A sample of weight 2 counts as two samples.
        """
        check_penalty(self.penalty)
        rows, _ = self._check_rows(X, fitting=True)
        self._remember(rows)
        logits = log_probabilities(rows, self.representation).numpy()
        codes, self.classes_ = encode_columns(y, len(logits), logits.shape[1], classes)
        weights = np.ones(len(codes)) if sample_weight is None else check_weights(sample_weight, len(codes))
        logits, codes, weights = logits[weights > 0], codes[weights > 0], weights[weights > 0]
        warn_of_missing_classes(codes, self.classes_)
        self._solve(logits, codes, weights)
        return self

    def _solve(self, logits: Floats, codes: NDArray[np.int64], weights: Floats) -> None:
        """Minimise over the change U from temperature scaling: heights = z/T + U·(z / size of z) + b."""
        n_classes, total = logits.shape[1], weights.sum()
        steepness = 1 / solve_temperature(logits, codes, weights)
        size = self._size(logits, weights, steepness)
        features, base, rows = logits / size, logits * steepness, np.arange(len(codes))
        strengths = self.penalty * self._strengths(n_classes)

        def loss(flat: Floats) -> tuple[float, Floats]:
            change, bias = self._unpack(flat, n_classes)
            logarithms = log_softmax(base + self._times(features, change) + bias, axis=1)
            residuals = np.exp(logarithms)
            residuals[rows, codes] -= 1
            residuals *= weights[:, None]
            slopes = (self._slope(residuals, features).ravel(), residuals.sum(axis=0))
            value = -(weights @ logarithms[rows, codes]) + (strengths * flat) @ flat / 2
            return float(value / total), (np.concatenate(slopes) + strengths * flat) / total

        start = np.zeros(self._identity(n_classes).size + n_classes)
        options = {"maxiter": MOST_ITERATIONS, "maxcor": 20, "ftol": 1e-14, "gtol": 1e-8}
        found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
        if found.nit >= MOST_ITERATIONS:
            warn_of_early_stop(f"{self.method} scaling", MOST_ITERATIONS)
        change, self.bias_ = self._unpack(np.asarray(found.x, dtype=np.float64), n_classes)
        self.weights_ = steepness * self._identity(n_classes) + change / size

    def _unpack(self, flat: Floats, n_classes: int) -> tuple[Floats, Floats]:
        return flat[:-n_classes].reshape(self._identity(n_classes).shape), flat[-n_classes:]

    @staticmethod
    @abstractmethod
    def _identity(n_classes: int) -> Floats:
        """Return the W that changes nothing."""

    def _size(self, logits: Floats, weights: Floats, steepness: float) -> float:
        """Return the unit of logits in which U is measured."""
        return float(np.sqrt(np.average((logits**2).mean(axis=1), weights=weights)))

    def _strengths(self, n_classes: int) -> Floats:
        """Return how strongly each entry of U, then of b, is penalised, in units of ``penalty``."""
        n_entries = self._identity(n_classes).size
        return np.full(n_entries + n_classes, n_entries / n_classes)  # the variance of a logit's change stays the same

    @staticmethod
    @abstractmethod
    def _times(rows: Floats, weights: Floats) -> Floats:
        """Return W·row for every row, (n, n_classes)."""

    @staticmethod
    @abstractmethod
    def _slope(residuals: Floats, features: Floats) -> Floats:
        """Return the derivative of the summed loss in W."""

    def _log_probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        logits = log_probabilities(rows, self.representation).numpy()
        return torch.log_softmax(torch.from_numpy(self._times(logits, self.weights_) + self.bias_), dim=1)

    def state(self) -> CalibratorState:
        """Return what the fitted calibrator is made of."""
        check_is_fitted(self)
        tensors = {"weights": torch.from_numpy(self.weights_), "bias": torch.from_numpy(self.bias_)}
        return self._state(self.get_params(), {}, **tensors)

    @classmethod
    def from_state(cls, state: CalibratorState, **extra: Any) -> Self:
        """Return the fitted calibrator that ``state`` describes."""
        refuse_extra(cls, extra)
        calibrator = cls(**state.parameters)._restore(state)
        check_penalty(calibrator.penalty)
        n_classes = len(calibrator.classes_)
        expected = {"weights": cls._identity(n_classes).shape, "bias": (n_classes,)}
        for name, shape in expected.items():
            tensor = state.tensors[name]
            if tensor.dtype != torch.float64 or tuple(tensor.shape) != shape or not tensor.isfinite().all():
                raise FileFormatError(f"the stored {name} are damaged.")
            setattr(calibrator, f"{name}_", tensor.numpy().copy())
        return calibrator


class VectorScaling(LinearScaling):
    """Multiply each logit by a number of its class and add another: softmax(w ∘ z + b).

    The minimiser of the summed log-loss plus a penalty, penalty/2·(Σ_k u_k² + Σ_k b_k²), where u_k = (w_k − 1/T)·‖z‖
    with T the temperature of temperature scaling and ‖z‖ the root mean square of the logits: how far logits are
    moved from where one temperature puts them. It is a normal prior with variance 1/penalty a logit. The loss is
    convex and has one minimiser, on separable data too.

    Parameters
    ----------
    penalty : float
        Strength of the pull to temperature scaling; 0 is the published loss.
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Accepted by every calibrator; nothing here is random.

    Attributes
    ----------
    weights_ : array, (n_classes,)
        w, for logits whose softmax sums to 1 without normalising.
    bias_ : array, (n_classes,)
        b.
    """

    method: ClassVar[str] = "vector"

    @staticmethod
    def _identity(n_classes: int) -> Floats:
        return np.ones(n_classes)

    @staticmethod
    def _times(rows: Floats, weights: Floats) -> Floats:
        return rows * weights

    @staticmethod
    def _slope(residuals: Floats, features: Floats) -> Floats:
        return np.asarray((residuals * features).sum(axis=0), dtype=np.float64)


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
        Strength of the pull to temperature scaling; 0 is the published loss.
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Accepted by every calibrator; nothing here is random.

    Attributes
    ----------
    weights_ : array, (n_classes, n_classes)
        W, for logits whose softmax sums to 1 without normalising.
    bias_ : array, (n_classes,)
        b.
    """

    method: ClassVar[str] = "matrix"

    @staticmethod
    def _identity(n_classes: int) -> Floats:
        return np.eye(n_classes)

    @staticmethod
    def _times(rows: Floats, weights: Floats) -> Floats:
        return np.asarray(rows @ weights.T, dtype=np.float64)

    @staticmethod
    def _slope(residuals: Floats, features: Floats) -> Floats:
        return np.asarray(residuals.T @ features, dtype=np.float64)
