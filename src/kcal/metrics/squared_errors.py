"""Squared calibration errors, freed of the bias that chance adds, and Murphy's decomposition of the Brier score."""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.metrics.calibration import sorted_event
from kcal.metrics.checks import Floats, Predictions, check_bins, check_event, check_predictions


def debiased_squared_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 20,
    adaptive: bool = True,
    of: Literal["confidence"] | int = "confidence",
) -> float:
    """Σ_b (n_b / n)·(gap_b² − s_b² / n_b): an unbiased estimate of the mean squared gap of the bins.

    A gap is a mean of n_b residuals y − p, so that chance alone makes its square larger by their variance over n_b;
    s_b² is their sample variance. With equal predictions in a bin this is the estimator of Kumar, Liang and Ma (2019).
    Bins of one sample say nothing and are left out. It can be negative: calibrated predictions give 0 on average.

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
    """
    predictions = check_predictions(probs, labels)
    number, event = check_bins(bins), check_event(of, predictions.n_classes)
    return _debiased(predictions, event, number, adaptive)


def marginal_calibration_error(
    probs: ArrayLike, labels: ArrayLike, *, bins: int = 20, adaptive: bool = True, debiased: bool = True
) -> float:
    """√(mean over classes of the squared calibration error of p_k), over all rows, without a threshold.

    The marginal calibration error of Kumar, Liang and Ma (2019), every class counting alike. Debiased, each class's
    squared error is that of `debiased_squared_calibration_error`, and a negative mean counts as 0.
    """
    predictions = check_predictions(probs, labels)
    number = check_bins(bins)
    squares = [
        _debiased(predictions, k, number, adaptive) if debiased else _plain(predictions, k, number, adaptive)
        for k in range(predictions.n_classes)
    ]
    return float(np.sqrt(max(float(np.mean(squares)), 0.0)))


def top_label_calibration_error(probs: ArrayLike, labels: ArrayLike, *, bins: int = 20, adaptive: bool = True) -> float:
    """Calibration error of the confidence, given which class is on top: Σ_k (n_k / n)·ECE of the rows with top class k.

    Gupta and Ramdas (2022): confidences of 0.7 can be right on average, and yet too high whenever the answer is "cat"
    and too low whenever it is "dog".
    """
    predictions = check_predictions(probs, labels)
    number = check_bins(bins)
    total = 0.0
    for k in np.unique(predictions.top_classes):
        rows = predictions.top_classes == k
        part = Predictions(predictions.probs[rows], predictions.labels[rows])
        error = sorted_event(part, "confidence").bin(bins=number, adaptive=adaptive, of="confidence").calibration_error
        total += float(rows.mean()) * error
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
    """
    predictions = check_predictions(probs, labels)
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
    overall = float(occurred.mean())
    brier = float(np.mean((values.astype(np.float64) - occurred) ** 2))
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
    values, occurred = predictions.event(of)
    binned = sorted_event(predictions, of).bin(bins=bins, adaptive=adaptive, of=of)
    squares = _residual_squares(values, occurred, binned.counts)
    counts = binned.counts.astype(np.float64)
    enough = counts > 1
    if not enough.any():
        return float("nan")
    gap, counts = binned.gap[enough], counts[enough]
    variance = np.maximum(squares[enough] - counts * gap**2, 0.0) / (counts - 1.0)
    return float(np.sum(counts * (gap**2 - variance / counts)) / counts.sum())


def _residual_squares(values: Floats, occurred: NDArray[np.bool_], counts: NDArray[np.intp]) -> NDArray[np.float64]:
    """Sum (y − p)² over each bin; tied predictions share theirs evenly, as they share their outcomes."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    residuals = (occurred[order] - ordered.astype(np.float64)) ** 2
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    sizes = np.diff(np.append(starts, len(ordered)))
    shared = np.repeat(np.add.reduceat(residuals, starts) / sizes, sizes)
    cuts = np.concatenate([[0], np.cumsum(counts)])
    sums = np.concatenate([[0.0], np.cumsum(shared)])
    return np.asarray(np.diff(sums[cuts]))
