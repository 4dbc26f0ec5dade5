"""Combine experts: a log-linear pool, and a linear mixture of the pool with the experts themselves.

pool ∝ f^(w_f)·r^(w_r)·d^(w_d),     w near (1, 0, 0): (w_f + w_r + w_d, w_r, w_d) ~ N((1, 0, 0), 0.25²)
p = λ_1·pool + λ_2·f + λ_3·r + λ_4·d,     λ ~ Dirichlet with pseudo-counts of 2, 2, ½ and ½ samples

The pool sharpens where experts agree; only the mixture can overrule an expert that is wrong and certain.
"""

from __future__ import annotations

import numpy as np
import torch

from kcal.calibrators.solvers import minimise
from kcal.samples import Floats

SPREAD = 0.25
"""Prior standard deviation of the exponents."""
PSEUDO_COUNTS = (2.0, 2.0, 0.5, 0.5)
"""Prior samples of the pool, the network, the refit and the kernel estimate in the mixture."""
MAX_ROUNDS, TOLERANCE = 500, 1e-9
"""Of the EM algorithm: rounds at most, and the change of the shares at which it ends."""


def pool_log_probs(exponents: torch.Tensor, log_experts: torch.Tensor) -> torch.Tensor:
    """Return log pool, (n, n_classes), of exponents, (n_experts,), and log experts, (n_experts, n, n_classes)."""
    return torch.log_softmax(torch.tensordot(exponents.to(log_experts), log_experts, 1), dim=1)


def fit_pool(log_experts: torch.Tensor, codes: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the exponents of the highest posterior density, (n_experts,); the first expert is the network."""
    base = log_experts[0]
    features = torch.cat([base[None], log_experts[1:] - base])  # (n_experts, n, n_classes)
    rows, centre = torch.arange(len(codes)), np.eye(len(features))[0]
    own = features[:, rows, codes] @ weights

    def loss(point: Floats) -> tuple[float, Floats]:
        scores = torch.tensordot(torch.from_numpy(point), features, 1)
        norm = torch.logsumexp(scores, dim=1)
        expected = features.flatten(1) @ (weights[:, None] * torch.exp(scores - norm[:, None])).flatten()
        deviation = (point - centre) / SPREAD
        value = float(weights @ norm) - float(own @ torch.from_numpy(point)) + float(deviation @ deviation) / 2
        return value, (expected - own).numpy() + deviation / SPREAD

    point = minimise(loss, centre, name="the pool", advice=None, ftol=1e-12, gtol=1e-8)
    return torch.from_numpy(np.concatenate([[point[0] - point[1:].sum()], point[1:]]))


def fit_mixture(own_probs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the shares of the highest posterior density, (n_parts,), by EM; ``own_probs`` is (n_parts, n)."""
    prior = torch.tensor(PSEUDO_COUNTS, dtype=torch.float64)
    shares = prior / prior.sum()
    for _ in range(MAX_ROUNDS):
        parts = shares[:, None] * own_probs
        updated = (parts / parts.sum(dim=0).clamp_min(torch.finfo(parts.dtype).tiny)) @ weights + prior
        updated /= updated.sum()
        change, shares = float((updated - shares).abs().max()), updated
        if change < TOLERANCE:
            break
    return shares
