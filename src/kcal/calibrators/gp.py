"""Gaussian-process calibration: one latent function of one score, shared by all classes.

f ~ GP(μ, k + ε δ),   p = E[softmax(f(s_1), …, f(s_K))],   f(s_k) independent N(m(s_k), v(s_k)) under the posterior

The score s is the log-probability of a class, or its probability, and μ(s) the log-probability. The posterior is sparse
and variational, with inducing points Z, whitened by L:

m(s) = μ(s) + uᵀ a,   v(s) = k(s, s) + ε − uᵀ (I − diag c²) u,   u = L⁻¹ k(Z, s),   L Lᵀ = k(Z, Z) + ε I

f(Z) = μ(Z) + L w with q(w) = N(a, diag c²), which maximises, with σ = softmax(m_i) for sample i of weight w_i,

bound = Σ_i w_i·[log σ_y + ½ Σ_k (σ_k² − σ_k) v_ik] − KL(q(w) ‖ N(0, I))

The fit is built on gpytorch, an optional dependency; predictions need torch alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from math import inf, log
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning
from torch.nn.utils import vector_to_parameters

from kcal.calibrators.base import buffer, fitted
from kcal.calibrators.class_scores import MIN_LOG_PROB, average_ties, rank_of_label, sort_classes, unsort_classes
from kcal.calibrators.logits import LogitCalibrator, LogitModel
from kcal.calibrators.solvers import loss_of_parameters, minimise
from kcal.errors import MissingExtraError
from kcal.progress import progress_bar
from kcal.samples import Floats, Samples
from kcal.validation import ALMOST_ZERO, check_integer, parameter

GAIN = 1e-3
"""Rise of the bound, in nats, below which a fit that was started again has ended."""
MAX_BOUND_ITERATIONS = 1000
ADVICE = "its bound still rose, and it may not be optimal."
MAX_INDUCING_POINTS = 1000
MAX_DRAWS = 100_000
WHITE_NOISE = 0.01
"""ε: on the diagonal of k(Z, Z), and part of every marginal variance."""
MAX_DEVIATION = 300.0
"""Latent values are clipped to this distance from their mean, so that no exponential overflows."""
INITIAL_LENGTHSCALES = {"logits": 10.0, "probabilities": 0.5}
BOUNDS = {
    "mean": (-inf, inf),
    "deviation": (1e-6, 1e3),
    "log_variance": (log(1e-4), log(1e4)),
    "log_lengthscale": (log(0.001), log(10.0)),
}
"""Bounds of the solver, by parameter."""
MAX_DISTINCT = 2**16
"""More scores than this are rounded before k-means."""
BLOCK_SIZE = 2**16
"""Scores in one block of the bound: limits the memory for any number of samples and classes."""
SPACING = 2.0**-9
"""First spacing of the nodes of a :class:`ScoreGrid`."""
MAX_EXACT = 2**13
"""Up to so many distinct scores are their own nodes."""
SPACINGS_PER_LENGTHSCALE = 50
"""A function of shorter lengthscale is fitted again on a finer grid: the error of the interpolation is then 1e-4."""


class GaussianProcessModel(LogitModel):
    """The posterior of the latent function, and the draws of the prediction."""

    ignores_class_order: ClassVar[bool] = True
    inducing: torch.Tensor = buffer("n_points")  # Z
    mean: torch.Tensor = buffer("n_points")  # a
    deviation: torch.Tensor = buffer("n_points")  # c
    whitening: torch.Tensor = buffer("n_points", "n_points")  # L⁻¹
    normals: torch.Tensor = buffer("n_draws", "n_classes")  # standard normal numbers
    variance: torch.Tensor = buffer()
    lengthscale: torch.Tensor = buffer()

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        scores, order = sorted_scores(log_probs, self.representation)
        means, variances = self.marginals(scores)
        return unsort_classes(expected_softmax(means, variances, self.normals, scores), order)

    def marginals(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return m and v at the scores, both (n, n_classes)."""
        covariances = covariance(scores[..., None], self.inducing, self.variance, self.lengthscale)
        whitened = covariances @ self.whitening.T  # (n, n_classes, n_points)
        means = prior_mean(scores, self.representation) + whitened @ self.mean
        explained = whitened.square() @ (1.0 - self.deviation.square())
        return means, self.variance + WHITE_NOISE - explained

    def entries_per_row(self) -> int:
        """Return the number of latent values, or of covariances."""
        return max(len(self.normals), len(self.inducing)) * self.normals.shape[1]


def sorted_scores(log_probs: torch.Tensor, representation: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores of the classes in descending order, and that order, both (n, n_classes)."""
    descending, order = sort_classes(log_probs.clamp_min(MIN_LOG_PROB))
    return (descending if representation == "logits" else torch.exp(descending)), order


def prior_mean(scores: torch.Tensor, representation: str) -> torch.Tensor:
    """Return μ: the network's own log-probability."""
    return scores if representation == "logits" else scores.clamp_min(ALMOST_ZERO).log()


def covariance(
    ones: torch.Tensor, others: torch.Tensor, variance: torch.Tensor, lengthscale: torch.Tensor
) -> torch.Tensor:
    """Return k between scores, broadcast."""
    return variance * torch.exp(-0.5 * ((ones - others) / lengthscale).square())


def whitening_matrix(inducing: torch.Tensor, variance: torch.Tensor, lengthscale: torch.Tensor) -> torch.Tensor:
    """Return L⁻¹, (n_points, n_points)."""
    identity = torch.eye(len(inducing), dtype=inducing.dtype)
    covariances = covariance(inducing[:, None], inducing, variance, lengthscale)
    root = torch.linalg.cholesky(covariances + WHITE_NOISE * identity)
    inverse: torch.Tensor = torch.linalg.solve_triangular(root, identity, upper=False)
    return inverse


def expected_softmax(
    means: torch.Tensor, variances: torch.Tensor, normals: torch.Tensor, scores: torch.Tensor
) -> torch.Tensor:
    """Return the logarithm of the mean softmax over the draws ``normals`` (n_draws, n_classes), (n, n_classes).

    Σ_s softmax(m + e_s)_k = exp(m_k) Σ_s exp(e_sk) / Σ_j exp(m_j + e_sj): one exponential per draw, exact in the tails.
    Classes of equal ``scores``, which descend, get the mean of their probabilities.
    """
    relative = means - means.amax(dim=1, keepdim=True)
    odds, deviations = torch.exp(relative), variances.sqrt()
    ratios = (deviations[:, None] * normals).clamp(-MAX_DEVIATION, MAX_DEVIATION).exp()  # (n, n_draws, n_classes)
    totals = torch.bmm(ratios, odds[:, :, None])  # (n, n_draws, 1)
    factors = torch.bmm(totals.reciprocal().mT, ratios)[:, 0]
    relative, factors = (average_ties(values, scores, tolerance=0.0) for values in (relative, factors))
    return relative + torch.log(factors / len(normals))


def standard_normals(n_draws: int, n_classes: int, seed: int) -> torch.Tensor:
    """Return standard normal numbers, (n_draws, n_classes), each with its negative: their mean is exactly 0.

    An odd number of draws is rounded up.
    """
    half = np.random.default_rng(seed).standard_normal((-(-n_draws // 2), n_classes))
    return torch.from_numpy(np.concatenate([half, -half]))


class GaussianProcessCalibration(LogitCalibrator):
    """Replace the score of every class by a Gaussian process of it, the same for all classes, and average softmax.

    The process is fitted by variational inference with inducing points, and needs gpytorch. Its prior mean is the
    network's own log-probability: nothing changes far from the data. A prediction is the mean of softmax over draws of
    independent normal latent values. The same normal numbers serve every row, assigned by the rank of a score in its
    row and each with its negative. Hence a prediction depends neither on the other rows nor on the order of the
    classes; classes of equal score get equal probabilities.

    Parameters
    ----------
    inducing_points : int
        Number of inducing points, the k-means of the scores of all classes together. Fewer if there are fewer scores.
    samples : int
        Draws for a prediction; an odd number is rounded up, so that every draw has its negative.
    representation : "logits" or "probabilities"
        What ``X`` holds, and the argument of the process: the log-probability of a class, or its probability.
    progress : bool, optional
        Show a progress bar; None shows it in a terminal only.
    seed : int
        Seed of the k-means and of the draws.

    Attributes
    ----------
    lengthscale_, variance_ : float
        Of the covariance of the process, at the maximum of the bound.
    """

    method = "gp"
    _model_class = GaussianProcessModel
    lengthscale_ = fitted("lengthscale")
    variance_ = fitted("variance")
    inducing_points: int = parameter(10, check_integer, minimum=1, maximum=MAX_INDUCING_POINTS)
    samples: int = parameter(100, check_integer, minimum=1, maximum=MAX_DRAWS)
    progress: bool | None = None

    def _check_parameters(self) -> None:
        import_gpytorch()
        super()._check_parameters()

    def _fit_model(self, samples: Samples) -> GaussianProcessModel:
        scores, order = sorted_scores(samples.logits, self.representation)
        inducing = choose_inducing_points(scores.numpy(), samples.weights, self.inducing_points, self.seed)
        labels = scores, rank_of_label(order, samples.codes), torch.from_numpy(samples.weights)
        posterior = fit_posterior(*labels, torch.from_numpy(inducing), self.representation, self.progress)
        variance, lengthscale = (posterior.pop(f"log_{name}").exp()[0] for name in ("variance", "lengthscale"))
        return GaussianProcessModel(
            inducing=inducing,
            whitening=whitening_matrix(torch.from_numpy(inducing), variance, lengthscale),
            normals=standard_normals(int(self.samples), samples.n_classes, int(self.seed)),
            variance=variance,
            lengthscale=lengthscale,
            **posterior,
        )


def import_gpytorch() -> ModuleType:
    """Return gpytorch; raise with how to install it if it is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # gpytorch scripts a function that is not used here
            import gpytorch
    except ModuleNotFoundError as error:
        message = "Gaussian-process calibration is built on gpytorch, which is not installed: pip install 'kcal[gp]'"
        raise MissingExtraError(message) from error
    module: ModuleType = gpytorch
    return module


def choose_inducing_points(scores: Floats, weights: Floats, count: int, seed: int) -> Floats:
    """Return the k-means of all scores together, ascending; it depends neither on their order nor on repetition.

    Many scores are rounded first, to 1/512.
    """
    rounded = scores if scores.size <= MAX_DISTINCT else np.round(scores * 512) / 512
    values, places = np.unique(rounded, return_inverse=True)
    masses = np.bincount(places.ravel(), weights=np.repeat(weights, scores.shape[1]))
    if len(values) <= count:
        return values
    from sklearn.cluster import KMeans  # here, because its import takes long

    kmeans = KMeans(count, n_init=1, random_state=int(seed) % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SklearnConvergenceWarning)  # fewer distinct points are fine
        points: Floats = np.unique(kmeans.fit(values[:, None], sample_weight=masses).cluster_centers_)
    return points


def fit_posterior(
    scores: torch.Tensor,
    own: torch.Tensor,
    weights: torch.Tensor,
    inducing: torch.Tensor,
    representation: str,
    show: bool | None,
    spacing: float = SPACING,
) -> dict[str, torch.Tensor]:
    """Return the parameters that maximise the bound, by the names of ``BOUNDS``.

    From scores (n, n_classes), the column ``own`` of each label (n,), weights (n,) and the inducing points (n_points,).
    In the fit, m − μ and v are computed at the nodes of a :class:`ScoreGrid` and interpolated linearly.
    """
    grid = ScoreGrid(scores, spacing)
    function, parameters = make_latent_function(inducing, representation)
    with progress_bar("Gaussian process", MAX_BOUND_ITERATIONS, show=show) as advance:

        def evaluate() -> float:
            loss = negative_bound(function, representation, grid, own, weights)
            advance(f"bound {-loss:.2f}")
            return loss

        loss, start = loss_of_parameters(evaluate, list(parameters.values()))
        bounds = [BOUNDS[name] for name, values in parameters.items() for _ in range(values.numel())]
        limits: dict[str, Any] = {"bounds": bounds, "max_iterations": MAX_BOUND_ITERATIONS, "ftol": 1e-9, "gtol": 1e-6}
        lowest, value = np.inf, loss(start)[0]
        while value < lowest - GAIN:  # a line search that fails ends a fit too early
            lowest, start = value, minimise(loss, start, name="the Gaussian process", advice=ADVICE, **limits)
            value = loss(start)[0]
    vector_to_parameters(torch.from_numpy(start), parameters.values())
    posterior = {name: value.detach().reshape(-1) for name, value in parameters.items()}
    needed = float(posterior["log_lengthscale"].exp()) / SPACINGS_PER_LENGTHSCALE
    if not grid.exact and needed < spacing:
        return fit_posterior(scores, own, weights, inducing, representation, show, needed / 2)
    return posterior


def make_latent_function(inducing: torch.Tensor, representation: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return the process before its fit, a function of scores (n, 1), and its parameters by the names of ``BOUNDS``."""
    gpytorch = import_gpytorch()
    positive = {"transform": torch.exp, "inv_transform": torch.log}
    radial = gpytorch.kernels.RBFKernel(lengthscale_constraint=gpytorch.constraints.Positive(**positive))
    kernel = gpytorch.kernels.ScaleKernel(radial, outputscale_constraint=gpytorch.constraints.Positive(**positive))
    distribution = gpytorch.variational.MeanFieldVariationalDistribution(len(inducing))

    class LatentFunction(gpytorch.models.ApproximateGP):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            strategy = gpytorch.variational.VariationalStrategy(
                self, inducing[:, None], distribution, learn_inducing_locations=False, jitter_val=WHITE_NOISE
            )
            strategy.variational_params_initialized.fill_(1)  # q starts as the prior, not at a random draw
            super().__init__(strategy)
            self.kernel = kernel

        def forward(self, points: torch.Tensor) -> Any:
            mean = prior_mean(points[..., 0], representation)
            return gpytorch.distributions.MultivariateNormal(mean, self.kernel(points))

    function = LatentFunction().double().train()
    kernel.outputscale, radial.lengthscale = 1.0, INITIAL_LENGTHSCALES[representation]
    parameters = (
        distribution.variational_mean,
        distribution.get_parameter("_variational_stddev"),
        kernel.raw_outputscale,
        radial.raw_lengthscale,
    )
    return function, dict(zip(BOUNDS, parameters, strict=True))


def negative_bound(
    function: Any, representation: str, grid: ScoreGrid, own: torch.Tensor, weights: torch.Tensor
) -> float:
    """Return minus the bound over the sum of the weights, and set its gradient in the parameters."""
    total = float(weights.sum())
    posterior = function(grid.nodes[:, None])
    mean, variance = posterior.mean, posterior.variance
    divergence = function.variational_strategy.kl_divergence() / total
    at_nodes = mean.detach() - prior_mean(grid.nodes, representation), variance.detach()
    slopes_at_nodes = torch.zeros_like(at_nodes[0]), torch.zeros_like(at_nodes[1])  # in mean and in variance
    log_likelihood = 0.0
    for rows in _blocks(*grid.scores.shape):
        shifts, variances = (grid.interpolate(values, rows) for values in at_nodes)
        means = prior_mean(grid.scores[rows], representation) + shifts
        fits, slopes = expected_log_likelihood(means, variances, own[rows])
        log_likelihood += float(weights[rows] @ fits)
        for whole, part in zip(slopes_at_nodes, slopes, strict=True):
            grid.add_slopes(whole, weights[rows, None] * part, rows)
    slopes_of_loss = [slopes / -total for slopes in slopes_at_nodes]
    torch.autograd.backward([mean, variance, divergence], [*slopes_of_loss, torch.ones_like(divergence)])
    return (total * float(divergence.detach()) - log_likelihood) / total


def _blocks(n_samples: int, n_classes: int) -> Iterator[slice]:
    step = max(1, BLOCK_SIZE // n_classes)
    return (slice(start, start + step) for start in range(0, n_samples, step))


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


class ScoreGrid:
    """Nodes over the scores: a smooth function of one score is evaluated at nodes, not at every score.

    g(s) = (1 − a)·g(x_j) + a·g(x_{j+1}),   x_j ≤ s ≤ x_{j+1} = x_j + h,   wrong by at most h²/8·max|g″|

    Only nodes next to a score exist. Scores that are few or far apart are their own nodes: the grid is exact.
    """

    def __init__(self, scores: torch.Tensor, spacing: float) -> None:
        distinct, places = np.unique(scores.numpy(), return_inverse=True)
        cells = np.floor(distinct / spacing)
        lows = np.unique(cells)
        is_beyond_grid = np.abs(cells).max() >= 2.0**52  # there neighbouring cells are the same number
        self.exact = bool(len(distinct) <= max(MAX_EXACT, 2 * len(lows)) or is_beyond_grid)
        nodes = distinct if self.exact else np.union1d(lows, lows + 1)
        below = np.arange(len(distinct)) if self.exact else np.searchsorted(nodes, cells)
        shares = np.zeros(len(distinct)) if self.exact else distinct / spacing - cells
        self.scores = scores  # (n, n_classes)
        self.nodes = torch.from_numpy(nodes if self.exact else nodes * spacing)  # (n_nodes,), ascending
        self.below = below[places].reshape(scores.shape)  # the node j at or below each score
        self.shares = shares[places].reshape(scores.shape)  # a

    def interpolate(self, values: torch.Tensor, rows: slice) -> torch.Tensor:
        """Return a function, given by its values at the nodes, at the scores of some rows."""
        given, below = values.numpy(), self.below[rows]
        taken = given.take(below)
        if not self.exact:
            taken += self.shares[rows] * np.diff(given, append=given[-1:]).take(below)
        return torch.from_numpy(taken)

    def add_slopes(self, slopes: torch.Tensor, parts: torch.Tensor, rows: slice) -> None:
        """Add the slopes at the scores of some rows to those at the nodes: the transpose of :meth:`interpolate`."""
        below, upper = self.below[rows].ravel(), (parts.numpy() * self.shares[rows]).ravel()
        slopes += torch.from_numpy(np.bincount(below, parts.numpy().ravel() - upper, len(slopes)))
        if not self.exact:
            slopes[1:] += torch.from_numpy(np.bincount(below, upper, len(slopes)))[:-1]
