"""Estimate class frequencies from counts, without the differences that sampling explains.

n_k is shrunk towards the mean of a Dirichlet posterior, (n_k + a) · n / (n + K·a), with the a of the highest marginal
likelihood (empirical Bayes), but √n_k moves by at most two of its standard deviations of ½ (limited translation: Efron
and Morris, 1972). So counts that differ as those of equally frequent classes do become equal, and a rare class among
many alike stays rare.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import gammaln

Floats = NDArray[np.float64]

MIN_STRENGTH, MAX_STRENGTH = 0.5, 1e6
"""Bounds of the pseudo-count per class; the lower one is that of Jeffreys' prior."""
MAX_ROOT_SHIFT = 1.0  # of the square root of a count


def likely_frequencies(counts: Floats, strength: float | None = None) -> Floats:
    """Return the estimated frequency of each class, (…, n_classes), all above 0.

    ``strength`` is the pseudo-count per class; by default the one of the highest marginal likelihood.
    """
    strength = likely_strength(counts) if strength is None else strength
    shrunk = np.maximum(shrunk_counts(counts, strength), np.finfo(np.float64).tiny)
    return np.asarray(shrunk / shrunk.sum(axis=-1, keepdims=True))


def shrunk_counts(counts: Floats, strength: float) -> Floats:
    """Return counts shrunk towards their mean, each between itself and its posterior mean."""
    n = counts.sum(axis=-1, keepdims=True)
    posterior = (counts + strength) * n / (n + counts.shape[-1] * strength)
    roots = np.sqrt(counts)
    lowest = np.minimum(np.maximum(roots - MAX_ROOT_SHIFT, 0.0) ** 2, counts)
    return np.asarray(np.clip(posterior, lowest, (roots + MAX_ROOT_SHIFT) ** 2))


def likely_strength(counts: Floats) -> float:
    """Return the strength of a symmetric Dirichlet prior with the highest marginal likelihood of the counts."""
    result = minimize_scalar(
        lambda log_strength: -log_marginal_likelihood(counts, float(np.exp(log_strength))),
        bounds=(np.log(MIN_STRENGTH), np.log(MAX_STRENGTH)),
        method="bounded",
    )
    return float(np.exp(result.x))


def log_marginal_likelihood(counts: Floats, strength: float) -> float:
    """Return the log-likelihood of labels with such counts, their frequencies drawn from a Dirichlet distribution."""
    total = len(counts) * strength
    per_class = gammaln(counts + strength) - gammaln(strength)
    return float(gammaln(total) - gammaln(counts.sum() + total) + per_class.sum())
