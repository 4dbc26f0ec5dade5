"""The prediction of Gaussian-process calibration: marginals of the latent function, and the mean of softmax.

m(x) = μ(x) + uᵀ a,   v(x) = k(x, x) + ε − uᵀ (I − diag s²) u,   u = L⁻¹ k(Z, x),   L Lᵀ = k(Z, Z) + ε I
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kcal.calibrators.class_scores import average_ties, sort_classes, unsort_classes
from kcal.calibrators.model_state import LogitModel, tensor
from kcal.validation import ALMOST_ZERO

WHITE_NOISE = 0.01
"""ε: on the diagonal of k(Z, Z), and part of every marginal variance."""
LARGEST_DEVIATION = 300.0
"""Latent values are clipped to this distance from their mean, so that no exponential overflows."""
LOWEST_LOG_PROB = -1e5
"""Scores of masked classes are clipped here, so that distances to other scores stay exact to 1e-6."""


@dataclass(frozen=True)
class LatentPosterior(LogitModel):
    """The posterior of the latent function, and the draws of the prediction."""

    representation: str  # of the scores: log probabilities or probabilities
    variance: float
    lengthscale: float
    inducing: torch.Tensor = tensor("points")  # Z
    mean: torch.Tensor = tensor("points")  # a
    deviation: torch.Tensor = tensor("points")  # s
    whitening: torch.Tensor = tensor("points", "points")  # L⁻¹
    normals: torch.Tensor = tensor("draws", "classes")  # standard normal numbers

    @property
    def numbers_per_score(self) -> int:
        """Size of the largest tensor, per score: latent values, or covariances."""
        return max(len(self.normals), len(self.inducing))

    def log_probs(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return calibrated log probabilities, (n, n_classes)."""
        scores, order = sorted_scores(log_probs, self.representation)
        means, variances = self.marginals(scores)
        return unsort_classes(expected_softmax(means, variances, self.normals, scores), order)

    def marginals(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and variance of the latent function at the scores, both (n, n_classes)."""
        covariances = covariance(scores[..., None], self.inducing, self.variance, self.lengthscale)
        whitened = covariances @ self.whitening.T  # (n, n_classes, points)
        means = prior_mean(scores, self.representation) + whitened @ self.mean
        explained = whitened.square() @ (1.0 - self.deviation.square())
        return means, self.variance + WHITE_NOISE - explained


def covariance(ones: torch.Tensor, others: torch.Tensor, variance: float, lengthscale: float) -> torch.Tensor:
    """Return k between scores, broadcast."""
    return variance * torch.exp(-0.5 * ((ones - others) / lengthscale).square())


def whitening_matrix(inducing: torch.Tensor, variance: float, lengthscale: float) -> torch.Tensor:
    """Return L⁻¹, (points, points)."""
    covariances = covariance(inducing[:, None], inducing, variance, lengthscale)
    identity = torch.eye(len(inducing), dtype=inducing.dtype)
    factor = torch.linalg.cholesky(covariances + WHITE_NOISE * identity)
    inverse: torch.Tensor = torch.linalg.solve_triangular(factor, identity, upper=False)
    return inverse


def prior_mean(scores: torch.Tensor, representation: str) -> torch.Tensor:
    """Return μ: the network's own log probability."""
    return scores if representation == "logits" else scores.clamp_min(ALMOST_ZERO).log()


def sorted_scores(log_probs: torch.Tensor, representation: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores of the classes in descending order, and that order, both (n, n_classes)."""
    descending, order = sort_classes(log_probs.clamp_min(LOWEST_LOG_PROB))
    return (descending if representation == "logits" else torch.exp(descending)), order


def expected_softmax(
    means: torch.Tensor, variances: torch.Tensor, normals: torch.Tensor, scores: torch.Tensor
) -> torch.Tensor:
    """Return the logarithm of the mean softmax over the draws ``normals`` (draws, n_classes), (n, n_classes).

    Σ_s softmax(m + e_s)_k = exp(m_k) Σ_s exp(e_sk) / Σ_j exp(m_j + e_sj): one exponential per draw, exact in the tails.
    Classes of equal ``scores``, which descend, get the mean of their probabilities.
    """
    relative = means - means.amax(dim=1, keepdim=True)
    odds, deviations = torch.exp(relative), variances.sqrt()
    draws = (deviations[:, None] * normals).clamp(-LARGEST_DEVIATION, LARGEST_DEVIATION)
    ratios = draws.exp()  # (n, draws, n_classes)
    totals = torch.bmm(ratios, odds[:, :, None])  # (n, draws, 1)
    factors = torch.bmm(totals.reciprocal().mT, ratios)[:, 0]
    relative, factors = (average_ties(values, scores, tolerance=0.0) for values in (relative, factors))
    return relative + torch.log(factors / len(normals))


def standard_normals(draws: int, n_classes: int, seed: int) -> torch.Tensor:
    """Return standard normal numbers, (draws, n_classes), each with its negative, so that their mean is exactly 0.

    An odd number of draws is rounded up.
    """
    half = np.random.default_rng(seed).standard_normal((-(-draws // 2), n_classes))
    return torch.from_numpy(np.concatenate([half, -half]))
