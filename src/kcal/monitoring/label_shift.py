"""Class frequencies of unlabelled samples, estimated from calibrated predictions.

Under label shift p(x | k) stays. The likelihood of frequencies π, up to a constant, is Π_i Σ_k π_k·r_ik, with
r_ik = p_ik / reference_k. Its logarithm is a concave function of π: expectation maximisation finds its maximum.
Predictions that are biased for a class lead it astray; a temperature and a bias per class, fitted to labelled
predictions, correct them first. The estimate, its covariance and the information of a prediction follow from the
derivatives of the likelihood at the maximum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize, nnls
from scipy.special import chdtrc, fdtrc, log_softmax, ndtri, stdtrit

from kcal.errors import ConvergenceWarning, IdentifiabilityWarning, InvalidInputError, warn
from kcal.monitoring.betting import Floats, sum_by_group
from kcal.validation import (
    ALMOST_ZERO,
    SUM_TOLERANCE,
    check_choice,
    check_groups,
    check_labels,
    check_number,
    check_probs,
    collect_classes,
    encode_labels,
    to_numbers,
)

Labelled = tuple[Floats, NDArray[np.intp]]
"""Predictions for calibration samples, (n, n_classes), and the columns of their labels, (n,)."""

METHODS = ("auto", "em", "corrected-em", "moments")
FEW_LABELS = 10.0
"""Number of labels that the samples must be as informative as, in the direction of least information."""
PENALTY = 1.0
"""Inverse variance of the prior of the bias of a class."""
SUM_WEIGHT = 1e3
"""Weight of the equation that frequencies sum to 1, beside those of the moments."""
MAX_SHOWN = 20


@dataclass(frozen=True, eq=False, kw_only=True)
class PriorEstimate:
    """Class frequencies of unlabelled samples, with intervals.

    Attributes
    ----------
    prior : array, (n_classes,)
        The estimate; it sums to 1.
    low, high : array, (n_classes,)
        Ends of the interval of each frequency.
    shrunken : array, (n_classes,)
        The estimate moved towards the reference as far as its noise suggests (James and Stein): the one to correct
        predictions with, ``calibrator.with_prior(estimate.shrunken)``.
    p_value : float
        Of the hypothesis that the frequencies are those of the reference; with groups by
        Hotelling's T², nan with fewer of them than classes.
    covariance : array, (n_classes, n_classes)
        Of the estimate.
    reference : array, (n_classes,)
        Class frequencies that the predictions assume.
    information : float
        What a prediction tells in the direction in which it tells least, in units of a label: 1 if predictions are
        certain, 0 if the frequencies cannot be identified.
    """

    prior: Floats
    low: Floats
    high: Floats
    shrunken: Floats
    p_value: float
    covariance: Floats = field(repr=False)
    reference: Floats = field(repr=False)
    classes: NDArray[Any] = field(repr=False)
    method: str
    confidence: float
    n_samples: int
    n_iterations: int
    converged: bool
    information: float

    @property
    def condition(self) -> float:
        """Ratio of the information of a label to that of a prediction, where it is largest."""
        return float("inf") if self.information == 0 else 1.0 / self.information

    def __str__(self) -> str:
        import pandas

        columns = {"reference": self.reference, "estimate": self.prior, "low": self.low, "high": self.high}
        table = pandas.DataFrame(columns, index=self.classes).to_string(
            max_rows=MAX_SHOWN, float_format="{:.4f}".format
        )
        title = f"class frequencies of {self.n_samples:,} samples, by {self.method}"
        interval = f"low and high: {100 * self.confidence:.6g} % interval"
        return f"{title}\n{table}\n{interval}\np-value of unchanged frequencies: {self.p_value:.3g}"


def estimate_prior(
    probs: ArrayLike,
    *,
    reference: ArrayLike | None = None,
    calibration_probs: ArrayLike | None = None,
    calibration_labels: ArrayLike | None = None,
    calibration_groups: ArrayLike | None = None,
    classes: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    method: str = "auto",
    strength: float | None = None,
    confidence: float = 0.95,
) -> PriorEstimate:
    """Estimate the class frequencies of unlabelled samples from their predictions.

    It is assumed that only the frequencies have changed, not how samples of a class look (label shift). The estimate
    maximises Σ_i log Σ_k π_k·p_ik/reference_k + strength·Σ_k reference_k·log π_k by expectation maximisation (Saerens,
    Latinne and Decaestecker, 2002), shrunken towards the reference.

    Parameters
    ----------
    probs
        Calibrated probabilities of the unlabelled samples, (n_samples, n_classes).
    reference
        Class frequencies that ``probs`` assume: ``prior_`` of a KCal or its blend, or the frequencies of the
        calibration set. With calibration predictions it is left out: their labels have the frequencies.
    calibration_probs, calibration_labels
        Predictions for labelled samples that the calibrator was not fitted on, such as ``leave_one_out_proba_`` of a
        KCal with its labels. A temperature and a bias per class are fitted to them first: predictions that are biased
        for a class lead expectation maximisation far astray.
    classes
        The label of every column, where ``calibration_labels`` are not columns.
    groups, calibration_groups
        Patients, sites of the unlabelled samples and of the calibration samples. Whole groups vary then: intervals are
        wider, and the shrunken estimate stays near the reference unless groups agree on a change. Pass them where
        there are any, because samples of a class look different from patient to patient.
    method : "auto", "em", "corrected-em" or "moments"
        "corrected-em" needs calibration predictions and is "auto" with them; "em" does without. "moments" solves
        Σ_k π_k·(mean prediction of class k) = mean prediction, without the correction: consistent for any predictions,
        noisy where classes are rare.
    strength
        Weight of the reference, in samples: one per class if None; 0 for maximum likelihood.
    confidence
        Of the intervals. Their variance is from the curvature of the likelihood, for the sampling of the rows and, with
        calibration predictions, that of the calibration set; their ends are Wilson's for as many labels as have this
        variance, with Student's quantile if there are groups.

    Warns
    -----
    IdentifiabilityWarning
        If predictions say too little of some frequencies.
    """
    given = None if classes is None else collect_classes([], classes)
    checked = np.asarray(check_probs(probs, n_classes=None if given is None else len(given)), dtype=np.float64)
    n_samples, n_classes = checked.shape
    names = np.arange(n_classes) if given is None else given
    if len(names) != n_classes:
        raise InvalidInputError("classes", f"must name every column of probs ({n_classes})", got=f"{len(names)}")
    confidence = check_number(confidence, "confidence", minimum=0, maximum=1, exclusive=True)
    strength = n_classes if strength is None else check_number(strength, "strength", minimum=0)
    codes = None if groups is None else check_groups(groups, n_samples)
    known = _check_calibration(calibration_probs, calibration_labels, names)
    check_choice(method, "method", METHODS)
    if method == "auto":
        method = "em" if known is None else "corrected-em"
    missing = {"calibration_probs": method != "em", "calibration_groups": calibration_groups is not None}
    if known is None and any(missing.values()):
        name = next(name for name, is_needed in missing.items() if is_needed)
        remedy = "Pass calibration_probs, such as leave_one_out_proba_ of a KCal, and calibration_labels."
        raise InvalidInputError(name, "needs calibration predictions and labels", remedy=remedy)
    known_codes = None
    if known is not None and calibration_groups is not None:
        known_codes = check_groups(calibration_groups, len(known[1]), "calibration_groups")
    assumed = _check_reference(reference, n_classes, known)
    if known is not None and method == "moments":
        found = _by_moments(checked, *known, codes)
    else:
        correction = fit_bias_correction(*known) if known is not None and method == "corrected-em" else None
        found = _by_mixture(checked, assumed, correction, known, codes, float(strength))
    _warn(found, n_samples, names)
    covariance, of_change = _covariances(found, assumed, known, known_codes)
    n_groups = min((len(np.unique(each)) for each in (codes, known_codes) if each is not None), default=None)
    level = 0.5 + confidence / 2
    quantile = float(ndtri(level) if n_groups is None else stdtrit(max(n_groups - 1, 1), level))
    low, high = _wilson_intervals(found.prior, np.diag(covariance), n_samples, quantile)
    return PriorEstimate(
        prior=found.prior,
        low=low,
        high=high,
        shrunken=_shrink(found.prior, assumed, of_change),
        p_value=_p_value_of_no_change(found.prior, assumed, of_change, n_groups),
        covariance=covariance,
        reference=assumed,
        classes=names,
        method=method,
        confidence=confidence,
        n_samples=n_samples,
        n_iterations=found.n_iterations,
        converged=found.converged,
        information=found.information,
    )


def adjust_prior(probs: ArrayLike, prior: ArrayLike, reference: ArrayLike) -> Floats:
    """Return p_k·prior_k/reference_k, normalised: predictions for other class frequencies, (n_samples, n_classes).

    For methods without ``with_prior``; ``reference`` are the class frequencies of their calibration set. A row whose
    probability is all on classes that ``prior`` excludes becomes the prior.
    """
    checked = np.asarray(check_probs(probs), dtype=np.float64)
    new, assumed = (
        _check_frequencies(values, name, checked.shape[1])
        for values, name in ((prior, "prior"), (reference, "reference"))
    )
    weighted = checked * np.divide(new, assumed, out=np.zeros(len(new)), where=assumed > 0)
    sums = weighted.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(weighted, sums, out=np.broadcast_to(new, weighted.shape).copy(), where=sums > 0))


def _check_calibration(probs: Any, labels: Any, names: NDArray[Any]) -> Labelled | None:
    """Return calibration predictions and the columns of their labels, or None without them."""
    if probs is None and labels is None:
        return None
    if probs is None or labels is None:
        missing = "calibration_probs" if probs is None else "calibration_labels"
        raise InvalidInputError(missing, "must be passed too: predictions and labels of the calibration set")
    checked = np.asarray(check_probs(probs, "calibration_probs", n_classes=len(names)), dtype=np.float64)
    if checked.shape[1] != len(names):
        expected = f"must have the columns of probs ({len(names)})"
        raise InvalidInputError("calibration_probs", expected, got=f"{checked.shape[1]}")
    known = check_labels(labels, len(checked), "calibration_labels")
    return checked, encode_labels(known, names, "calibration_labels").astype(np.intp)


def _check_reference(reference: Any, n_classes: int, known: Labelled | None) -> Floats:
    """Return the class frequencies that predictions assume: as given, or those of the calibration labels."""
    if (known is None) == (reference is None):
        expected = "must be passed, or calibration predictions with their labels: exactly one of the two"
        raise InvalidInputError("reference", expected)
    if known is not None:
        return np.asarray(np.bincount(known[1], minlength=n_classes) / len(known[1]))
    return _check_frequencies(reference, "reference", n_classes)


def _check_frequencies(values: Any, name: str, n_classes: int) -> Floats:
    """Return class frequencies, (n_classes,), that sum to 1."""
    array = to_numbers(values, name).astype(np.float64)
    if array.shape != (n_classes,):
        raise InvalidInputError(name, f"must have one entry per class ({n_classes})", got=f"shape {array.shape}")
    if not (np.isfinite(array).all() and (array >= 0).all() and abs(array.sum() - 1.0) < SUM_TOLERANCE):
        raise InvalidInputError(name, "must be frequencies that sum to 1", got=f"a sum of {array.sum():.4g}")
    return np.asarray(array / array.sum())


def _warn(found: FrequencyFit, n_samples: int, names: NDArray[Any]) -> None:
    """Warn if the maximum was not reached, or if predictions say too little of some frequencies."""
    if not found.converged:
        warn(f"Expectation maximisation did not converge in {found.n_iterations:,} iterations.", ConvergenceWarning)
    n_labels = found.information * n_samples
    if n_labels < FEW_LABELS:
        more, less = names[int(found.weakest.argmax())], names[int(found.weakest.argmin())]
        warn(
            f"The predictions hardly distinguish the frequencies of {more!s} and {less!s}: {n_samples:,} of them tell "
            f"as much as {n_labels:.2g} labels.",
            IdentifiabilityWarning,
            remedy="Label some samples, merge these classes, or shrink the estimate with a larger strength.",
        )


@dataclass(frozen=True, eq=False)
class BiasCorrection:
    """An exponent and a bias per class; ``changes``, (n, 1 + n_classes), are the influence of each labelled sample."""

    exponent: float
    bias: Floats
    changes: Floats

    def apply(self, probs: Floats) -> Floats:
        """Return corrected probabilities, (n, n_classes)."""
        return np.asarray(np.exp(log_softmax(self.exponent * _log(probs) + self.bias, axis=1)))


def _log(probs: Floats) -> Floats:
    """Return logarithms, of at least 1e-12."""
    return np.log(np.maximum(probs, ALMOST_ZERO))


def fit_bias_correction(probs: Floats, labels: NDArray[np.intp]) -> BiasCorrection:
    """Fit to labelled predictions that the calibrator was not fitted on; ``labels`` are columns."""
    logs, targets = _log(probs), np.eye(probs.shape[1])[labels]

    def loss_and_gradient(parameters: Floats) -> tuple[float, Floats]:
        log_probs = log_softmax(parameters[0] * logs + parameters[1:], axis=1)
        errors = np.exp(log_probs) - targets
        bias = parameters[1:]
        loss = -(log_probs * targets).sum() + 0.5 * PENALTY * bias @ bias
        gradient = np.append((errors * logs).sum(), errors.sum(axis=0) + PENALTY * bias)
        return loss / len(labels), gradient / len(labels)

    start = np.append(1.0, np.zeros(probs.shape[1]))
    bounds = [(1e-3, 1e3)] + [(None, None)] * probs.shape[1]
    found = minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    fitted = np.exp(log_softmax(found[0] * logs + found[1:], axis=1))
    return BiasCorrection(float(found[0]), found[1:], _influences(logs, fitted, targets))


def _influences(logs: Floats, fitted: Floats, targets: Floats) -> Floats:
    """Return H⁻¹·(−gradient) of each sample, (n, 1 + n_classes); H is the Hessian of the penalised loss."""
    n_classes = logs.shape[1]
    centred = logs - (fitted * logs).sum(axis=1, keepdims=True)
    hessian = np.empty((1 + n_classes, 1 + n_classes))
    hessian[0, 0] = (fitted * centred * logs).sum()
    hessian[0, 1:] = hessian[1:, 0] = (fitted * centred).sum(axis=0)
    hessian[1:, 1:] = np.diag(fitted.sum(axis=0)) - fitted.T @ fitted + PENALTY * np.eye(n_classes)
    errors = targets - fitted
    gradients = np.column_stack([(errors * logs).sum(axis=1), errors])
    return np.asarray(gradients @ np.linalg.pinv(hessian))


def _fit_mixture(
    ratios: Floats, start: Floats, *, strength: float, tolerance: float = 1e-9, max_iterations: int = 5_000
) -> tuple[Floats, int, bool]:
    """Maximise Σ_i log Σ_k π_k·r_ik + strength·Σ_k start_k·log π_k by expectation maximisation.

    π_k ← (Σ_i π_k·r_ik / Σ_j π_j·r_ij + strength·start_k) / (n + strength), from ``start``. Return π, the number of
    iterations and whether they converged.
    """
    prior, total = start, len(ratios) + strength
    for iteration in range(1, max_iterations + 1):
        before = prior
        prior = (before * (ratios.T @ (1.0 / (ratios @ before))) + strength * start) / total
        prior = prior / prior.sum()
        if np.abs(prior - before).sum() < tolerance:
            return prior, iteration, True
    return prior, max_iterations, False


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
    return Scores(kept, posteriors, gradients, basis, curvature, *_information_between(ratios, prior, reference))


def _information_between(ratios: Floats, prior: Floats, reference: Floats) -> tuple[float, Floats]:
    """Return the smallest information of a row and its direction, half way between the estimate and the reference.

    There no class is absent, as it may be in the estimate. Rows are weighted as if drawn from those frequencies.
    """
    middle = (prior + reference) / 2
    densities = ratios @ middle
    weights = densities / (ratios @ prior)
    gradients = ratios / densities[:, None]
    return _weakest_direction((gradients * weights[:, None]).T @ gradients / weights.sum(), middle)


def _weakest_direction(information: Floats, prior: Floats) -> tuple[float, Floats]:
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


def _match_moments(means: Floats, by_class: Floats) -> Floats:
    """Return frequencies π ≥ 0, Σ π = 1, with the smallest ‖C·π − m‖².

    ``means`` is m, (n_classes,), the mean prediction; column k of C, ``by_class``, is that of the samples of class k.
    """
    equations = np.vstack([by_class, SUM_WEIGHT * np.ones(len(means))])
    solution, _ = nnls(equations, np.append(means, SUM_WEIGHT), maxiter=100 * len(means))
    return np.asarray(solution / solution.sum())


@dataclass(frozen=True, eq=False)
class FrequencyFit:
    """An estimate, the changes of it that each sample and each calibration sample brings, and its information.

    ``tested``, (m, n_classes), has a row per sample or group; ``calibrated`` is None without calibration predictions.
    ``information`` of a prediction is in units of a label, in the direction ``weakest`` in which it is smallest.
    """

    prior: Floats
    n_iterations: int
    converged: bool
    tested: Floats
    calibrated: Floats | None
    information: float
    weakest: Floats


def _by_mixture(
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
    fit = _fit_mixture(ratios, reference, strength=strength)
    scores = scores_at(ratios, fit[0], reference, strength)
    gradients = scores.gradients - 1.0
    tested = scores.influence(gradients if groups is None else _sum_by_group(gradients, groups[told]))
    if correction is None or known is None:
        return FrequencyFit(*fit, tested, None, scores.information, scores.weakest)
    changes = _calibration_scores(scores, _log(probs[told]), correction, reference, known[1])
    return FrequencyFit(*fit, tested, scores.influence(changes), scores.information, scores.weakest)


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


def _by_moments(
    probs: Floats, known: Floats, labels: NDArray[np.intp], groups: NDArray[np.int64] | None
) -> FrequencyFit:
    """Return the estimate by moments, its influences, the information, its weakest direction."""
    n_classes = probs.shape[1]
    counts = np.bincount(labels, minlength=n_classes)
    spread = (np.eye(n_classes)[labels].T @ known + known.mean(axis=0)) / (counts + 1.0)[:, None]  # one sample shrunken
    by_class = spread.T
    prior = _match_moments(probs.mean(axis=0), by_class)
    inverse = np.linalg.pinv(by_class)
    gaps = probs - by_class @ prior
    tested = (gaps if groups is None else _sum_by_group(gaps, groups)) @ inverse.T / len(probs)
    weights = np.divide(prior, counts, out=np.zeros(n_classes), where=counts > 0)
    calibrated = ((known - spread[labels]) * weights[labels][:, None]) @ inverse.T
    of_means = by_class.T @ np.linalg.pinv(np.cov(probs.T), hermitian=True) @ by_class
    information, weakest = _weakest_direction(of_means, (prior + counts / len(labels)) / 2)
    return FrequencyFit(prior, 1, True, tested, calibrated, information, weakest)


def _covariances(
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
        parts = [_sum_by_group(part, groups) for part in parts]
    return of_rows + parts[0].T @ parts[0], of_rows + parts[1].T @ parts[1]


def _wilson_intervals(prior: Floats, variances: Floats, n_samples: int, quantile: float) -> tuple[Floats, Floats]:
    """Return Wilson's intervals of frequencies, for the numbers of labels that would have these variances."""
    spread = prior * (1.0 - prior)
    labels = np.divide(
        spread, variances, out=np.full(len(prior), float(n_samples)), where=(variances > 0) & (spread > 0)
    )
    excess = quantile**2 / labels
    reach = np.sqrt(excess * spread + excess**2 / 4)
    centre = prior + excess / 2
    return np.clip((centre - reach) / (1 + excess), 0.0, 1.0), np.clip((centre + reach) / (1 + excess), 0.0, 1.0)


def _shrink(prior: Floats, reference: Floats, covariance: Floats) -> Floats:
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


def _p_value_of_no_change(prior: Floats, reference: Floats, covariance: Floats, n_groups: int | None = None) -> float:
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


def _sum_by_group(rows: Floats, groups: NDArray[np.int64]) -> Floats:
    """Return the sums of the rows of each of G groups, times √(G/(G − 1)): unbiased if each group has its own mean."""
    codes = np.unique(groups, return_inverse=True)[1]
    n_groups = int(codes.max()) + 1
    return np.asarray(sum_by_group(rows, codes) * np.sqrt(n_groups / max(n_groups - 1, 1)))
