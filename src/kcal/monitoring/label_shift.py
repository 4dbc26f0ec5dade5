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
from scipy.optimize import minimize
from scipy.special import chdtrc, fdtrc, log_softmax, ndtri, stdtrit

from kcal.errors import ConvergenceWarning, IdentifiabilityWarning, InvalidInputError, warn
from kcal.monitoring.betting import Floats, check_named_probs, sum_by_group
from kcal.validation import (
    ALMOST_ZERO,
    check_frequencies,
    check_groups,
    check_labels,
    check_number,
    check_probs,
    encode_labels,
)

Labelled = tuple[Floats, NDArray[np.intp]]
"""Predictions for calibration samples, (n, n_classes), and the columns of their labels, (n,)."""

FEW_LABELS = 10.0
"""Number of labels that the samples must be as informative as, in the direction of least information."""
MAX_STRENGTH = 1e9
PENALTY = 1.0
"""Inverse variance of the prior of the bias of a class."""
MAX_ITERATIONS, TOLERANCE = 5_000, 1e-9
"""Of expectation maximisation; it ends when all frequencies together change by less."""
MIN_FREQUENCY = 1e-12
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
    checked, names = check_named_probs(probs, classes)
    n_samples, n_classes = checked.shape
    confidence = check_number(confidence, "confidence", minimum=0, maximum=1, exclusive=True)
    strength = n_classes if strength is None else strength
    strength = check_number(strength, "strength", minimum=0, maximum=MAX_STRENGTH)
    codes = None if groups is None else check_groups(groups, n_samples, minimum=2)
    known, known_codes = _check_calibration(calibration_probs, calibration_labels, calibration_groups, names)
    assumed = _check_reference(reference, n_classes, known)
    correction = None if known is None else _fit_bias_correction(*known)
    corrected = checked if correction is None else correction.apply(checked)
    ratios = np.divide(corrected, assumed, out=np.zeros(checked.shape), where=assumed > 0)
    told = ratios.any(axis=1)
    if not told.any():
        raise InvalidInputError("reference", "gives nothing to the classes of the predictions")
    ratios = ratios[told]
    prior, n_iterations, converged = _fit_mixture(ratios, assumed, strength)
    information, direction = _min_information(ratios, prior, assumed)
    _warn_low_information(information, direction, n_samples, names)
    maximum = _Maximum(ratios, prior, assumed, strength)
    influences = maximum.influence(maximum.gradients - 1.0)
    covariance = of_change = _covariance(influences, None if codes is None else codes[told])
    if correction is not None and known is not None:
        scores = maximum.calibration_scores(_log(checked[told]), correction, assumed, known[1])
        influences = maximum.influence(scores)
        counted = (np.eye(n_classes)[known[1]] - assumed) / len(known[1])
        of_change = covariance + _covariance(influences - counted, known_codes)
        covariance = covariance + _covariance(influences, known_codes)
    n_groups = min((len(np.unique(each)) for each in (codes, known_codes) if each is not None), default=None)
    level = 0.5 + confidence / 2
    quantile = float(ndtri(level) if n_groups is None else stdtrit(max(n_groups - 1, 1), level))
    low, high = _wilson_intervals(prior, np.diag(covariance), n_samples, quantile)
    return PriorEstimate(
        prior=prior,
        low=low,
        high=high,
        shrunken=_shrink(prior, assumed, of_change),
        p_value=_p_value_of_no_change(prior, assumed, of_change, n_groups),
        covariance=covariance,
        reference=assumed,
        classes=names,
        method="em" if known is None else "corrected-em",
        confidence=confidence,
        n_samples=n_samples,
        n_iterations=n_iterations,
        converged=converged,
        information=information,
    )


def adjust_prior(probs: ArrayLike, prior: ArrayLike, reference: ArrayLike) -> Floats:
    """Return p_k·prior_k/reference_k, normalised: predictions for other class frequencies, (n_samples, n_classes).

    For methods without ``with_prior``; ``reference`` are the class frequencies of their calibration set. A row whose
    probability is all on classes that ``prior`` excludes becomes the prior.
    """
    checked = np.asarray(check_probs(probs), dtype=np.float64)
    new, assumed = (
        check_frequencies(values, checked.shape[1], name)
        for values, name in ((prior, "prior"), (reference, "reference"))
    )
    weighted = checked * np.divide(new, assumed, out=np.zeros(len(new)), where=assumed > 0)
    sums = weighted.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(weighted, sums, out=np.broadcast_to(new, weighted.shape).copy(), where=sums > 0))


def _check_calibration(
    probs: Any, labels: Any, groups: Any, names: NDArray[Any]
) -> tuple[Labelled | None, NDArray[np.int64] | None]:
    """Return calibration predictions with the columns of their labels, and codes of their groups; None without them."""
    given = {"calibration_probs": probs, "calibration_labels": labels}
    missing = [name for name, values in given.items() if values is None]
    if missing and (len(missing) == 1 or groups is not None):
        remedy = "Pass calibration_probs, such as leave_one_out_proba_ of a KCal, and calibration_labels."
        raise InvalidInputError(missing[0], "must be passed with the other calibration arguments", remedy=remedy)
    if missing:
        return None, None
    checked, _ = check_named_probs(probs, names, "calibration_probs")
    known = check_labels(labels, len(checked), "calibration_labels")
    codes = None if groups is None else check_groups(groups, len(checked), "calibration_groups", minimum=2)
    return (checked, encode_labels(known, names, "calibration_labels").astype(np.intp)), codes


def _check_reference(reference: Any, n_classes: int, known: Labelled | None) -> Floats:
    """Return the class frequencies that predictions assume: as given, or those of the calibration labels."""
    if (known is None) == (reference is None):
        expected = "must be passed, or calibration predictions with their labels: exactly one of the two"
        raise InvalidInputError("reference", expected)
    if known is not None:
        return np.asarray(np.bincount(known[1], minlength=n_classes) / len(known[1]))
    return check_frequencies(reference, n_classes, "reference")


def _warn_low_information(information: float, direction: Floats, n_samples: int, names: NDArray[Any]) -> None:
    """Warn if predictions say too little of some frequencies, those that differ in ``direction``."""
    n_labels = information * n_samples
    if n_labels < FEW_LABELS:
        more, less = names[int(direction.argmax())], names[int(direction.argmin())]
        warn(
            f"The predictions hardly distinguish the frequencies of {more!s} and {less!s}: {n_samples:,} of them tell "
            f"as much as {n_labels:.2g} labels.",
            IdentifiabilityWarning,
            remedy="Label some samples, merge these classes, or shrink the estimate with a larger strength.",
        )


@dataclass(frozen=True, eq=False)
class _BiasCorrection:
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


def _fit_bias_correction(probs: Floats, labels: NDArray[np.intp]) -> _BiasCorrection:
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
    return _BiasCorrection(float(found[0]), found[1:], _influences(logs, fitted, targets))


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


def _fit_mixture(ratios: Floats, start: Floats, strength: float) -> tuple[Floats, int, bool]:
    """Maximise Σ_i log Σ_k π_k·r_ik + strength·Σ_k start_k·log π_k by expectation maximisation.

    π_k ← (Σ_i π_k·r_ik / Σ_j π_j·r_ij + strength·start_k) / (n + strength), from ``start``. Return π, the number of
    iterations and whether they converged.
    """
    prior, total = start, len(ratios) + strength
    for iteration in range(1, MAX_ITERATIONS + 1):
        before = prior
        prior = (before * (ratios.T @ (1.0 / (ratios @ before))) + strength * start) / total
        prior = prior / prior.sum()
        if np.abs(prior - before).sum() < TOLERANCE:
            return prior, iteration, True
    warn(f"Expectation maximisation did not converge in {MAX_ITERATIONS:,} iterations.", ConvergenceWarning)
    return prior, MAX_ITERATIONS, False


class _Maximum:
    """The penalised log likelihood at its maximum ``prior``, on the classes of positive frequency.

    Directions of the simplex sum to 0: ``basis``, (n_kept, n_kept − 1), spans them. ``curvature`` is −∂²/∂π² along it.
    """

    def __init__(self, ratios: Floats, prior: Floats, reference: Floats, strength: float) -> None:
        self.kept = prior > MIN_FREQUENCY
        weights = prior[self.kept]
        joint = ratios[:, self.kept] * weights
        self.posteriors: Floats = joint / joint.sum(axis=1, keepdims=True)  # q, (n, n_kept), under the estimate
        self.gradients: Floats = self.posteriors / weights  # q / π
        self.basis: Floats = np.linalg.svd(np.ones((1, len(weights))))[2][1:].T
        penalty = np.diag(strength * reference[self.kept] / weights**2)
        self.curvature: Floats = self.basis.T @ (self.gradients.T @ self.gradients + penalty) @ self.basis

    def influence(self, scores: Floats) -> Floats:
        """Return changes of the estimate, (m, n_classes), for changes of the gradient, (m, n_kept)."""
        changes = np.zeros((len(scores), len(self.kept)))
        if self.basis.shape[1]:
            changes[:, self.kept] = scores @ self.basis @ np.linalg.pinv(self.curvature) @ self.basis.T
        return changes

    def calibration_scores(
        self, logs: Floats, correction: _BiasCorrection, reference: Floats, labels: NDArray[np.intp]
    ) -> Floats:
        """Return how each calibration sample changes the gradient, (n_calibration, n_kept).

        By the correction, ∂(q_k/π_k)/∂b_j = (q_k/π_k)·(δ_jk − q_j), likewise for the exponent with log p in place of δ;
        and by the reference, whose logarithm has the opposite sign of the bias.
        """
        kept, posteriors, gradients = self.kept, self.posteriors, self.gradients
        by_bias = np.diag(gradients.sum(axis=0)) - gradients.T @ posteriors
        own = logs[:, kept]
        by_exponent = (gradients * (own - (posteriors * own).sum(axis=1, keepdims=True))).sum(axis=0)
        counted = np.eye(len(reference))[labels][:, kept]
        by_reference = (counted / reference[kept] - 1.0) / len(labels)
        bias_changes = correction.changes[:, 1:][:, kept] - by_reference
        return np.asarray(bias_changes @ by_bias.T + np.outer(correction.changes[:, 0], by_exponent))


def _min_information(ratios: Floats, prior: Floats, reference: Floats) -> tuple[float, Floats]:
    """Return the smallest information of a row in units of that of a label, 0 to 1, and its direction, (n_classes,).

    It is computed half way between the estimate and the reference, where no class is absent, as it may be in the
    estimate; rows are weighted as if drawn from those frequencies π. A label has the information diag(1/π): relative to
    it, that of a prediction is D·I·D with D = diag(√π), on the directions orthogonal to √π.
    """
    middle = (prior + reference) / 2
    densities = ratios @ middle
    weights = densities / (ratios @ prior)
    gradients = ratios / densities[:, None]
    information = (gradients * weights[:, None]).T @ gradients / weights.sum()
    kept = middle > MIN_FREQUENCY
    roots, direction = np.sqrt(middle[kept]), np.zeros(len(middle))
    if len(roots) < 2:
        return 1.0, direction
    tangent = np.linalg.svd(roots[None])[2][1:].T
    relative = roots[:, None] * information[np.ix_(kept, kept)] * roots
    values, vectors = np.linalg.eigh(tangent.T @ relative @ tangent)
    direction[kept] = roots * (tangent @ vectors[:, 0])
    return float(np.clip(values[0], 0.0, 1.0)), direction


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


def _covariance(influences: Floats, groups: NDArray[np.int64] | None) -> Floats:
    """Return Σ_i influence_i·influence_iᵀ, of rows or of the sums of G groups, times G/(G − 1): unbiased then."""
    if groups is None:
        return influences.T @ influences
    codes = np.unique(groups, return_inverse=True)[1]
    sums, n_groups = sum_by_group(influences, codes), int(codes.max()) + 1
    return np.asarray(sums.T @ sums * (n_groups / max(n_groups - 1, 1)))
