"""Debiased squared calibration errors, and Murphy's decomposition of the Brier score."""

from dataclasses import astuple, dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from kcal.metrics.binning import ROUNDING, bin_event, sort_weighted
from kcal.metrics.predictions import Binning, Event, Predictions, check_binned, check_event
from kcal.validation import check_flag


def debiased_squared_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 20,
    adaptive: bool = True,
    of: Event = "confidence",
    sample_weight: ArrayLike | None = None,
) -> float:
    """Σ_b (n_b / n)·(gap_b² − s_b² / n_b): an unbiased estimate of the mean squared gap of the bins.

    A gap is a mean of n_b residuals y − p, so that noise increases the expectation of its square by their variance
    over n_b; s_b² is their sample variance. With equal predictions in a bin this is the estimator of Kumar, Liang and
    Ma (2019). Bins of one sample are left out; the number of equal-count bins is limited so that each holds two. It
    can be negative: calibrated predictions give 0 on average. nan if no bin holds two samples.

    Parameters
    ----------
    probs, labels, bins, adaptive, of
        As in `reliability`.
    sample_weight
        Relative importance of each sample, (n_samples,). With weights, s_b² / n_b becomes the variance of a weighted
        mean, s_b²·Σw² / (Σw)², with s_b² = Σw·(r − gap_b)² / (Σw − Σw² / Σw).
    """
    predictions, binning = check_binned(probs, labels, sample_weight, bins=bins, adaptive=adaptive)
    return _debiased(predictions, binning, check_event(of, predictions.n_classes))


def marginal_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 20,
    adaptive: bool = True,
    debiased: bool = True,
    sample_weight: ArrayLike | None = None,
) -> float:
    """√(mean over classes of the squared calibration error of p_k), over all rows, without a threshold.

    The marginal calibration error of Kumar, Liang and Ma (2019), with equal weight per class. Debiased, the squared
    error of each class is that of `debiased_squared_calibration_error`, and a negative mean counts as 0.

    Parameters
    ----------
    probs, labels, bins, adaptive, sample_weight
        As in `expected_calibration_error`.
    debiased
        Whether to subtract the bias of squared gaps.
    """
    predictions, binning = check_binned(probs, labels, sample_weight, bins=bins, adaptive=adaptive)
    squared_error = _debiased if check_flag(debiased, "debiased") else _plain
    squares = [squared_error(predictions, binning, k) for k in range(predictions.n_classes)]
    return float(np.sqrt(max(float(np.mean(squares)), 0.0)))


def top_label_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 20,
    adaptive: bool = True,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Calibration error of the confidence, given which class is on top: Σ_k (n_k / n)·ECE of the rows with top class k.

    Gupta and Ramdas (2022): confidences of 0.7 can be right on average, and yet too high whenever the answer is "cat"
    and too low whenever it is "dog".

    Parameters
    ----------
    probs, labels, bins, adaptive, sample_weight
        As in `expected_calibration_error`; the number of bins is per top class.
    """
    predictions, binning = check_binned(probs, labels, sample_weight, bins=bins, adaptive=adaptive)
    total = 0.0
    for k in np.unique(predictions.top_classes):
        rows = predictions.top_classes == k
        part = predictions.rows(rows)
        if part.weights is None or part.weights.any():
            total += predictions.mean(rows) * bin_event(part, binning, of="confidence").calibration_error
    return total


@dataclass(frozen=True)
class MurphyDecomposition:
    """Brier score = reliability − resolution + uncertainty + within_bins."""

    brier: float
    reliability: float  # Σ_b (n_b / n)·(mean prediction_b − frequency_b)², which calibration can reduce
    resolution: float  # Σ_b (n_b / n)·(frequency_b − overall frequency)², how well predictions separate the events
    uncertainty: float  # overall frequency times one minus it, which does not depend on the predictions
    within_bins: float  # variance of the predictions within bins, minus twice their covariance with the outcomes


def murphy_decomposition(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 20,
    adaptive: bool = True,
    of: Literal["classes", "confidence"] | int = "classes",
    sample_weight: ArrayLike | None = None,
) -> MurphyDecomposition:
    """Murphy's (1973) decomposition of the Brier score over bins of the prediction.

    Parameters
    ----------
    probs, labels, bins, adaptive, sample_weight
        As in `expected_calibration_error`.
    of
        "classes": the mean over all classes, whose Brier score is `multiclass_brier_loss`; "confidence": of the top
        class, whose Brier score is `top_label_brier_loss`; or the index of a class.
    """
    predictions, binning = check_binned(probs, labels, sample_weight, bins=bins, adaptive=adaptive)
    if isinstance(of, str) and of == "classes":
        parts = [astuple(_murphy(predictions, binning, k)) for k in range(predictions.n_classes)]
        return MurphyDecomposition(*np.mean(parts, axis=0).tolist())
    return _murphy(predictions, binning, check_event(of, predictions.n_classes))


def _murphy(predictions: Predictions, binning: Binning, of: Event) -> MurphyDecomposition:
    values, occurred = predictions.event(of)
    binned = bin_event(predictions, binning, of=of)
    overall = predictions.mean(occurred)
    brier = predictions.mean((values.astype(np.float64) - occurred) ** 2)
    reliability = binned.mean_of(binned.gap**2)
    resolution = binned.mean_of((binned.observed_frequency - overall) ** 2)
    uncertainty = overall * (1.0 - overall)
    within_bins = brier - (reliability - resolution + uncertainty)
    return MurphyDecomposition(brier, reliability, resolution, uncertainty, within_bins)


def _plain(predictions: Predictions, binning: Binning, of: Event) -> float:
    binned = bin_event(predictions, binning, of=of)
    return binned.mean_of(binned.gap**2)


def _debiased(predictions: Predictions, binning: Binning, of: Event) -> float:
    event = sort_weighted(predictions, of)
    if binning.adaptive:
        binning = binning._replace(bins=max(min(binning.bins, predictions.n_samples // 2), 1))
    memberships = event.memberships(binning)
    per_sample = event.weights[:, None] ** np.array([1, 1, 1, 2]) * event.residuals[:, None] ** np.array([0, 1, 2, 0])
    mass, residual, square, squared_mass = (memberships @ per_sample).T  # Σw, Σwr, Σwr², Σw² of each bin
    enough = mass**2 > squared_mass * (1 + ROUNDING)  # a single sample has no variance
    if not enough.any():
        return float("nan")
    mass, residual, square, squared_mass = (sums[enough] for sums in (mass, residual, square, squared_mass))
    gap = residual / mass
    variance = np.maximum(square - mass * gap**2, 0.0) / (mass - squared_mass / mass)
    return float(np.sum(mass * (gap**2 - variance * squared_mass / mass**2)) / mass.sum())
