"""A log-linear pool of predictions: one weight an expert, a small bias a class, found by a convex solver.

log p = offset + Σ_j w_j·f_j + b, normalised over classes;   w ~ N(centre, spread²), b ~ N(0, bias spread²)

Samples of one group (a patient, a site) are alike and together tell less than as many of different groups. How much
less shows in how far the groups disagree about the weights: by so much the log-likelihood is scaled down against the
prior (as in Pauli, Racugno and Ventura, 2011, for composite likelihoods).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

Floats = NDArray[np.float64]

MOST_ITERATIONS = 200
FEW_GROUPS = 3
"""Groups, beside the first, at which scatter is half believed; chosen on simulated groups and Sleep-EDF by patient."""


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
    barred: torch.Tensor | None = None  # (n_classes,), classes that none of these samples could have

    def solve(self, start: Pool | None = None, *, worth: float = 1.0) -> Pool:
        """Return the pool with the least penalised log-loss; ``start`` only saves time.

        ``worth`` is the share of what a sample tells that is not told by the others of its group.
        """
        n_experts, n, n_classes = self.experts.shape
        flat = (self.experts * self.near).reshape(n_experts, -1)
        offset, rows = self._closed((1.0 - self.near) * self.far), torch.arange(n)
        codes, counted = torch.from_numpy(self.codes), worth * float(self.weights.sum())
        shares = torch.from_numpy(self.weights / self.weights.sum())[:, None]
        near_shares = shares * self.near
        spreads = self._spreads()
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
            return value + float(pull @ pull) / (2 * counted), free * slope + pull / spreads / counted

        begin = middle if start is None else np.r_[start.weights, start.bias]
        options = {"maxiter": MOST_ITERATIONS, "ftol": 1e-10, "gtol": 1e-6}
        found = np.asarray(minimize(loss, begin, jac=True, method="L-BFGS-B", options=options).x, dtype=np.float64)
        pull = (found - middle) / spreads
        return Pool(found[:n_experts], found[n_experts:], loss(found)[0] - float(pull @ pull) / (2 * counted))

    def answers(self, pool: Pool) -> torch.Tensor:
        """Return log probabilities, (n, n_classes)."""
        heights = self.near * pool.heights(self.experts) + (1.0 - self.near) * self.far
        return torch.log_softmax(self._closed(heights), dim=1)

    def worth_of_a_sample(self, pool: Pool, groups: NDArray[np.int64]) -> float:
        """Return what a sample tells beside its group's others: tr(H⁻¹·I) / tr(H⁻¹·V), at most 1.

        I is the curvature of the log-loss, H that of the penalised one, and V the scatter of the groups' slopes: with
        independent samples I and V agree. Two groups at least are needed. The fewer they are, the more often they
        agree by chance, and then weights would follow what these groups share and no other has; so G of them count for
        (G − 1)/(G − 1 + FEW_GROUPS) of it.
        """
        near, weights = self.near, torch.from_numpy(self.weights)[:, None]
        probabilities = torch.exp(self.answers(pool))
        residuals = probabilities.clone()
        residuals[torch.arange(len(self.codes)), torch.from_numpy(self.codes)] -= 1.0
        said = self.experts * near
        said = said - (said * probabilities).sum(dim=2, keepdim=True)
        slopes = torch.cat([(said * residuals).sum(dim=2).T, near * residuals], dim=1) * weights
        _, codes = np.unique(groups, return_inverse=True)
        by_group = torch.zeros(int(codes.max()) + 1, slopes.shape[1], dtype=slopes.dtype)
        by_group.index_add_(0, torch.from_numpy(codes), slopes)
        n_groups = len(by_group)
        scatter = by_group.T @ by_group * n_groups / (n_groups - 1)
        information = self._information(said, probabilities, near, weights)
        free = slice(0, None if self.bias_spread > 0 else len(self.experts))
        prior = torch.diag(torch.from_numpy(self._spreads()[free] ** -2.0))
        inverse = torch.linalg.inv(information[free, free] + prior)
        told, scattered = (float((inverse * each[free, free]).sum()) for each in (information, scatter))
        sure = (n_groups - 1) / (n_groups - 1 + FEW_GROUPS)
        return sure * min(told / scattered, 1.0) if scattered > 0 else sure

    def _information(
        self, said: torch.Tensor, probabilities: torch.Tensor, near: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the curvature of the log-loss in weights and biases; ``said`` has mean 0 under ``probabilities``."""
        weighed = probabilities * weights
        flat = said.reshape(len(said), -1)
        of_weights = (flat * weighed.reshape(-1)) @ flat.T
        across = (said * (weighed * near)).sum(dim=1)  # (n_experts, n_classes)
        pulled = probabilities * near
        of_bias = torch.diag((weighed * near**2).sum(dim=0)) - pulled.T @ (pulled * weights)
        return torch.cat([torch.cat([of_weights, across], dim=1), torch.cat([across.T, of_bias], dim=1)])

    def _closed(self, heights: torch.Tensor) -> torch.Tensor:
        return heights if self.barred is None else heights.masked_fill(self.barred, -torch.inf)

    def _spreads(self) -> Floats:
        n_experts, _, n_classes = self.experts.shape
        return np.repeat([self.spread, self.bias_spread or np.inf], [n_experts, n_classes])
