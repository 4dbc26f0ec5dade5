"""Accuracy and the proper scores: Brier losses and the negative log-likelihood."""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.errors import InvalidInputError
from kcal.metrics.predictions import Predictions, check_predictions
from kcal.validation import check_number, shown

Clip = float | Literal["published"]

# Rows are converted to float64 in blocks of about this many entries, so that memory stays bounded.
BLOCK_ENTRIES = 1_000_000


def accuracy(probs: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Fraction of the rows whose top class is the label; the first of equal probabilities is on top."""
    predictions = check_predictions(probs, labels, sample_weight)
    return predictions.mean(predictions.correct)


def top_label_brier_loss(probs: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """(1/N)·Σ_i (p_{i,k*} − 1{y_i = k*})², with k* the top class of row i: the Brier score of the KCal paper."""
    predictions = check_predictions(probs, labels, sample_weight)
    return predictions.mean(top_label_brier_losses(predictions))


def multiclass_brier_loss(probs: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """(1/(N·K))·Σ_i Σ_k (p_ik − 1{y_i = k})²: the mean over samples and classes."""
    predictions = check_predictions(probs, labels, sample_weight)
    return predictions.mean(multiclass_brier_losses(predictions))


def negative_log_likelihood(
    probs: ArrayLike, labels: ArrayLike, *, clip: Clip = 1e-12, sample_weight: ArrayLike | None = None
) -> float:
    """−(1/N)·Σ_i log p_{i,y_i}, the log-loss, in nats.

    Parameters
    ----------
    probs, labels, sample_weight
        As in `expected_calibration_error`.
    clip
        Smaller probabilities are replaced by this number, so that one label with probability 0 costs −log(clip)
        (27.6 by default) and not infinity; 0 clips nothing. "published" clips to [1e-3/K, 1 − 1e-3/K], like the
        published code of the KCal paper: a zero then costs only 9.2 with 10 classes.
    """
    predictions = check_predictions(probs, labels, sample_weight)
    return predictions.mean(log_losses(predictions, clip=check_clip(clip)))


def top_label_brier_losses(predictions: Predictions) -> NDArray[np.float64]:
    """Compute the top-label Brier loss of each row, (n_samples,)."""
    differences = predictions.confidences.astype(np.float64) - predictions.correct
    return np.asarray(differences**2)


def multiclass_brier_losses(predictions: Predictions) -> NDArray[np.float64]:
    """Compute the multi-class Brier loss of each row, (n_samples,)."""
    height = max(1, BLOCK_ENTRIES // predictions.n_classes)
    losses = np.empty(predictions.n_samples)
    for start in range(0, predictions.n_samples, height):
        rows = slice(start, start + height)
        residuals = predictions.residuals(rows)
        losses[rows] = np.einsum("ij,ij->i", residuals, residuals)
    return losses / predictions.n_classes


def log_losses(predictions: Predictions, *, clip: Clip) -> NDArray[np.float64]:
    """Compute −log p of each row's label, (n_samples,)."""
    lowest, highest = (
        (1e-3 / predictions.n_classes, 1 - 1e-3 / predictions.n_classes) if clip == "published" else (clip, 1.0)
    )
    with np.errstate(divide="ignore"):  # with clip=0 a probability of 0 costs infinity
        return np.asarray(0.0 - np.log(np.clip(predictions.label_probs.astype(np.float64), lowest, highest)))


def check_clip(clip: Any) -> Clip:
    """Return the lower bound of probabilities inside the logarithm."""
    if isinstance(clip, str) and clip == "published":
        return "published"
    try:
        return check_number(clip, "clip", minimum=0, maximum=1 - 1e-12)
    except InvalidInputError:
        expected = 'must be "published" or a number from 0 to below 1'
        raise InvalidInputError("clip", expected, got=shown(clip)) from None
