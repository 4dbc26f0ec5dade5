"""How frequent classes are, from how often each was seen: without the differences that chance explains.

n_k is drawn towards the mean of a Dirichlet posterior, (n_k + a) · n / (n + K·a), whose a is the most likely one
(empirical Bayes), but no further than chance could have moved it: √n_k by twice its standard deviation of ½ (limited
translation: Efron and Morris, 1972). So counts that differ as those of equally frequent classes do become equal, and a
rare class among many that are alike stays rare.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import gammaln

Floats = NDArray[np.float64]

LEAST, MOST = 0.5, 1e6
"""Samples that every class is given beside its own; the least is that of Jeffreys."""
REACH = 1.0
"""How far a count's root is moved at most."""


def likely_frequencies(counts: Floats, strength: float | None = None) -> Floats:
    """Return the frequency of each class, (…, n_classes), all above 0, given how many samples each has.

    ``strength`` is how many samples every class is given beside its own; without, the most likely number.
    """
    moved = moved_counts(counts, most_likely_strength(counts) if strength is None else strength)
    moved = np.maximum(moved, np.finfo(np.float64).tiny)  # counts too faint to be divided tell nothing
    frequencies: Floats = moved / moved.sum(axis=-1, keepdims=True)
    return frequencies


def moved_counts(counts: Floats, strength: float) -> Floats:
    """Return counts drawn towards their mean, each between what it was and its posterior mean."""
    n = counts.sum(axis=-1, keepdims=True)
    drawn = (counts + strength) * n / (n + counts.shape[-1] * strength)
    roots = np.sqrt(counts)
    lowest = np.minimum(np.maximum(roots - REACH, 0.0) ** 2, counts)
    moved: Floats = np.clip(drawn, lowest, (roots + REACH) ** 2)
    return moved


def most_likely_strength(counts: Floats) -> float:
    """Return the strength of a symmetric Dirichlet prior under which the counts are likeliest."""
    found = minimize_scalar(
        lambda log_strength: -log_evidence(counts, float(np.exp(log_strength))),
        bounds=(np.log(LEAST), np.log(MOST)),
        method="bounded",
    )
    return float(np.exp(found.x))


def log_evidence(counts: Floats, strength: float) -> float:
    """Return the log-likelihood of samples with such counts, their frequencies drawn from a Dirichlet distribution."""
    total = len(counts) * strength
    each = gammaln(counts + strength) - gammaln(strength)
    return float(gammaln(total) - gammaln(counts.sum() + total) + each.sum())
