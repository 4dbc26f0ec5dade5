"""The latent function of Gaussian-process calibration: sparse, variational, whitened, on gpytorch.

f ~ GP(μ, k + ε δ),   u = f(Z) = μ(Z) + L v,   L Lᵀ = k(Z, Z) + ε I,   q(v) = N(a, diag s²)

m(x) = μ(x) + k(x, Z) L⁻ᵀ a,   v(x) = k(x, x) + ε − k(x, Z) L⁻ᵀ (I − diag s²) L⁻¹ k(Z, x)

bound = Σ_i w_i [log σ_y(m_i) + ½ Σ_k (σ_k² − σ_k) v_ik] − KL(q(v) ‖ N(0, I)),   σ = softmax(m_i)

Only this file needs gpytorch: import it through :func:`require_latent_process`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log
from typing import Any

import gpytorch
import torch
from gpytorch.constraints import Positive
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.variational import MeanFieldVariationalDistribution, VariationalStrategy

from kcal.arrays import ALMOST_ZERO
from kcal.calibrators.quasi_newton import FREE, Bounds, minimise
from kcal.progress import progress_bar

WHITE_NOISE = 0.01
"""ε: on the diagonal of k(Z, Z), and part of every marginal variance."""
LENGTHSCALES = {"logits": 10.0, "probabilities": 0.5}
"""Where the search for the lengthscale starts."""
BOUNDS: dict[str, Bounds] = {
    "log_lengthscale": (log(0.001), log(10.0)),
    "log_variance": (log(1e-4), log(1e4)),
    "deviation": (1e-6, 1e3),
    "mean": FREE,
}
"""What the solver may look at, by the name of a parameter."""
POINTS_AT_ONCE = 2**16
"""Scores in one block: bounds the memory at any number of samples and classes."""


class LatentFunction(gpytorch.models.ApproximateGP):  # type: ignore[misc]
    """One function of one score, shared by all classes."""

    def __init__(self, inducing: torch.Tensor, *, representation: str) -> None:
        distribution = MeanFieldVariationalDistribution(len(inducing))
        strategy = VariationalStrategy(
            self, inducing[:, None], distribution, learn_inducing_locations=False, jitter_val=WHITE_NOISE
        )
        strategy.variational_params_initialized.fill_(1)  # q starts as the prior, without a draw from torch's generator
        super().__init__(strategy)
        self.representation = representation
        radial = RBFKernel(lengthscale_constraint=_positive())
        self.covar_module = ScaleKernel(radial, outputscale_constraint=_positive())
        self.double()
        self.covar_module.outputscale = 1.0
        radial.lengthscale = LENGTHSCALES[representation]

    def forward(self, points: torch.Tensor) -> MultivariateNormal:
        """Return the prior at scores, (n, 1): its mean leaves the network's probabilities as they are."""
        score = points[..., 0]
        mean = score if self.representation == "logits" else score.clamp_min(ALMOST_ZERO).log()
        return MultivariateNormal(mean, self.covar_module(points))

    def parameters_by_name(self) -> dict[str, torch.Tensor]:
        """Return what is learned, under the names that a file uses."""
        distribution = self.variational_strategy._variational_distribution
        return {
            "mean": distribution.variational_mean,
            "deviation": distribution._variational_stddev,
            "log_variance": self.covar_module.raw_outputscale,
            "log_lengthscale": self.covar_module.base_kernel.raw_lengthscale,
        }


def _positive() -> Positive:
    return Positive(transform=torch.exp, inv_transform=torch.log)


def learn(
    scores: torch.Tensor,
    own: torch.Tensor,
    weights: torch.Tensor,
    inducing: torch.Tensor,
    *,
    representation: str,
    iterations: int,
) -> tuple[dict[str, torch.Tensor], bool]:
    """Return what maximises the bound, and whether the solver was content with it.

    Parameters
    ----------
    scores : (n, n_classes)
        What the latent function sees of each class.
    own : (n,)
        The column of the label.
    weights : (n,)
        How much each sample counts.
    inducing : (m,)
        Z.
    representation : "logits" or "probabilities"
        What the scores are.
    iterations : int
        Of L-BFGS, at most.
    """
    function = LatentFunction(inducing, representation=representation).train()
    named = function.parameters_by_name()
    with progress_bar("Gaussian process", iterations) as advance:

        def evaluate() -> float:
            loss = negative_bound(function, scores, own, weights)
            advance(f"bound {-loss:.2f}")
            return loss

        content = minimise(
            evaluate,
            list(named.values()),
            bounds=[BOUNDS[name] for name in named],
            iterations=iterations,
            tolerance=1e-9,
            gradient_tolerance=1e-6,
        )
    return {"inducing": inducing} | {name: value.detach().reshape(-1) for name, value in named.items()}, content


def negative_bound(function: LatentFunction, scores: torch.Tensor, own: torch.Tensor, weights: torch.Tensor) -> float:
    """Return the bound over the sum of the weights, negated, and leave its gradient in the parameters."""
    total, value = float(weights.sum()), 0.0
    for rows in _blocks(*scores.shape):
        mean, variance = _marginals(function, scores[rows])
        logarithms = torch.log_softmax(mean, dim=1)
        shares = torch.exp(logarithms)
        curvature = 0.5 * ((shares.square() - shares) * variance).sum(dim=1)
        fit = logarithms.gather(1, own[rows, None])[:, 0] + curvature  # (rows,)
        loss = -(weights[rows] @ fit) / total
        if rows.start == 0:
            loss = loss + function.variational_strategy.kl_divergence() / total
        loss.backward()  # type: ignore[no-untyped-call]
        value += float(loss.detach())
    return value


def marginals(
    learned: dict[str, torch.Tensor], scores: torch.Tensor, representation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and variance of the latent function at the scores, both (n, n_classes)."""
    function = LatentFunction(learned["inducing"], representation=representation)
    with torch.no_grad():
        for name, parameter in function.parameters_by_name().items():
            parameter.copy_(learned[name].reshape(parameter.shape))
        function.eval()
        parts = [_marginals(function, scores[rows]) for rows in _blocks(*scores.shape)]
    return torch.cat([mean for mean, _ in parts]), torch.cat([variance for _, variance in parts])


def _marginals(function: LatentFunction, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    posterior: Any = function(scores.reshape(-1, 1))
    return posterior.mean.reshape(scores.shape), posterior.variance.reshape(scores.shape)


def _blocks(n_samples: int, n_classes: int) -> Iterator[slice]:
    step = max(1, POINTS_AT_ONCE // n_classes)
    return (slice(start, start + step) for start in range(0, n_samples, step))
