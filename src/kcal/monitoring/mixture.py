"""Class frequencies as the weights of a mixture: maximum likelihood, its information and its moments.

Under label shift p(x | k) stays. The likelihood of frequencies π, up to a constant, is Π_i Σ_k π_k·r_ik, with
r_ik = p_ik / reference_k. Its logarithm is a concave function of π, so that expectation maximisation finds its maximum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Floats = NDArray[np.float64]

LARGE = 1e3
"""Weight of the equation that frequencies sum to 1, beside those of the moments."""


@dataclass(frozen=True, eq=False)
class MixtureFit:
    """Weights of a mixture, (n_classes,), and how they were found."""

    prior: Floats
    n_iterations: int
    converged: bool


def fit_mixture(
    ratios: Floats, start: Floats, *, strength: float, tolerance: float = 1e-9, max_iterations: int = 5_000
) -> MixtureFit:
    """Maximise Σ_i log Σ_k π_k·r_ik + strength·Σ_k start_k·log π_k by expectation maximisation.

    π_k ← (Σ_i π_k·r_ik / Σ_j π_j·r_ij + strength·start_k) / (n + strength), from ``start``.
    """
    prior, total = start, len(ratios) + strength
    for iteration in range(1, max_iterations + 1):
        before = prior
        prior = (before * (ratios.T @ (1.0 / (ratios @ before))) + strength * start) / total
        prior = prior / prior.sum()
        if np.abs(prior - before).sum() < tolerance:
            return MixtureFit(prior, iteration, True)
    return MixtureFit(prior, max_iterations, False)


@dataclass(frozen=True, eq=False)
class Scores:
    """Derivatives of the penalised log likelihood at its maximum, on the classes of positive frequency.

    Directions of the simplex sum to 0: ``basis``, (n_kept, n_kept − 1), spans them.
    """

    kept: NDArray[np.bool_]
    posteriors: Floats  # q, (n, n_kept): of the rows, under the estimated prior
    gradients: Floats  # q / π, (n, n_kept)
    basis: Floats
    curvature: Floats  # −∂²/∂π², of likelihood and penalty, along the basis
    information: float
    weakest: Floats  # the direction in which the rows tell least, (n_classes,)

    def influence(self, score_changes: Floats) -> Floats:
        """Return changes of the estimate, (m, n_classes), for changes of the score, (m, n_kept)."""
        changes = np.zeros((len(score_changes), len(self.kept)))
        if self.basis.shape[1]:
            changes[:, self.kept] = score_changes @ self.basis @ np.linalg.pinv(self.curvature) @ self.basis.T
        return changes


def scores_at(ratios: Floats, prior: Floats, reference: Floats, strength: float) -> Scores:
    """Return the derivatives at the estimate."""
    kept = prior > 1e-12
    weights = prior[kept]
    joint = ratios[:, kept] * weights
    posteriors = joint / joint.sum(axis=1, keepdims=True)
    gradients = posteriors / weights
    basis = np.linalg.svd(np.ones((1, len(weights))))[2][1:].T
    likelihood = gradients.T @ gradients
    curvature = basis.T @ (likelihood + np.diag(strength * reference[kept] / weights**2)) @ basis
    return Scores(kept, posteriors, gradients, basis, curvature, *information_between(ratios, prior, reference))


def information_between(ratios: Floats, prior: Floats, reference: Floats) -> tuple[float, Floats]:
    """Return the smallest information of a row and its direction, half way between the estimate and the reference.

    There no class is absent, as it may be in the estimate. Rows are weighted as if drawn from those frequencies.
    """
    middle = (prior + reference) / 2
    densities = ratios @ middle
    weights = densities / (ratios @ prior)
    gradients = ratios / densities[:, None]
    return weakest_direction((gradients * weights[:, None]).T @ gradients / weights.sum(), middle)


def weakest_direction(information: Floats, prior: Floats) -> tuple[float, Floats]:
    """Return the smallest information of a row in units of that of a label, 0 to 1, and its direction, (n_classes,).

    A label has the information diag(1/π): relative to it, that of a prediction is D·I·D with D = diag(√π), on the
    directions orthogonal to √π.
    """
    kept = prior > 1e-12
    roots, direction = np.sqrt(prior[kept]), np.zeros(len(prior))
    if len(roots) < 2:
        return 1.0, direction
    tangent = np.linalg.svd(roots[None])[2][1:].T
    relative = roots[:, None] * information[np.ix_(kept, kept)] * roots
    values, vectors = np.linalg.eigh(tangent.T @ relative @ tangent)
    direction[kept] = roots * (tangent @ vectors[:, 0])
    return float(np.clip(values[0], 0.0, 1.0)), direction


def match_moments(means: Floats, by_class: Floats) -> Floats:
    """Return frequencies π ≥ 0, Σ π = 1, with the smallest ‖C·π − m‖².

    ``means`` is m, (n_classes,), the mean prediction; column k of C, ``by_class``, is that of the samples of class k.
    """
    equations = np.vstack([by_class, LARGE * np.ones(len(means))])
    solution, _ = nnls(equations, np.append(means, LARGE), maxiter=100 * len(means))
    return np.asarray(solution / solution.sum())
