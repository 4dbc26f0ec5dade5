"""Calibration errors of the top class and of every class, by binning."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from kcal.metrics.binning import SortedPredictions, WeightedPredictions, bin_event, sort_event, sort_predictions
from kcal.metrics.predictions import (
    Event,
    Predictions,
    Threshold,
    check_bins,
    check_event,
    check_predictions,
    resolve_threshold,
)
from kcal.metrics.reliability_bins import ReliabilityBins
from kcal.validation import check_flag

# Columns are copied in blocks of about this many entries: reading a wide matrix column by column is slow.
BLOCK_ENTRIES = 4_000_000


def expected_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 20,
    adaptive: bool = True,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Σ_b (n_b / n)·|accuracy_b − mean confidence_b|, over bins of the top class's probability.

    Parameters
    ----------
    probs
        Probabilities, (n_samples, n_classes); each row sums to 1.
    labels
        True classes as column indices of probs, (n_samples,).
    bins
        Number of bins; empty ones do not count.
    adaptive
        Equal-count bins; if False, equal-width bins, closed on the right.
    sample_weight
        Relative importance of each sample, (n_samples,).

    Returns
    -------
    float
        From 0 to 1, lower is better. The first of several equal largest probabilities is the top class. Equal
        confidences share their outcomes evenly, so that the order of the rows does not matter.
    """
    return reliability(probs, labels, bins=bins, adaptive=adaptive, sample_weight=sample_weight).calibration_error


def classwise_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 20,
    adaptive: bool = True,
    threshold: Threshold = "max",
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean over classes k of Σ_b (n_kb / n_k)·|frequency_kb − mean p_kb|, over bins of p_k.

    Of each class only the n_k rows with p_k ≥ threshold are binned, because the many tiny probabilities of wrong
    classes would hide every error. Classes without such a row are left out of the mean.

    Parameters
    ----------
    probs, labels, bins, adaptive, sample_weight
        As in `expected_calibration_error`; the number of bins is per class.
    threshold
        "max" is max(0.01, 1/K), as in the text of the KCal paper; "min" is min(0.01, 1/K), as in its published
        code and tables; or a number from 0 to 1.

    Returns
    -------
    float
        From 0 to 1, lower is better; nan if no probability reaches the threshold.
    """
    predictions = check_predictions(probs, labels, sample_weight)
    number, equal_count = check_bins(bins), check_flag(adaptive, "adaptive")
    lowest = resolve_threshold(threshold, predictions.n_classes)
    return mean_class_errors(predictions, bins=number, threshold=lowest, adaptive=(equal_count,))[0]


def reliability(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 20,
    of: Event = "confidence",
    adaptive: bool = True,
    threshold: Threshold = 0.0,
    sample_weight: ArrayLike | None = None,
) -> ReliabilityBins:
    """Bin the predictions of one event beside the observed outcomes, for a reliability diagram.

    Parameters
    ----------
    probs, labels, bins, adaptive, sample_weight
        As in `expected_calibration_error`, with the same defaults. Equal-width bins (``adaptive=False``) spread over
        the whole axis of a diagram.
    of
        "confidence": the probability of the top class, and whether it is right;
        the index of a class: its probability, and whether it is the label.
    threshold
        Rows with a lower prediction are left out: a number from 0 to 1, or "max" or "min" as in
        `classwise_calibration_error`, which is the mean of the errors of these bins over the classes.
    """
    predictions = check_predictions(probs, labels, sample_weight)
    number, equal_count = check_bins(bins), check_flag(adaptive, "adaptive")
    lowest = resolve_threshold(threshold, predictions.n_classes)
    event = check_event(of, predictions.n_classes)
    return bin_event(predictions, event, bins=number, adaptive=equal_count, threshold=lowest)


def confidence_errors(predictions: Predictions, *, bins: int, adaptive: tuple[bool, ...]) -> list[float]:
    """Compute the calibration error of the top class for each kind of bins, sorting once."""
    ordered = sort_event(predictions, "confidence")
    return [ordered.bin(bins=bins, adaptive=kind, of="confidence").calibration_error for kind in adaptive]


def mean_class_errors(
    predictions: Predictions, *, bins: int, threshold: float, adaptive: tuple[bool, ...]
) -> list[float]:
    """Compute the class-wise calibration error for each kind of bins, sorting once."""
    errors = [
        [ordered.bin(bins=bins, adaptive=kind, of=k).calibration_error for kind in adaptive]
        for k, ordered in enumerate(sort_classes(predictions, threshold=threshold))
        if not ordered.is_empty
    ]  # one row per class that has samples
    if not errors:
        return [float("nan")] * len(adaptive)
    return [float(error) for error in np.mean(errors, axis=0)]


def sort_classes(predictions: Predictions, *, threshold: float) -> Iterator[SortedPredictions | WeightedPredictions]:
    """Yield, class by class, the sorted predictions of at least the threshold; copies one block of columns."""
    if predictions.weights is not None:
        for k in range(predictions.n_classes):
            yield sort_event(predictions, k, threshold=threshold)
        return
    probs, n_classes = predictions.probs, predictions.n_classes
    class_ends = np.cumsum(np.bincount(predictions.labels, minlength=n_classes))
    by_class = predictions.label_probs[np.argsort(predictions.labels)]
    positives = np.split(by_class, class_ends[:-1])  # n_classes arrays
    width = max(1, BLOCK_ENTRIES // predictions.n_samples)
    for start in range(0, n_classes, width):
        block = np.ascontiguousarray(probs[:, start : start + width].T)  # (width, n_samples)
        for k, values in enumerate(block, start):
            yield sort_predictions(values, positives[k], threshold=threshold)
