"""A log-linear pool of predictions: one weight an expert, a small bias a class, found by a convex solver.

log p = offset + Σ_j w_j·f_j + b, normalised over classes;   w ~ N(centre, spread²), b ~ N(0, bias spread²)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

Floats = NDArray[np.float64]

MOST_ITERATIONS = 200


@dataclass(frozen=True)
class Pool:
    """Weights of the experts and biases of the classes."""

    weights: Floats  # (n_experts,)
    bias: Floats  # (n_classes,)
    loss: float  # mean log-loss on what it was fitted on

    def heights(self, experts: torch.Tensor) -> torch.Tensor:
        """Return Σ_j w_j·f_j + b, (n, n_classes), of experts (n_experts, n, n_classes)."""
        weighed: torch.Tensor = torch.tensordot(torch.from_numpy(self.weights).to(experts), experts, dims=1)
        return weighed + torch.from_numpy(self.bias).to(experts)


@dataclass(frozen=True)
class PoolProblem:
    """What a pool is fitted on: what the experts say of samples, and the samples' classes."""

    experts: torch.Tensor  # (n_experts, n, n_classes), double
    codes: NDArray[np.int64]  # (n,)
    weights: Floats  # (n,), how many samples each counts for
    near: torch.Tensor  # (n, 1), the share of the pool in the answer
    far: torch.Tensor  # (n, n_classes), what stands in for it
    centre: Floats  # (n_experts,)
    spread: float
    bias_spread: float  # 0 for no bias

    def solve(self, start: Pool | None = None) -> Pool:
        """Return the pool with the least penalised log-loss; ``start`` only saves time."""
        n_experts, n, n_classes = self.experts.shape
        flat = (self.experts * self.near).reshape(n_experts, -1)
        offset, rows = (1.0 - self.near) * self.far, torch.arange(n)
        codes, total = torch.from_numpy(self.codes), float(self.weights.sum())
        shares = torch.from_numpy(self.weights / total)[:, None]
        near_shares = shares * self.near
        spreads = np.r_[np.full(n_experts, self.spread), np.full(n_classes, self.bias_spread or np.inf)]
        free = np.r_[np.ones(n_experts), np.full(n_classes, float(self.bias_spread > 0))]
        middle = np.r_[self.centre, np.zeros(n_classes)]

        def loss(point: Floats) -> tuple[float, Floats]:
            weights, bias = torch.from_numpy(point[:n_experts]), torch.from_numpy(point[n_experts:])
            heights = (weights @ flat).view(n, n_classes) + self.near * bias + offset
            logarithms = torch.log_softmax(heights, dim=1)
            value = -float((shares[:, 0] * logarithms[rows, codes]).sum())
            residuals = logarithms.exp_()
            residuals[rows, codes] -= 1.0
            slope = np.r_[
                (flat @ (residuals * shares).reshape(-1)).numpy(), (residuals * near_shares).sum(dim=0).numpy()
            ]
            pull = (point - middle) / spreads
            return value + float(pull @ pull) / (2 * total), free * slope + pull / spreads / total

        begin = middle if start is None else np.r_[start.weights, start.bias]
        options = {"maxiter": MOST_ITERATIONS, "ftol": 1e-10, "gtol": 1e-6}
        found = np.asarray(minimize(loss, begin, jac=True, method="L-BFGS-B", options=options).x, dtype=np.float64)
        pull = (found - middle) / spreads
        return Pool(found[:n_experts], found[n_experts:], loss(found)[0] - float(pull @ pull) / (2 * total))
