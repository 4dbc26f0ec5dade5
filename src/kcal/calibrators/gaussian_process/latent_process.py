"""The latent function of Gaussian-process calibration: sparse, variational, whitened, on gpytorch.

f ~ GP(μ, k + ε δ),   u = f(Z) = μ(Z) + L v,   L Lᵀ = k(Z, Z) + ε I,   q(v) = N(a, diag s²)

m(x) = μ(x) + k(x, Z) L⁻ᵀ a,   v(x) = k(x, x) + ε − k(x, Z) L⁻ᵀ (I − diag s²) L⁻¹ k(Z, x)

bound = Σ_i w_i [log σ_y(m_i) + ½ Σ_k (σ_k² − σ_k) v_ik] − KL(q(v) ‖ N(0, I)),   σ = softmax(m_i)

In the fit, m − μ and v are computed at the nodes of a :class:`ScoreGrid` and interpolated linearly.

Only this file needs gpytorch: import it through :func:`require_latent_process`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, log
from typing import Any

import gpytorch
import torch
from gpytorch.constraints import Positive
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.variational import MeanFieldVariationalDistribution, VariationalStrategy

from kcal.calibrators.gaussian_process.posterior import WHITE_NOISE, prior_mean
from kcal.calibrators.gaussian_process.score_grid import SPACING, ScoreGrid, make_grid
from kcal.calibrators.quasi_newton import minimise
from kcal.progress import progress_bar

LENGTHSCALES = {"logits": 10.0, "probabilities": 0.5}
"""Initial lengthscale."""
PARAMETERS = {
    "mean": "variational_strategy._variational_distribution.variational_mean",
    "deviation": "variational_strategy._variational_distribution._variational_stddev",
    "log_variance": "covar_module.raw_outputscale",
    "log_lengthscale": "covar_module.base_kernel.raw_lengthscale",
}
"""Parameters of the fit, by the names of the fields of the model."""
BOUNDS = {
    "log_lengthscale": (log(0.001), log(10.0)),
    "log_variance": (log(1e-4), log(1e4)),
    "deviation": (1e-6, 1e3),
    "mean": (-inf, inf),
}
"""Bounds of the solver, by parameter."""
BLOCK_SIZE = 2**16
"""Scores in one block: bounds the memory for any number of samples and classes."""
SPACINGS_PER_LENGTHSCALE = 50
"""A function of shorter lengthscale is fitted again on a finer grid: the error of the interpolation is then 10⁻⁴."""


class LatentFunction(gpytorch.models.ApproximateGP):  # type: ignore[misc]
    """One function of one score, shared by all classes."""

    def __init__(self, inducing: torch.Tensor, *, representation: str) -> None:
        distribution = MeanFieldVariationalDistribution(len(inducing))
        strategy = VariationalStrategy(
            self, inducing[:, None], distribution, learn_inducing_locations=False, jitter_val=WHITE_NOISE
        )
        strategy.variational_params_initialized.fill_(1)  # q starts as the prior, not at a random draw
        super().__init__(strategy)
        self.representation = representation
        radial = RBFKernel(lengthscale_constraint=_positive())
        self.covar_module = ScaleKernel(radial, outputscale_constraint=_positive())
        self.double()
        self.covar_module.outputscale = 1.0
        radial.lengthscale = LENGTHSCALES[representation]

    def forward(self, points: torch.Tensor) -> MultivariateNormal:
        """Return the prior at scores, (n, 1)."""
        return MultivariateNormal(prior_mean(points[..., 0], self.representation), self.covar_module(points))

    def parameters_by_name(self) -> dict[str, torch.Tensor]:
        """Return the parameters of the fit under the names of the fields of the model."""
        parameters = dict(self.named_parameters())
        return {name: parameters[path] for name, path in PARAMETERS.items()}


def _positive() -> Positive:
    return Positive(transform=torch.exp, inv_transform=torch.log)


def fit_posterior(
    scores: torch.Tensor,
    own: torch.Tensor,
    weights: torch.Tensor,
    inducing: torch.Tensor,
    *,
    representation: str,
    iterations: int,
    show: bool | None,
) -> tuple[dict[str, torch.Tensor], bool]:
    """Return the parameters that maximise the bound, and whether the solver converged.

    From scores (n, n_classes), the column ``own`` of each label (n,), weights (n,) and the inducing points Z (m,).
    """
    spacing = SPACING
    while True:
        grid = make_grid(scores, spacing)
        function = LatentFunction(inducing, representation=representation).train()
        converged = _maximise_bound(function, grid, own, weights, iterations, show)
        posterior = {name: value.detach().reshape(-1) for name, value in function.parameters_by_name().items()}
        needed = float(posterior["log_lengthscale"].exp()) / SPACINGS_PER_LENGTHSCALE
        if grid.exact or needed >= spacing:
            return {"inducing": inducing, **posterior}, converged
        spacing = needed / 2


def _maximise_bound(
    function: LatentFunction,
    grid: ScoreGrid,
    own: torch.Tensor,
    weights: torch.Tensor,
    iterations: int,
    show: bool | None,
) -> bool:
    named = function.parameters_by_name()
    with progress_bar("Gaussian process", iterations, show=show) as advance:

        def evaluate() -> float:
            loss = negative_bound(function, grid, own, weights)
            advance(f"bound {-loss:.2f}")
            return loss

        return minimise(
            evaluate,
            list(named.values()),
            bounds=[BOUNDS[name] for name in named],
            iterations=iterations,
            tolerance=1e-9,
            gradient_tolerance=1e-6,
        )


def negative_bound(function: LatentFunction, grid: ScoreGrid, own: torch.Tensor, weights: torch.Tensor) -> float:
    """Return minus the bound over the sum of the weights, and set its gradient in the parameters."""
    total = float(weights.sum())
    mean, variance = _marginals(function, grid.nodes)
    divergence = function.variational_strategy.kl_divergence() / total
    at_nodes = mean.detach() - prior_mean(grid.nodes, function.representation), variance.detach()
    slopes_at_nodes = torch.zeros_like(mean), torch.zeros_like(mean)  # in mean and in variance
    log_likelihood = 0.0
    for rows in _blocks(*grid.scores.shape):
        shifts, variances = (grid.interpolate(values, rows) for values in at_nodes)
        means = prior_mean(grid.scores[rows], function.representation) + shifts
        fits, slopes = expected_log_likelihood(means, variances, own[rows])
        log_likelihood += float(weights[rows] @ fits)
        for whole, part in zip(slopes_at_nodes, slopes, strict=True):
            grid.add_slopes(whole, weights[rows, None] * part, rows)
    slopes_of_loss = [slopes / -total for slopes in slopes_at_nodes]
    torch.autograd.backward([mean, variance, divergence], [*slopes_of_loss, torch.ones_like(divergence)])
    return (total * float(divergence.detach()) - log_likelihood) / total


def expected_log_likelihood(
    means: torch.Tensor, variances: torch.Tensor, own: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Return log σ_y + ½ Σ_k (σ_k² − σ_k) v_k of each row, (n,), and its slopes in means and in variances."""
    log_probs = torch.log_softmax(means, dim=1)
    shares = torch.exp(log_probs)
    spread = 0.5 * shares * (shares - 1)
    fits = log_probs.gather(1, own[:, None])[:, 0] + (spread * variances).sum(dim=1)
    bend = (shares - 0.5) * variances
    slopes = shares * (bend - 1 - (shares * bend).sum(dim=1, keepdim=True))
    slopes.scatter_add_(1, own[:, None], torch.ones_like(own, dtype=slopes.dtype)[:, None])
    return fits, (slopes, spread)


def _marginals(function: LatentFunction, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and variance of the latent function at scores of any shape."""
    posterior: Any = function(scores.reshape(-1, 1))
    return posterior.mean.reshape(scores.shape), posterior.variance.reshape(scores.shape)


def _blocks(n_samples: int, n_classes: int) -> Iterator[slice]:
    step = max(1, BLOCK_SIZE // n_classes)
    return (slice(start, start + step) for start in range(0, n_samples, step))
