"""Calibration errors of the top class and of every class, by binning."""

import numpy as np
from numpy.typing import ArrayLike

from kcal.metrics.binning import bin_event, sort_classes
from kcal.metrics.predictions import (
    Binning,
    Event,
    Predictions,
    Threshold,
    check_binning,
    check_event,
    check_predictions,
)
from kcal.metrics.reliability_bins import ReliabilityBins


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
    return mean_class_errors(predictions, check_binning(predictions.n_classes, bins, adaptive, threshold))[0]


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
    binning = check_binning(predictions.n_classes, bins, adaptive, threshold)
    return bin_event(predictions, check_event(of, predictions.n_classes), binning)


def mean_class_errors(predictions: Predictions, *binnings: Binning) -> list[float]:
    """Compute the class-wise calibration error for each kind of bins, sorting once; they share their threshold."""
    errors = [
        [ordered.bin(binning, of=k).calibration_error for binning in binnings]
        for k, ordered in enumerate(sort_classes(predictions, threshold=binnings[0].threshold))
        if not ordered.is_empty
    ]  # one row per class that has samples
    return [float(error) for error in np.mean(errors, axis=0)] if errors else [float("nan")] * len(binnings)
