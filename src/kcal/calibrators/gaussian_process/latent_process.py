"""The latent function of Gaussian-process calibration: sparse, variational, whitened.

f ~ GP(μ, k + ε δ),   u = f(Z) = μ(Z) + L v,   L Lᵀ = k(Z, Z) + ε I,   q(v) = N(a, diag s²)

m(x) = μ(x) + k(x, Z) L⁻ᵀ a,   v(x) = k(x, x) + ε − k(x, Z) L⁻ᵀ (I − diag s²) L⁻¹ k(Z, x)

bound = Σ_i w_i [log σ_y(m_i) + ½ Σ_k (σ_k² − σ_k) v_ik] − KL(q(v) ‖ N(0, I)),   σ = softmax(m_i)

In the fit, m − μ and v are computed at the nodes of a :class:`ScoreGrid` and interpolated linearly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, log

import torch

from kcal.calibrators.gaussian_process.posterior import WHITE_NOISE, cholesky_factor, covariance, prior_mean
from kcal.calibrators.gaussian_process.score_grid import SPACING, ScoreGrid, make_grid
from kcal.calibrators.quasi_newton import minimise
from kcal.progress import progress_bar

LENGTHSCALES = {"logits": 10.0, "probabilities": 0.5}
"""Initial lengthscale."""
BOUNDS = {
    "mean": (-inf, inf),
    "deviation": (1e-6, 1e3),
    "log_variance": (log(1e-4), log(1e4)),
    "log_lengthscale": (log(0.001), log(10.0)),
}
"""Parameters of the fit, by the names of the fields of the model, with the bounds of the solver."""
BLOCK_SIZE = 2**16
"""Scores in one block: bounds the memory for any number of samples and classes."""
SPACINGS_PER_LENGTHSCALE = 50
"""A function of shorter lengthscale is fitted again on a finer grid: the error of the interpolation is then 10⁻⁴."""


@dataclass(frozen=True, eq=False)
class LatentFunction:
    """One function of one score, shared by all classes; q starts as the prior."""

    representation: str
    inducing: torch.Tensor  # (m,)
    mean: torch.Tensor  # (m,)
    deviation: torch.Tensor  # (m,)
    log_variance: torch.Tensor  # (1,)
    log_lengthscale: torch.Tensor  # (1,)

    @classmethod
    def start(cls, inducing: torch.Tensor, representation: str) -> LatentFunction:
        """Return the prior at inducing points."""
        zero = torch.zeros(1, dtype=torch.float64)
        starts = torch.zeros_like(inducing), torch.ones_like(inducing), zero, zero + log(LENGTHSCALES[representation])
        return cls(representation, inducing, *(start.requires_grad_() for start in starts))

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """Parameters of the fit, by the names of the fields of the model."""
        return {name: getattr(self, name) for name in BOUNDS}

    def marginals(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and variance at scores, (n,) each."""
        variance, lengthscale = self.log_variance.exp(), self.log_lengthscale.exp()
        factor = cholesky_factor(self.inducing, variance, lengthscale)
        covariances = covariance(self.inducing[:, None], scores, variance, lengthscale)
        whitened = torch.linalg.solve_triangular(factor, covariances, upper=False)  # (m, n)
        explained = (1.0 - self.deviation.square()) @ whitened.square()
        return prior_mean(scores, self.representation) + self.mean @ whitened, variance + WHITE_NOISE - explained

    def divergence(self) -> torch.Tensor:
        """Return KL(q(v) ‖ N(0, I))."""
        squares = self.deviation.square()
        return 0.5 * (squares + self.mean.square() - 1.0 - squares.log()).sum()


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
        function = LatentFunction.start(inducing, representation)
        converged = _maximise_bound(function, grid, own, weights, iterations, show)
        posterior = {name: value.detach().reshape(-1) for name, value in function.parameters.items()}
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
    named = function.parameters
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
    mean, variance = function.marginals(grid.nodes)
    divergence = function.divergence() / total
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


def _blocks(n_samples: int, n_classes: int) -> Iterator[slice]:
    step = max(1, BLOCK_SIZE // n_classes)
    return (slice(start, start + step) for start in range(0, n_samples, step))
