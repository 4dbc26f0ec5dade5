"""Estimates of class frequencies, how each sample changes them, and what follows: covariances, intervals, shrinkage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, fdtrc

from kcal.errors import InvalidInputError
from kcal.monitoring.bias_correction import BiasCorrection, log_of
from kcal.monitoring.mixture import Floats, MixtureFit, Scores, fit_mixture, match_moments, scores_at, weakest_direction

Labelled = tuple[Floats, NDArray[np.intp]]
"""Predictions for calibration samples, (n, n_classes), and the columns of their labels, (n,)."""


@dataclass(frozen=True, eq=False)
class FrequencyFit:
    """An estimate, the changes of it that each sample and each calibration sample brings, and its information.

    ``tested``, (m, n_classes), has a row per sample or group; ``calibrated`` is None without calibration predictions.
    ``information`` of a prediction is in units of a label, in the direction ``weakest`` in which it is smallest.
    """

    fit: MixtureFit
    tested: Floats
    calibrated: Floats | None
    information: float
    weakest: Floats


def by_mixture(
    probs: Floats,
    reference: Floats,
    correction: BiasCorrection | None,
    known: Labelled | None,
    groups: NDArray[np.int64] | None,
    strength: float,
) -> FrequencyFit:
    """Return the estimate by expectation maximisation, its influences, the information, its weakest direction."""
    corrected = probs if correction is None else correction.apply(probs)
    ratios = np.divide(corrected, reference, out=np.zeros(probs.shape), where=reference > 0)
    told = ratios.any(axis=1)
    ratios = ratios[told]
    if not len(ratios):
        raise InvalidInputError("reference", "gives nothing to the classes of the predictions")
    fit = fit_mixture(ratios, reference, strength=strength)
    scores = scores_at(ratios, fit.prior, reference, strength)
    gradients = scores.gradients - 1.0
    tested = scores.influence(gradients if groups is None else sum_by_group(gradients, groups[told]))
    if correction is None or known is None:
        return FrequencyFit(fit, tested, None, scores.information, scores.weakest)
    changes = _calibration_scores(scores, log_of(probs[told]), correction, reference, known[1])
    return FrequencyFit(fit, tested, scores.influence(changes), scores.information, scores.weakest)


def _calibration_scores(
    scores: Scores, logs: Floats, correction: BiasCorrection, reference: Floats, labels: NDArray[np.intp]
) -> Floats:
    """Return how each calibration sample changes the score, (n_calibration, n_kept), by correction and reference.

    ∂(q_k/π_k)/∂b_j = (q_k/π_k)·(δ_jk − q_j), likewise for the exponent with log p in place of δ; the logarithm of the
    reference has the opposite sign of the bias.
    """
    kept, posteriors, gradients = scores.kept, scores.posteriors, scores.gradients
    by_bias = np.diag(gradients.sum(axis=0)) - gradients.T @ posteriors
    own = logs[:, kept]
    by_exponent = (gradients * (own - (posteriors * own).sum(axis=1, keepdims=True))).sum(axis=0)
    counted = np.eye(len(reference))[labels][:, kept]
    by_reference = (counted / reference[kept] - 1.0) / len(labels)
    bias_changes = correction.changes[:, 1:][:, kept] - by_reference
    return np.asarray(bias_changes @ by_bias.T + np.outer(correction.changes[:, 0], by_exponent))


def by_moments(
    probs: Floats, known: Floats, labels: NDArray[np.intp], groups: NDArray[np.int64] | None
) -> FrequencyFit:
    """Return the estimate by moments, its influences, the information, its weakest direction."""
    n_classes = probs.shape[1]
    counts = np.bincount(labels, minlength=n_classes)
    spread = (np.eye(n_classes)[labels].T @ known + known.mean(axis=0)) / (counts + 1.0)[:, None]  # one sample shrunken
    by_class = spread.T
    prior = match_moments(probs.mean(axis=0), by_class)
    inverse = np.linalg.pinv(by_class)
    gaps = probs - by_class @ prior
    tested = (gaps if groups is None else sum_by_group(gaps, groups)) @ inverse.T / len(probs)
    weights = np.divide(prior, counts, out=np.zeros(n_classes), where=counts > 0)
    calibrated = ((known - spread[labels]) * weights[labels][:, None]) @ inverse.T
    of_means = by_class.T @ np.linalg.pinv(np.cov(probs.T), hermitian=True) @ by_class
    information, weakest = weakest_direction(of_means, (prior + counts / len(labels)) / 2)
    return FrequencyFit(MixtureFit(prior, 1, True), tested, calibrated, information, weakest)


def covariances(
    found: FrequencyFit, reference: Floats, known: Labelled | None, groups: NDArray[np.int64] | None
) -> tuple[Floats, Floats]:
    """Return the covariance of the estimate, and that of its difference from the counted reference.

    ``groups`` of the calibration samples vary as a whole.
    """
    of_rows = found.tested.T @ found.tested
    if found.calibrated is None or known is None:
        return of_rows, of_rows
    counted = (np.eye(len(reference))[known[1]] - reference) / len(known[1])
    parts = [found.calibrated, found.calibrated - counted]
    if groups is not None:
        parts = [sum_by_group(part, groups) for part in parts]
    return of_rows + parts[0].T @ parts[0], of_rows + parts[1].T @ parts[1]


def wilson_intervals(prior: Floats, variances: Floats, n_samples: int, quantile: float) -> tuple[Floats, Floats]:
    """Return Wilson's intervals of frequencies, for the numbers of labels that would have these variances."""
    spread = prior * (1.0 - prior)
    labels = np.divide(
        spread, variances, out=np.full(len(prior), float(n_samples)), where=(variances > 0) & (spread > 0)
    )
    excess = quantile**2 / labels
    reach = np.sqrt(excess * spread + excess**2 / 4)
    centre = prior + excess / 2
    return np.clip((centre - reach) / (1 + excess), 0.0, 1.0), np.clip((centre + reach) / (1 + excess), 0.0, 1.0)


def shrunken_to(prior: Floats, reference: Floats, covariance: Floats) -> Floats:
    """Return reference + c·(prior − reference), with c = 1 − Σ_k σ_k²/w_k / Σ_k (prior_k − reference_k)²/w_k, or 0.

    The change that is seen is the true one and its noise: c is the share of its square that is not noise (James and
    Stein; Efron and Morris). σ² are the variances, the diagonal of ``covariance``; the weights w, half way between
    prior and reference, measure changes as the log-loss does.
    """
    middle = np.maximum((prior + reference) / 2, np.finfo(np.float64).tiny)
    square = float(((prior - reference) ** 2 / middle).sum())
    noise = float((np.diag(covariance) / middle).sum())
    share = max(0.0, 1.0 - noise / square) if square > 0 else 0.0
    return np.asarray(reference + share * (prior - reference))


def p_value_of_no_change(prior: Floats, reference: Floats, covariance: Floats, n_groups: int | None = None) -> float:
    """Return the p-value of T = (prior − reference)ᵀ·Σ⁻¹·(prior − reference), as χ² with p degrees of freedom.

    If Σ is estimated from G groups, T is Hotelling's T²: T·(G − p)/((G − 1)·p) has an F distribution with p and G − p
    degrees of freedom; nan if there are too few groups.
    """
    change = prior - reference
    distance = float(change @ np.linalg.pinv(covariance, rcond=1e-10, hermitian=True) @ change)
    freedom = int(((prior > 0) | (reference > 0)).sum()) - 1
    if freedom == 0:
        return 1.0
    if n_groups is None:
        return float(chdtrc(freedom, distance))
    left = n_groups - freedom
    return float(fdtrc(freedom, left, distance * left / ((n_groups - 1) * freedom))) if left > 0 else float("nan")


def sum_by_group(rows: Floats, groups: NDArray[np.int64]) -> Floats:
    """Return the sums of the rows of each of G groups, times √(G/(G − 1)): unbiased if each group has its own mean."""
    places = np.unique(groups, return_inverse=True)[1]
    n_groups = int(places.max()) + 1
    sums = np.zeros((n_groups, rows.shape[1]))
    np.add.at(sums, places, rows)
    return np.asarray(sums * np.sqrt(n_groups / max(n_groups - 1, 1)))
