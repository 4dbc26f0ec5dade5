"""Squared calibration errors, freed of the bias that chance adds, and Murphy's decomposition of the Brier score."""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kcal.metrics.calibration import sorted_event
from kcal.metrics.predictions import Predictions, check_bins, check_event, check_predictions
from kcal.metrics.weighted_binning import ROUNDING, weighted_event


def debiased_squared_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 20,
    adaptive: bool = True,
    of: Literal["confidence"] | int = "confidence",
    sample_weight: ArrayLike | None = None,
) -> float:
    """Σ_b (n_b / n)·(gap_b² − s_b² / n_b): an unbiased estimate of the mean squared gap of the bins.

    A gap is a mean of n_b residuals y − p, so that chance alone makes its square larger by their variance over n_b;
    s_b² is their sample variance. With equal predictions in a bin this is the estimator of Kumar, Liang and Ma (2019).
    Bins of one sample say nothing and are left out; equal-count bins are so few that each holds two. It can be
    negative: calibrated predictions give 0 on average. nan if no bin holds two samples.

    Parameters
    ----------
    probs
        Probabilities, (n_samples, n_classes); each row sums to 1.
    labels
        True classes as column indices of probs, (n_samples,).
    bins, adaptive
        As in `expected_calibration_error`.
    of
        "confidence", or the index of a class.
    sample_weight
        How much each row counts, (n_samples,). With weights, s_b² / n_b becomes the variance of a weighted mean,
        s_b²·Σw² / (Σw)², with s_b² = Σw·(r − gap_b)² / (Σw − Σw² / Σw).
    """
    predictions = check_predictions(probs, labels, sample_weight)
    number, event = check_bins(bins), check_event(of, predictions.n_classes)
    return _debiased(predictions, event, number, adaptive)


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

    The marginal calibration error of Kumar, Liang and Ma (2019), every class counting alike. Debiased, each class's
    squared error is that of `debiased_squared_calibration_error`, and a negative mean counts as 0.

    Parameters
    ----------
    probs
        Probabilities, (n_samples, n_classes); each row sums to 1.
    labels
        True classes as column indices of probs, (n_samples,).
    bins, adaptive
        As in `expected_calibration_error`.
    debiased
        Whether to take off what chance adds to a squared gap.
    sample_weight
        How much each row counts, (n_samples,).
    """
    predictions = check_predictions(probs, labels, sample_weight)
    number = check_bins(bins)
    squares = [
        _debiased(predictions, k, number, adaptive) if debiased else _plain(predictions, k, number, adaptive)
        for k in range(predictions.n_classes)
    ]
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
    probs
        Probabilities, (n_samples, n_classes); each row sums to 1.
    labels
        True classes as column indices of probs, (n_samples,).
    bins, adaptive
        As in `expected_calibration_error`, for each top class.
    sample_weight
        How much each row counts, (n_samples,).
    """
    predictions = check_predictions(probs, labels, sample_weight)
    number = check_bins(bins)
    total = 0.0
    for k in np.unique(predictions.top_classes):
        rows = predictions.top_classes == k
        part = predictions.rows(rows)
        if part.weights is None or part.weights.any():
            binned = sorted_event(part, "confidence").bin(bins=number, adaptive=adaptive, of="confidence")
            total += predictions.mean(rows) * binned.calibration_error
    return total


class MurphyDecomposition(NamedTuple):
    """Brier score = reliability − resolution + uncertainty + within_bins."""

    brier: float
    reliability: float
    """Σ_b (n_b / n)·(mean prediction_b − frequency_b)²: what calibration can mend; lower is better."""
    resolution: float
    """Σ_b (n_b / n)·(frequency_b − overall frequency)²: how far predictions tell events apart; higher is better."""
    uncertainty: float
    """Overall frequency times one minus it: what no forecast changes."""
    within_bins: float
    """What the bins hide: the spread of predictions within a bin, less twice their covariance with the outcomes."""


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
    probs
        Probabilities, (n_samples, n_classes); each row sums to 1.
    labels
        True classes as column indices of probs, (n_samples,).
    bins, adaptive
        As in `expected_calibration_error`.
    of
        "classes": the mean over all classes, whose Brier score is `multiclass_brier_loss`; "confidence": of the top
        class, whose Brier score is `top_label_brier_loss`; or the index of a class.
    sample_weight
        How much each row counts, (n_samples,).
    """
    predictions = check_predictions(probs, labels, sample_weight)
    number = check_bins(bins)
    if isinstance(of, str) and of == "classes":
        parts = [_murphy(predictions, k, number, adaptive) for k in range(predictions.n_classes)]
        return MurphyDecomposition(*(float(part) for part in np.mean(parts, axis=0)))
    return _murphy(predictions, check_event(of, predictions.n_classes), number, adaptive)


def _murphy(
    predictions: Predictions, of: Literal["confidence"] | int, bins: int, adaptive: bool
) -> MurphyDecomposition:
    values, occurred = predictions.event(of)
    binned = sorted_event(predictions, of).bin(bins=bins, adaptive=adaptive, of=of)
    overall = predictions.mean(occurred)
    brier = predictions.mean((values.astype(np.float64) - occurred) ** 2)
    reliability = binned.mean_of(binned.gap**2)
    resolution = binned.mean_of((binned.observed_frequency - overall) ** 2)
    uncertainty = overall * (1.0 - overall)
    return MurphyDecomposition(
        brier, reliability, resolution, uncertainty, brier - (reliability - resolution + uncertainty)
    )


def _plain(predictions: Predictions, of: int, bins: int, adaptive: bool) -> float:
    binned = sorted_event(predictions, of).bin(bins=bins, adaptive=adaptive, of=of)
    return binned.mean_of(binned.gap**2)


def _debiased(predictions: Predictions, of: Literal["confidence"] | int, bins: int, adaptive: bool) -> float:
    event = weighted_event(predictions, of)
    bins = max(min(bins, predictions.n_samples // 2), 1) if adaptive else bins
    memberships = event.memberships(bins=bins, adaptive=adaptive)
    sums = event.weights[:, None] ** np.array([1, 1, 1, 2]) * event.residuals[:, None] ** np.array([0, 1, 2, 0])
    mass, residual, square, squared_mass = (memberships @ sums).T  # Σw, Σwr, Σwr², Σw² of each bin
    enough = mass**2 > squared_mass * (1 + ROUNDING)  # a single sample has no variance
    if not enough.any():
        return float("nan")
    mass, residual, square, squared_mass = (each[enough] for each in (mass, residual, square, squared_mass))
    gap = residual / mass
    variance = np.maximum(square - mass * gap**2, 0.0) / (mass - squared_mass / mass)
    return float(np.sum(mass * (gap**2 - variance * squared_mass / mass**2)) / mass.sum())
