"""A log-linear pool: one weight per expert and a small bias per class, found by a convex solver.

log p = g·(Σ_j w_j·f_j + b) + (1 − g)·fallback, normalised;   w ~ N(centre, spread²), b ~ N(0, bias spread²)

Samples of one group (a patient, a site) are not independent: the log-likelihood is scaled down against the prior by a
factor that follows from how far the groups disagree (Pauli, Racugno and Ventura, 2011, for composite likelihoods).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.model_state import StoredModel, tensor
from kcal.calibrators.quasi_newton import minimise

MAX_ITERATIONS = 200
FEW_GROUPS = 3
"""Number of groups, beside the first, at which their scatter counts by half; from simulations and Sleep-EDF."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Pool(StoredModel):
    """Weights of the experts and biases of the classes."""

    weights: torch.Tensor = tensor("experts")
    bias: torch.Tensor = tensor("classes")
    loss: float  # mean log-loss of the fit


@dataclass(frozen=True, eq=False)
class PoolProblem:
    """The data that a pool is fitted to: out-of-fold scores of the experts, and the classes of the samples."""

    experts: torch.Tensor  # (n_experts, n, n_classes), float64
    codes: NDArray[np.int64]  # (n,)
    weights: torch.Tensor  # (n,)
    gate: torch.Tensor  # (n, 1), share of the pool in the prediction
    fallback: torch.Tensor  # (n, n_classes), the rest of the prediction
    centre: torch.Tensor  # (n_experts,), prior mean of the weights
    spread: float
    bias_spread: float  # 0 for no bias
    excluded: torch.Tensor | None = None  # (n_classes,), classes that none of the samples has

    @cached_property
    def features(self) -> torch.Tensor:
        """Derivatives of the scores by the weights, (n_experts, n, n_classes)."""
        return self.experts * self.gate

    @cached_property
    def offset(self) -> torch.Tensor:
        """Scores that do not depend on the pool, (n, n_classes)."""
        offset = (1.0 - self.gate) * self.fallback
        return offset if self.excluded is None else offset.masked_fill(self.excluded, -torch.inf)

    def log_probs(self, weights: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Return the log probabilities of a pool, (n, n_classes)."""
        return torch.log_softmax(torch.tensordot(weights, self.features, 1) + self.gate * bias + self.offset, dim=1)

    def loss(self, weights: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Return the mean log-loss of a pool."""
        own = self.log_probs(weights, bias)[torch.arange(len(self.codes)), self.codes]
        return -(own @ self.weights) / self.weights.sum()

    def penalty(self, weights: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Return the negative logarithm of the prior, up to a constant."""
        of_bias = (bias / self.bias_spread).square().sum() if self.bias_spread > 0 else 0.0
        return 0.5 * (((weights - self.centre) / self.spread).square().sum() + of_bias)

    def solve(self, start: Pool | None = None, *, efficiency: float = 1.0) -> Pool:
        """Return the pool with the lowest penalised log-loss; ``start`` only saves time.

        ``efficiency`` is a factor of the log-likelihood, below 1 where samples of a group are not independent.
        """
        n_effective = efficiency * float(self.weights.sum())
        weights = (self.centre if start is None else start.weights).clone().requires_grad_()
        bias = torch.zeros_like(self.fallback[0]) if start is None else start.bias.clone()
        parameters = [weights, bias.requires_grad_()] if self.bias_spread > 0 else [weights]

        def evaluate() -> float:
            value = self.loss(weights, bias) + self.penalty(weights, bias) / n_effective
            torch.autograd.backward(value)
            return float(value.detach())

        minimise(evaluate, parameters, iterations=MAX_ITERATIONS, gradient_tolerance=1e-6)
        weights, bias = weights.detach(), bias.detach()
        return Pool(weights=weights, bias=bias, loss=float(self.loss(weights, bias)))

    def group_efficiency(self, pool: Pool, groups: NDArray[np.int64]) -> float:
        """Return the information of a sample relative to an independent one: tr(H⁻¹·I) / tr(H⁻¹·V), at most 1.

        I is the curvature of the log-loss, H that of the penalised one, and V the scatter of the gradients of the
        groups: with independent samples I and V agree. At least two groups are needed. Few groups often agree by
        chance, so that G of them count for (G − 1)/(G − 1 + FEW_GROUPS) of the result.
        """
        probs, weights = self.log_probs(pool.weights, pool.bias).exp(), self.weights[:, None]
        residuals = probs.clone()
        residuals[torch.arange(len(self.codes)), self.codes] -= 1.0
        features = self.features - (self.features * probs).sum(dim=2, keepdim=True)
        gradients = torch.cat([(features * residuals).sum(dim=2).T, self.gate * residuals], dim=1) * weights
        _, codes = np.unique(groups, return_inverse=True)
        n_groups = int(codes.max()) + 1
        by_group = gradients.new_zeros(n_groups, gradients.shape[1]).index_add_(0, torch.from_numpy(codes), gradients)
        scatter = by_group.T @ by_group * n_groups / (n_groups - 1)
        information = self._information(features, probs, weights)
        spreads = torch.full_like(gradients[0], self.bias_spread)
        spreads[: len(features)] = self.spread
        free = spreads > 0
        information, scatter = information[free][:, free], scatter[free][:, free]
        inverse = torch.linalg.inv(information + torch.diag(spreads[free] ** -2))
        expected, observed = float((inverse * information).sum()), float((inverse * scatter).sum())
        trust = (n_groups - 1) / (n_groups - 1 + FEW_GROUPS)
        return trust * min(expected / observed, 1.0) if observed > 0 else trust

    def _information(self, features: torch.Tensor, probs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the curvature of the log-loss in weights and biases; ``features`` have mean 0 under ``probs``."""
        weighted, gated = probs * weights, probs * self.gate
        flat = features.reshape(len(features), -1)
        of_weights = (flat * weighted.reshape(-1)) @ flat.T
        across = (features * (weighted * self.gate)).sum(dim=1)  # (n_experts, n_classes)
        of_bias = torch.diag((weighted * self.gate**2).sum(dim=0)) - gated.T @ (gated * weights)
        return torch.cat([torch.cat([of_weights, across], dim=1), torch.cat([across.T, of_bias], dim=1)])
