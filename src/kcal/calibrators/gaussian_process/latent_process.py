"""The latent function of Gaussian-process calibration: sparse, variational, whitened, on gpytorch.

f ~ GP(μ, k + ε δ),   u = f(Z) = μ(Z) + L v,   L Lᵀ = k(Z, Z) + ε I,   q(v) = N(a, diag s²)

m(x) = μ(x) + k(x, Z) L⁻ᵀ a,   v(x) = k(x, x) + ε − k(x, Z) L⁻ᵀ (I − diag s²) L⁻¹ k(Z, x)

bound = Σ_i w_i [log σ_y(m_i) + ½ Σ_k (σ_k² − σ_k) v_ik] − KL(q(v) ‖ N(0, I)),   σ = softmax(m_i)

While learning, m − μ and v are computed at the nodes of a :class:`ScoreGrid` and are linear between them.

Only this file needs gpytorch: import it through :func:`require_latent_process`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from typing import Any

import gpytorch
import torch
from gpytorch.constraints import Positive
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.variational import MeanFieldVariationalDistribution, VariationalStrategy

from kcal.calibrators.binary.score_grid import SPACING, ScoreGrid, spread_scores
from kcal.calibrators.dirichlet.quasi_newton import FREE, Bounds, minimise
from kcal.progress import progress_bar
from kcal.validation import ALMOST_ZERO, LARGEST

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
STORED_BOUNDS: dict[str, Bounds] = {"inducing": (-3 * LARGEST, 1.0)} | BOUNDS | {"mean": (-LARGEST, LARGEST)}
"""What a file may hold: log probabilities of logits up to ``LARGEST``, and nothing whose square overflows."""
POINTS_AT_ONCE = 2**16
"""Scores in one block: bounds the memory at any number of samples and classes."""
SPACINGS_A_LENGTHSCALE = 50
"""A function that wanders faster is learned again on a finer grid: so many spacings bend it by 10⁻⁴ of its size."""


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
        return MultivariateNormal(prior_mean(points[..., 0], self.representation), self.covar_module(points))

    def parameters_by_name(self) -> dict[str, torch.Tensor]:
        """Return what is learned, under the names that a file uses."""
        distribution = self.variational_strategy._variational_distribution
        return {
            "mean": distribution.variational_mean,
            "deviation": distribution._variational_stddev,
            "log_variance": self.covar_module.raw_outputscale,
            "log_lengthscale": self.covar_module.base_kernel.raw_lengthscale,
        }


def prior_mean(scores: torch.Tensor, representation: str) -> torch.Tensor:
    """Return μ: the network's own log probability."""
    return scores if representation == "logits" else scores.clamp_min(ALMOST_ZERO).log()


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
    show: bool | None,
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
    show : bool, optional
        Whether to show a progress bar; None shows it in a terminal only.
    """
    spacing = SPACING
    while True:
        grid = spread_scores(scores, spacing)
        learned, content = _learn_on(grid, own, weights, inducing, representation, iterations, show)
        needed = float(learned["log_lengthscale"].exp()) / SPACINGS_A_LENGTHSCALE
        if grid.exact or needed >= spacing:
            return learned, content
        spacing = needed / 2


def _learn_on(
    grid: ScoreGrid,
    own: torch.Tensor,
    weights: torch.Tensor,
    inducing: torch.Tensor,
    representation: str,
    iterations: int,
    show: bool | None,
) -> tuple[dict[str, torch.Tensor], bool]:
    function = LatentFunction(inducing, representation=representation).train()
    named = function.parameters_by_name()
    with progress_bar("Gaussian process", iterations, show=show) as advance:

        def evaluate() -> float:
            loss = negative_bound(function, grid, own, weights)
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


def negative_bound(function: LatentFunction, grid: ScoreGrid, own: torch.Tensor, weights: torch.Tensor) -> float:
    """Return the bound over the sum of the weights, negated, and leave its gradient in the parameters."""
    blocks = torch.split(grid.nodes, POINTS_AT_ONCE)
    with torch.set_grad_enabled(len(blocks) == 1):  # what several need for the gradient is computed again, not kept
        parts = [_marginals(function, nodes) for nodes in blocks]
    mean, variance = (torch.cat(pieces).detach() for pieces in zip(*parts, strict=True))
    shift = mean - prior_mean(grid.nodes, function.representation)
    total, value = float(weights.sum()), 0.0
    slopes_at_nodes = torch.zeros_like(shift), torch.zeros_like(shift)  # in mean and in variance
    for rows in _blocks(*grid.scores.shape):
        means = prior_mean(grid.scores[rows], function.representation) + grid.take(shift, rows)
        fits, slopes = expected_log_likelihood(means, grid.take(variance, rows), own[rows])
        value += float(weights[rows] @ fits)
        for whole, part in zip(slopes_at_nodes, slopes, strict=True):
            grid.give_back(whole, weights[rows, None] * part, rows)
    value -= _send_back(
        function, blocks, parts, [torch.split(s / -total, POINTS_AT_ONCE) for s in slopes_at_nodes], total
    )
    return -value / total


def _send_back(
    function: LatentFunction, blocks: Sequence[torch.Tensor], parts: Sequence[Any], slopes: Sequence[Any], total: float
) -> float:
    """Leave in the parameters the gradient of what has these slopes at the nodes, and of KL / total; return KL."""
    divergence = 0.0
    for block, (nodes, *own_slopes) in enumerate(zip(blocks, *slopes, strict=True)):
        targets = list(parts[block] if len(blocks) == 1 else _marginals(function, nodes))
        if block == 0:
            targets.append(function.variational_strategy.kl_divergence() / total)
            own_slopes.append(torch.ones(()).double())
            divergence = total * float(targets[-1].detach())
        torch.autograd.backward(targets, own_slopes)
    return divergence


def expected_log_likelihood(
    means: torch.Tensor, variances: torch.Tensor, own: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Return log σ_y + ½ Σ_k (σ_k² − σ_k) v_k of each row, (n,), and its slopes in means and in variances."""
    logarithms = torch.log_softmax(means, dim=1)
    shares = torch.exp(logarithms)
    spread = 0.5 * shares * (shares - 1)
    fits = logarithms.gather(1, own[:, None])[:, 0] + (spread * variances).sum(dim=1)
    bend = (shares - 0.5) * variances
    slopes = shares * (bend - 1 - (shares * bend).sum(dim=1, keepdim=True))
    slopes.scatter_add_(1, own[:, None], torch.ones_like(own, dtype=slopes.dtype)[:, None])
    return fits, (slopes, spread)


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
    """Return mean and variance of the latent function at scores of any shape."""
    posterior: Any = function(scores.reshape(-1, 1))
    return posterior.mean.reshape(scores.shape), posterior.variance.reshape(scores.shape)


def _blocks(n_samples: int, n_classes: int) -> Iterator[slice]:
    step = max(1, POINTS_AT_ONCE // n_classes)
    return (slice(start, start + step) for start in range(0, n_samples, step))
