"""The fitted model of Gaussian-process calibration, and its prediction by sampling.

p = E[softmax(f(s_1), …, f(s_K))],   f(s_k) independent N(m(s_k), v(s_k)) under the posterior
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import exp, inf, log
from types import ModuleType

import numpy as np
import torch

from kcal.calibrators.class_scores import average_ties, sort_classes, unsort_classes
from kcal.calibrators.model_state import LogitModel, tensor
from kcal.errors import MissingExtraError

MAX_SAMPLES = 100_000
BLOCK_SIZE = 2**18
"""Latent values in one block: bounds the memory of a prediction for any number of rows."""
LARGEST_DEVIATION = 300.0
"""Latent values are clipped to this distance from their mean, so that no exponential overflows."""
LOWEST_LOG_PROB = -1e5
"""Scores of masked classes are clipped here, so that distances to other scores stay exact to 1e-6."""
BOUNDS = {
    "log_lengthscale": (log(0.001), log(10.0)),
    "log_variance": (log(1e-4), log(1e4)),
    "deviation": (1e-6, 1e3),
    "mean": (-inf, inf),
}
"""Bounds of the solver, by parameter."""


@dataclass(frozen=True)
class GaussianProcessModel(LogitModel):
    """Variational posterior at the inducing points, and the draws of the prediction."""

    representation: str  # of the scores: log probabilities or probabilities
    samples: int
    seed: int
    inducing: torch.Tensor = tensor("points")
    mean: torch.Tensor = tensor("points")
    deviation: torch.Tensor = tensor("points")
    log_variance: torch.Tensor = tensor(1)
    log_lengthscale: torch.Tensor = tensor(1)

    @property
    def lengthscale(self) -> float:
        """Lengthscale of the covariance, in units of the score."""
        return exp(float(self.log_lengthscale))

    @property
    def variance(self) -> float:
        """Variance of the process around the network's own log probability."""
        return exp(float(self.log_variance))

    def log_probs(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return calibrated log probabilities, (n, n_classes)."""
        latent_process = require_latent_process()
        normals = _standard_normals(self.samples, log_probs.shape[1], self.seed)
        scores, order = sorted_scores(log_probs, self.representation)
        means, variances = latent_process.marginals(self, scores)
        return unsort_classes(expected_softmax(means, variances, normals, scores), order)

    def summary(self) -> dict[str, str]:
        """Return the covariance for display."""
        return {
            "lengthscale": f"{self.lengthscale:.3g}",
            "variance": f"{self.variance:.3g}",
            "inducing points": str(len(self.inducing)),
        }


def require_latent_process() -> ModuleType:
    """Return the module that needs gpytorch; raise with how to install it if it is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # gpytorch scripts a function that is not used here
            from kcal.calibrators.gaussian_process import latent_process
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("gpytorch", "linear_operator"):
            raise
        raise MissingExtraError(
            "Gaussian-process calibration is built on gpytorch, which is not installed. Run: pip install 'kcal[gp]'"
        ) from error
    return latent_process


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
    factors = torch.empty_like(means)
    step = max(1, BLOCK_SIZE // normals.numel())
    for start in range(0, len(means), step):
        rows = slice(start, start + step)
        draws = (deviations[rows, None] * normals).clamp_(-LARGEST_DEVIATION, LARGEST_DEVIATION)
        ratios = draws.exp_()  # (rows, draws, n_classes)
        totals = torch.bmm(ratios, odds[rows, :, None])  # (rows, draws, 1)
        factors[rows] = torch.bmm(totals.reciprocal_().mT, ratios)[:, 0]
    relative, factors = (average_ties(values, scores, tolerance=0.0) for values in (relative, factors))
    return relative + torch.log(factors / len(normals))


def _standard_normals(draws: int, n_classes: int, seed: int) -> torch.Tensor:
    """Return standard normal numbers, (draws, n_classes), each with its negative, so that their mean is exactly 0.

    An odd number of draws is rounded up.
    """
    half = np.random.default_rng(seed).standard_normal((-(-draws // 2), n_classes))
    return torch.from_numpy(np.concatenate([half, -half]))
