"""Ensemble temperature scaling: a mixture of scaled, unscaled and uniform probabilities.

output = w₁·softmax(z / T) + w₂·softmax(z) + w₃/K,   w ≥ 0, Σ w = 1
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.base import Calibrator, CalibratorState, refuse_extra
from kcal.calibrators.logits import encode_columns, log_probabilities
from kcal.calibrators.scaling.temperature import HIGHEST, LOWEST, solve_temperature
from kcal.errors import ConvergenceWarning, FileFormatError
from kcal.validation import ALMOST_ZERO, check_weights

LARGEST_GAP = 1e-9
"""The weights' log-loss is at most this far above the least one."""


class EnsembleTemperatureScaling(Calibrator):
    """Mix temperature-scaled probabilities with the network's own and with uniform ones.

    T is that of temperature scaling; the weights then minimise the log-loss of the mixture, which is convex in them.
    Every part ranks the classes alike, so that the order of the classes, and the accuracy, never changes.

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
    weights_ : array, (3,)
        Shares of the scaled, the network's own and the uniform probabilities.
    """

    inputs: ClassVar[str] = "logits"
    method: ClassVar[str] = "ets"
    preserves_order: ClassVar[bool] = True
    temperature_: float
    weights_: NDArray[np.float64]

    def __init__(self, *, representation: str = "logits", seed: int = 0) -> None:
        self.representation = representation
        self.seed = seed

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, classes: Any = None) -> Self:
        """Find T and the weights for logits ``X`` (n, n_classes) and labels ``y``; integer labels are columns."""
        rows, _ = self._check_rows(X, fitting=True)
        self._remember(rows)
        logarithms = log_probabilities(rows, self.representation)
        codes, self.classes_ = encode_columns(y, len(logarithms), logarithms.shape[1], classes)
        weights = np.ones(len(codes)) if sample_weight is None else check_weights(sample_weight, len(codes))
        self.temperature_ = solve_temperature(logarithms.numpy(), codes, weights)
        own = self._parts(logarithms)[:, torch.arange(len(codes)), torch.from_numpy(codes)]  # (3, n)
        self.weights_ = solve_mixture(np.exp(own.numpy().T), weights)
        return self

    def _parts(self, logarithms: torch.Tensor) -> torch.Tensor:
        """Return the logarithms of the three parts, (3, n, n_classes)."""
        scaled = torch.log_softmax(logarithms / self.temperature_, dim=1)
        uniform = torch.full_like(logarithms, -np.log(logarithms.shape[1]))
        return torch.stack([scaled, logarithms, uniform])

    def _log_probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        parts = self._parts(log_probabilities(rows, self.representation))
        mixed = torch.logsumexp(parts + torch.from_numpy(self.weights_).log()[:, None, None], dim=0)
        return torch.log_softmax(mixed, dim=1)

    def state(self) -> CalibratorState:
        """Return what the fitted calibrator is made of."""
        check_is_fitted(self)
        values = {"temperature": self.temperature_, "weights": self.weights_.tolist()}
        return self._state(self.get_params(), values)

    @classmethod
    def from_state(cls, state: CalibratorState, **extra: Any) -> Self:
        """Return the fitted calibrator that ``state`` describes."""
        refuse_extra(cls, extra)
        calibrator = cls(**state.parameters)._restore(state)
        calibrator.temperature_ = float(state.values["temperature"])
        calibrator.weights_ = np.array(state.values["weights"], dtype=np.float64)
        if not LOWEST <= calibrator.temperature_ <= HIGHEST:
            raise FileFormatError(f"the stored temperature is out of bounds: {calibrator.temperature_!r}.")
        shares = calibrator.weights_
        if shares.shape != (3,) or not (shares >= 0).all() or not abs(shares.sum() - 1) < 1e-6:
            raise FileFormatError(f"the stored weights are not three shares: {shares.tolist()!r}.")
        return calibrator


def solve_mixture(densities: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shares of the parts, (m,), that minimise the weighted mean of −log(densities @ shares).

    With r_j the mean of densities_j / (densities @ shares), the loss is at most log(max_j r_j) above the least one:
    Newton-like steps come close, and multiplying the shares by r, which never raises the loss, finishes.
    """
    densities, importance = np.maximum(densities, ALMOST_ZERO), weights / weights.sum()

    def loss(shares: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        mixed = np.maximum(densities @ shares, ALMOST_ZERO)
        return -float(importance @ np.log(mixed)), -(importance / mixed) @ densities

    n_parts = densities.shape[1]
    found = minimize(
        loss,
        np.full(n_parts, 1 / n_parts),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * n_parts,
        constraints={"type": "eq", "fun": lambda shares: shares.sum() - 1, "jac": np.ones_like},
        options={"maxiter": 500, "ftol": 1e-15},
    )
    shares: NDArray[np.float64] = np.maximum(found.x, ALMOST_ZERO)
    shares /= shares.sum()
    for _ in range(10_000):
        ratios = (importance / (densities @ shares)) @ densities
        if np.log(ratios.max()) <= LARGEST_GAP:
            return shares
        shares = shares * ratios
    warnings.warn("The weights of the mixture did not converge.", ConvergenceWarning, stacklevel=3)
    return shares
