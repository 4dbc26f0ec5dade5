"""Class frequencies of unlabelled samples, estimated from calibrated predictions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit

from kcal.errors import ConvergenceWarning, IdentifiabilityWarning, InvalidInputError, warn
from kcal.monitoring.bias_correction import fit_bias_correction
from kcal.monitoring.frequency_estimates import (
    FrequencyFit,
    Labelled,
    by_mixture,
    by_moments,
    covariances,
    p_value_of_no_change,
    shrunken_to,
    wilson_intervals,
)
from kcal.monitoring.mixture import Floats
from kcal.validation import (
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

METHODS = ("auto", "em", "corrected-em", "moments")
FEW_LABELS = 10.0
"""Number of labels that the samples must be as informative as, in the direction of least information."""
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
        names = [str(name) for name in self.classes[:MAX_SHOWN]]
        width = max(map(len, names))
        lines = [f"class frequencies of {self.n_samples:,} samples, by {self.method}"]
        lines.append(f"{'':<{width}}  {'reference':>9}  {'estimate':>9}  {100 * self.confidence:.6g} % interval")
        for name, *row in zip(names, self.reference, self.prior, self.low, self.high, strict=False):
            lines.append("{:<{}}  {:>9.4f}  {:>9.4f}  [{:.4f}, {:.4f}]".format(name, width, *row))
        if len(self.classes) > MAX_SHOWN:
            lines.append(f"… and {len(self.classes) - MAX_SHOWN} more classes")
        lines.append(f"p-value of unchanged frequencies: {self.p_value:.3g}")
        return "\n".join(lines)


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
    known_codes = _check_calibration_groups(calibration_groups, known)
    method = _choose(check_choice(method, "method", METHODS), with_calibration=known is not None)
    assumed = _check_reference(reference, n_classes, known)
    if method == "moments":
        assert known is not None
        found = by_moments(checked, *known, codes)
    else:
        correction = fit_bias_correction(*known) if method == "corrected-em" and known is not None else None
        found = by_mixture(checked, assumed, correction, known, codes, float(strength))
    fit = found.fit
    _warn(found, n_samples, names)
    covariance, of_change = covariances(found, assumed, known, known_codes)
    n_groups = min((len(np.unique(each)) for each in (codes, known_codes) if each is not None), default=None)
    level = 0.5 + confidence / 2
    quantile = float(ndtri(level) if n_groups is None else stdtrit(max(n_groups - 1, 1), level))
    low, high = wilson_intervals(fit.prior, np.diag(covariance), n_samples, quantile)
    return PriorEstimate(
        prior=fit.prior,
        low=low,
        high=high,
        shrunken=shrunken_to(fit.prior, assumed, of_change),
        p_value=p_value_of_no_change(fit.prior, assumed, of_change, n_groups),
        covariance=covariance,
        reference=assumed,
        classes=names,
        method=method,
        confidence=confidence,
        n_samples=n_samples,
        n_iterations=fit.n_iterations,
        converged=fit.converged,
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


def _choose(method: str, *, with_calibration: bool) -> str:
    if method == "auto":
        return "corrected-em" if with_calibration else "em"
    if method != "em" and not with_calibration:
        remedy = "Pass them, leave_one_out_proba_ of a KCal for example, or choose the method “em”."
        raise InvalidInputError("calibration_probs", f"are needed for the method {method!r}", remedy=remedy)
    return method


def _check_calibration(probs: Any, labels: Any, names: NDArray[Any]) -> Labelled | None:
    """Return calibration predictions and the columns of their labels, or None without them."""
    if probs is None and labels is None:
        return None
    if probs is None or labels is None:
        missing = "calibration_probs" if probs is None else "calibration_labels"
        raise InvalidInputError(missing, "must be passed too: predictions and labels of the calibration set")
    checked = np.asarray(check_probs(probs, "calibration_probs", n_classes=len(names)), dtype=np.float64)
    if checked.shape[1] != len(names):
        raise InvalidInputError(
            "calibration_probs", f"must have the columns of probs ({len(names)})", got=f"{checked.shape[1]}"
        )
    known = check_labels(labels, len(checked), "calibration_labels")
    return checked, encode_labels(known, names, "calibration_labels").astype(np.intp)


def _check_calibration_groups(groups: Any, known: Labelled | None) -> NDArray[np.int64] | None:
    if groups is None:
        return None
    if known is None:
        raise InvalidInputError("calibration_groups", "need calibration predictions", remedy="Pass both, or neither.")
    return check_groups(groups, len(known[1]), "calibration_groups")


def _check_reference(reference: Any, n_classes: int, known: Labelled | None) -> Floats:
    """Return the class frequencies that predictions assume: as given, or those of the calibration labels."""
    if known is not None and reference is not None:
        expected = "must not be passed with calibration predictions, whose labels have the frequencies"
        raise InvalidInputError("reference", expected, remedy="Leave it out.")
    if known is not None:
        return np.asarray(np.bincount(known[1], minlength=n_classes) / len(known[1]))
    if reference is None:
        remedy = "Pass the class frequencies of the calibration set, or its predictions and labels."
        raise InvalidInputError("reference", "is needed without calibration predictions", remedy=remedy)
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
    if not found.fit.converged:
        warn(f"Expectation maximisation did not converge in {found.fit.n_iterations:,} iterations.", ConvergenceWarning)
    n_labels = found.information * n_samples
    if n_labels < FEW_LABELS:
        more, less = names[int(found.weakest.argmax())], names[int(found.weakest.argmin())]
        warn(
            f"The predictions hardly distinguish the frequencies of {more!s} and {less!s}: {n_samples:,} of them tell "
            f"as much as {n_labels:.2g} labels.",
            IdentifiabilityWarning,
            remedy="Label some samples, merge these classes, or shrink the estimate with a larger strength.",
        )
