"""A log-linear pool: one weight per expert and a small bias per class, found by a convex solver.

log p = g·(Σ_j w_j·f_j + b) + (1 − g)·fallback, normalised;   w ~ N(centre, spread²), b ~ N(0, bias spread²)

Samples of one group (a patient, a site) are not independent: the log-likelihood is scaled down against the prior by a
factor that follows from how far the groups disagree (Pauli, Racugno and Ventura, 2011, for composite likelihoods).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

Floats = NDArray[np.float64]

MAX_ITERATIONS = 200
FEW_GROUPS = 3
"""Number of groups, beside the first, at which their scatter counts by half; from simulations and Sleep-EDF."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Weights of the experts and biases of the classes."""

    weights: Floats  # (n_experts,)
    bias: Floats  # (n_classes,)
    loss: float  # mean log-loss of the fit


def pooled_log_probs(
    scores: torch.Tensor, fallback: torch.Tensor, gate: torch.Tensor, excluded: torch.Tensor | None = None
) -> torch.Tensor:
    """Return log_softmax(g·scores + (1 − g)·fallback), (n, n_classes), −inf for excluded classes."""
    mixed = torch.lerp(fallback.expand_as(scores), scores, gate)
    return torch.log_softmax(mixed if excluded is None else mixed.masked_fill_(excluded, -torch.inf), dim=1)


@dataclass(frozen=True, eq=False)
class PoolProblem:
    """The data that a pool is fitted to: out-of-fold scores of the experts, and the classes of the samples."""

    experts: torch.Tensor  # (n_experts, n, n_classes), float64
    codes: NDArray[np.int64]  # (n,)
    weights: Floats  # (n,)
    gate: torch.Tensor  # (n, 1), share of the pool in the prediction
    fallback: torch.Tensor  # (n, n_classes), the rest of the prediction
    centre: Floats  # (n_experts,), prior mean of the weights
    spread: float
    bias_spread: float  # 0 for no bias
    excluded: torch.Tensor | None = None  # (n_classes,), classes that none of the samples has

    def solve(self, start: Pool | None = None, *, efficiency: float = 1.0) -> Pool:
        """Return the pool with the lowest penalised log-loss; ``start`` only saves time.

        ``efficiency`` is a factor of the log-likelihood, below 1 where samples of a group are not independent.
        """
        n_experts, n, n_classes = self.experts.shape
        flat = (self.experts * self.gate).reshape(n_experts, -1)
        offset, rows = (1.0 - self.gate) * self.fallback, torch.arange(n)
        if self.excluded is not None:
            offset = offset.masked_fill(self.excluded, -torch.inf)
        codes, n_effective = torch.from_numpy(self.codes), efficiency * float(self.weights.sum())
        shares = torch.from_numpy(self.weights / self.weights.sum())[:, None]
        gate_shares = shares * self.gate
        spreads, middle = self._spreads(), np.r_[self.centre, np.zeros(n_classes)]
        free = np.r_[np.ones(n_experts), np.full(n_classes, float(self.bias_spread > 0))]

        def loss(point: Floats) -> tuple[float, Floats]:
            weights, bias = torch.from_numpy(point[:n_experts]), torch.from_numpy(point[n_experts:])
            log_probs = torch.log_softmax((weights @ flat).view(n, n_classes) + self.gate * bias + offset, dim=1)
            value = -float((shares[:, 0] * log_probs[rows, codes]).sum())
            residuals = log_probs.exp_()
            residuals[rows, codes] -= 1.0
            of_weights, of_bias = flat @ (residuals * shares).reshape(-1), (residuals * gate_shares).sum(dim=0)
            scaled = (point - middle) / spreads
            gradient = free * np.r_[of_weights.numpy(), of_bias.numpy()] + scaled / spreads / n_effective
            return value + float(scaled @ scaled) / (2 * n_effective), gradient

        begin = middle if start is None else np.r_[start.weights, start.bias]
        options = {"maxiter": MAX_ITERATIONS, "ftol": 1e-10, "gtol": 1e-6}
        result = minimize(loss, begin, jac=True, method="L-BFGS-B", options=options)
        point, penalty = result.x, float((((result.x - middle) / spreads) ** 2).sum()) / (2 * n_effective)
        return Pool(point[:n_experts], point[n_experts:], float(result.fun) - penalty)

    def log_probs(self, pool: Pool) -> torch.Tensor:
        """Return the log probabilities of a pool, (n, n_classes)."""
        scores = torch.tensordot(torch.from_numpy(pool.weights), self.experts, dims=1) + torch.from_numpy(pool.bias)
        return pooled_log_probs(scores, self.fallback, self.gate, self.excluded)

    def group_efficiency(self, pool: Pool, groups: NDArray[np.int64]) -> float:
        """Return the information of a sample relative to an independent one: tr(H⁻¹·I) / tr(H⁻¹·V), at most 1.

        I is the curvature of the log-loss, H that of the penalised one, and V the scatter of the gradients of the
        groups: with independent samples I and V agree. At least two groups are needed. Few groups often agree by
        chance, so that G of them count for (G − 1)/(G − 1 + FEW_GROUPS) of the result.
        """
        weights = torch.from_numpy(self.weights)[:, None]
        probs = torch.exp(self.log_probs(pool))
        residuals = probs.clone()
        residuals[torch.arange(len(self.codes)), torch.from_numpy(self.codes)] -= 1.0
        features = self.experts * self.gate
        features = features - (features * probs).sum(dim=2, keepdim=True)
        gradients = torch.cat([(features * residuals).sum(dim=2).T, self.gate * residuals], dim=1) * weights
        _, codes = np.unique(groups, return_inverse=True)
        by_group = torch.zeros(int(codes.max()) + 1, gradients.shape[1], dtype=gradients.dtype)
        by_group.index_add_(0, torch.from_numpy(codes), gradients)
        n_groups = len(by_group)
        scatter = by_group.T @ by_group * n_groups / (n_groups - 1)
        information = self._information(features, probs, weights)
        free = slice(0, None if self.bias_spread > 0 else len(self.experts))
        prior = torch.diag(torch.from_numpy(self._spreads()[free] ** -2.0))
        inverse = torch.linalg.inv(information[free, free] + prior)
        expected, observed = (float((inverse * matrix[free, free]).sum()) for matrix in (information, scatter))
        trust = (n_groups - 1) / (n_groups - 1 + FEW_GROUPS)
        return trust * min(expected / observed, 1.0) if observed > 0 else trust

    def _information(self, features: torch.Tensor, probs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the curvature of the log-loss in weights and biases; ``features`` have mean 0 under ``probs``."""
        weighted = probs * weights
        flat = features.reshape(len(features), -1)
        of_weights = (flat * weighted.reshape(-1)) @ flat.T
        across = (features * (weighted * self.gate)).sum(dim=1)  # (n_experts, n_classes)
        gated = probs * self.gate
        of_bias = torch.diag((weighted * self.gate**2).sum(dim=0)) - gated.T @ (gated * weights)
        return torch.cat([torch.cat([of_weights, across], dim=1), torch.cat([across.T, of_bias], dim=1)])

    def _spreads(self) -> Floats:
        n_experts, _, n_classes = self.experts.shape
        return np.repeat([self.spread, self.bias_spread or np.inf], [n_experts, n_classes])
