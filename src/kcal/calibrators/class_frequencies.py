"""How frequent classes are, from how often each was seen: no further from each other than chance would not explain.

π_k = (n_k + a) / (n + K·a), the mean of a Dirichlet posterior whose a is the most likely one (empirical Bayes). Where
counts differ as those of equally frequent classes do, a is large and all frequencies become 1/K; where they differ
much, it is small and they stay as they were counted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import gammaln

Floats = NDArray[np.float64]

LEAST, MOST = 0.5, 1e6
"""Samples that every class is given beside its own; the least is that of Jeffreys."""


def likely_frequencies(counts: Floats) -> Floats:
    """Return the frequency of each class, (n_classes,), all above 0, given how many samples each has."""
    shrunk = counts + np.exp(_most_likely_log_strength(counts))
    frequencies: Floats = shrunk / shrunk.sum()
    return frequencies


def log_evidence(counts: Floats, strength: float) -> float:
    """Return the log-likelihood of samples with such counts, their frequencies drawn from a Dirichlet distribution."""
    total = len(counts) * strength
    each = gammaln(counts + strength) - gammaln(strength)
    return float(gammaln(total) - gammaln(counts.sum() + total) + each.sum())


def _most_likely_log_strength(counts: Floats) -> float:
    found = minimize_scalar(
        lambda log_strength: -log_evidence(counts, float(np.exp(log_strength))),
        bounds=(np.log(LEAST), np.log(MOST)),
        method="bounded",
    )
    return float(found.x)
