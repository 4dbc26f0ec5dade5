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

from kcal.calibrators.model_state import StoredModel, tensor
from kcal.calibrators.quasi_newton import minimise

FEW_GROUPS = 3
"""Number of groups, beside the first, at which their scatter counts by half; from simulations and Sleep-EDF."""


@dataclass(frozen=True, eq=False)
class PoolInputs:
    """Scores of n samples that a pool combines."""

    experts: torch.Tensor  # (n_experts, n, n_classes), log probabilities up to a constant per sample
    gate: torch.Tensor  # (n, 1), share of the pool in the prediction
    fallback: torch.Tensor  # (n, n_classes) or (1, n_classes), the rest of the prediction
    excluded: torch.Tensor | None = None  # (n_classes,) or (n, n_classes), classes of probability 0

    def log_probs(self, weights: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Return the documented formula, (n, n_classes)."""
        scores = torch.tensordot(weights.to(self.experts), self.experts, 1) + bias.to(self.experts)
        mixed = torch.lerp(self.fallback.expand_as(scores), scores, self.gate)
        if self.excluded is not None:
            mixed = mixed.masked_fill(self.excluded, -torch.inf)
        return torch.log_softmax(mixed, dim=1)


@dataclass(frozen=True, eq=False, kw_only=True)
class Pool(StoredModel):
    """Weights of the experts and biases of the classes."""

    weights: torch.Tensor = tensor("experts")
    bias: torch.Tensor = tensor("classes")
    loss: float  # mean log-loss of the fit


@dataclass(frozen=True, eq=False)
class PoolProblem:
    """The data that a pool is fitted to: out-of-fold scores of the experts, and the classes of the samples."""

    inputs: PoolInputs  # in float64
    codes: NDArray[np.int64]  # (n,)
    weights: torch.Tensor  # (n,)
    centre: torch.Tensor  # (n_experts,), prior mean of the weights
    spread: float
    bias_spread: float  # 0 for no bias

    def loss(self, weights: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Return the mean log-loss of a pool."""
        own = self.inputs.log_probs(weights, bias)[torch.arange(len(self.codes)), self.codes]
        return -(own @ self.weights) / self.weights.sum()

    def solve(self, start: Pool | None = None, *, efficiency: float = 1.0) -> Pool:
        """Return the pool with the lowest penalised log-loss; ``start`` only saves time.

        ``efficiency`` is a factor of the log-likelihood, below 1 where samples of a group are not independent.
        """
        n_effective = efficiency * float(self.weights.sum())
        weights = (self.centre if start is None else start.weights).clone().requires_grad_()
        bias = torch.zeros_like(self.inputs.experts[0, 0]) if start is None else start.bias.clone()
        parameters = [weights, bias.requires_grad_()] if self.bias_spread > 0 else [weights]

        def evaluate() -> float:
            pulls = torch.cat([(weights - self.centre) / self.spread, bias / (self.bias_spread or torch.inf)])
            value = self.loss(weights, bias) + pulls.square().sum() / (2 * n_effective)
            torch.autograd.backward(value)
            return float(value.detach())

        minimise(evaluate, parameters, iterations=200, gradient_tolerance=1e-6)
        weights, bias = weights.detach(), bias.detach()
        return Pool(weights=weights, bias=bias, loss=float(self.loss(weights, bias)))

    def group_efficiency(self, pool: Pool, groups: NDArray[np.int64]) -> float:
        """Return the information of a sample relative to an independent one: tr(H⁻¹·I) / tr(H⁻¹·V), at most 1.

        I is the curvature of the log-loss, H that of the penalised one, and V the scatter of the gradients of the
        groups: with independent samples I and V agree. At least two groups are needed. Few groups often agree by
        chance, so that G of them count for (G − 1)/(G − 1 + FEW_GROUPS) of the result.
        """
        gate, weights = self.inputs.gate, self.weights[:, None]
        probs = self.inputs.log_probs(pool.weights, pool.bias).exp()
        residuals = probs.clone()
        residuals[torch.arange(len(self.codes)), self.codes] -= 1.0
        features = self.inputs.experts * gate
        features = features - (features * probs).sum(dim=2, keepdim=True)
        gradients = torch.cat([(features * residuals).sum(dim=2).T, gate * residuals], dim=1) * weights
        _, codes = np.unique(groups, return_inverse=True)
        n_groups = int(codes.max()) + 1
        by_group = gradients.new_zeros(n_groups, gradients.shape[1]).index_add_(0, torch.from_numpy(codes), gradients)
        scatter = by_group.T @ by_group * n_groups / (n_groups - 1)
        information = curvature(features, probs, weights, gate)
        spreads = torch.full_like(gradients[0], self.bias_spread)
        spreads[: len(features)] = self.spread
        free = spreads > 0
        information, scatter = information[free][:, free], scatter[free][:, free]
        inverse = torch.linalg.inv(information + torch.diag(spreads[free] ** -2))
        expected, observed = float((inverse * information).sum()), float((inverse * scatter).sum())
        trust = (n_groups - 1) / (n_groups - 1 + FEW_GROUPS)
        return trust * min(expected / observed, 1.0) if observed > 0 else trust


def curvature(features: torch.Tensor, probs: torch.Tensor, weights: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Return the curvature of the log-loss in weights and biases; ``features`` have mean 0 under ``probs``."""
    weighted, gated = probs * weights, probs * gate
    flat = features.reshape(len(features), -1)
    of_weights = (flat * weighted.reshape(-1)) @ flat.T
    across = (features * (weighted * gate)).sum(dim=1)  # (n_experts, n_classes)
    of_bias = torch.diag((weighted * gate**2).sum(dim=0)) - gated.T @ (gated * weights)
    return torch.cat([torch.cat([of_weights, across], dim=1), torch.cat([across.T, of_bias], dim=1)])
