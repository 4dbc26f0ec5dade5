"""Gaussian-process calibration: one latent function of one score, shared by all classes.

f ~ GP,   p = E[softmax(f(s_1), …, f(s_K))],   f(s_k) independent N(m(s_k), v(s_k)) under the posterior
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import exp
from types import ModuleType
from typing import ClassVar

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning

from kcal.calibrators.class_scores import rank_of_label
from kcal.calibrators.gaussian_process.posterior import (
    LatentPosterior,
    sorted_scores,
    standard_normals,
    whitening_matrix,
)
from kcal.calibrators.logit_base import Codes, Floats, LogitCalibrator, fitted
from kcal.calibrators.model_state import LogitModel, tensor
from kcal.errors import ConvergenceWarning, MissingExtraError, warn
from kcal.validation import check_integer, parameter

MAX_ITERATIONS = 1000
MAX_INDUCING_POINTS = 1000
MANY_SCORES = 2**16
"""More scores than this are rounded before k-means."""
MAX_SAMPLES = 100_000


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
        return self.prepare(log_probs.shape[1]).log_probs(log_probs)

    def prepare(self, n_classes: int) -> LatentPosterior:
        """Return the posterior with its draws."""
        return LatentPosterior(
            self.representation,
            self.variance,
            self.lengthscale,
            self.inducing,
            self.mean,
            self.deviation,
            whitening_matrix(self.inducing, self.variance, self.lengthscale),
            standard_normals(self.samples, n_classes, self.seed),
        )

    def summary(self) -> dict[str, str]:
        """Return the covariance for display."""
        return {
            "lengthscale": f"{self.lengthscale:.3g}",
            "variance": f"{self.variance:.3g}",
            "inducing points": str(len(self.inducing)),
        }


@dataclass(kw_only=True, eq=False, repr=False)
class GaussianProcessCalibration(LogitCalibrator):
    """Replace the score of every class by a Gaussian process of it, the same for all classes, and average softmax.

    The process is fitted by variational inference with inducing points (``latent_process.py``).
    Its prior mean is the network's own log probability, so that nothing changes far from the data. A prediction
    is the mean of softmax over draws of independent normal latent values. The same normal numbers serve every row,
    assigned by the rank of a score in its row and each with its negative, so that a prediction depends neither on
    the other rows nor on the order of the classes; classes of equal score get equal probabilities.

    Parameters
    ----------
    inducing_points : int
        Number of inducing points, the k-means of the scores of all classes together. Fewer if there are fewer scores.
    samples : int
        Draws for a prediction; an odd number is rounded up, so that every draw has its negative.
    representation : "logits" or "probabilities"
        What ``X`` holds, and the argument of the process: the log probability of a class, or its probability.
    progress : bool, optional
        Show a progress bar; None shows it in a terminal only.
    seed : int
        Seed of the k-means and of the draws.

    Attributes
    ----------
    lengthscale_, variance_ : float
        Of the covariance of the process, at the maximum of the bound.
    """

    method: ClassVar[str] = "gp"
    ignores_class_order: ClassVar[bool] = True
    model_class = GaussianProcessModel
    lengthscale_ = fitted("lengthscale")
    variance_ = fitted("variance")
    inducing_points: int = parameter(10, check_integer, minimum=1, maximum=MAX_INDUCING_POINTS)
    samples: int = parameter(100, check_integer, minimum=1, maximum=MAX_SAMPLES)
    progress: bool | None = None

    def _check_parameters(self) -> None:
        require_latent_process()
        super()._check_parameters()

    def _fit_log_probs(self, log_probs: torch.Tensor, codes: Codes, weights: Floats) -> GaussianProcessModel:
        scores, order = sorted_scores(log_probs, self.representation)
        inducing = choose_inducing_points(scores.numpy(), weights, self.inducing_points, self.seed)
        posterior, converged = require_latent_process().fit_posterior(
            scores,
            rank_of_label(order, codes),
            torch.from_numpy(weights),
            torch.from_numpy(inducing),
            representation=self.representation,
            iterations=MAX_ITERATIONS,
            show=self.progress,
        )
        if not converged:
            warn(
                f"The bound of the Gaussian process still rose after {MAX_ITERATIONS} iterations; the fit may not be "
                "optimal.",
                ConvergenceWarning,
            )
        return GaussianProcessModel(self.representation, int(self.samples), int(self.seed), **posterior)


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


def choose_inducing_points(scores: Floats, weights: Floats, count: int, seed: int) -> Floats:
    """Return the k-means of all scores together, ascending; it depends neither on their order nor on repetition.

    Many scores are rounded first, to 1/512.
    """
    rounded = scores if scores.size <= MANY_SCORES else np.round(scores * 512) / 512
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
