"""Accuracy, also under rejection, and the proper scores: Brier scores and the log-loss."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.metrics.predictions import Predictions, blocks, check_predictions
from kcal.validation import check_number

Clip = float | Literal["published"]

PRINTED_FRACTIONS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)  # rejected fractions of a printed curve


def accuracy(probs: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Fraction of the rows whose top class is the label; the first of equal probabilities is on top."""
    predictions = check_predictions(probs, labels, sample_weight)
    return predictions.mean(predictions.correct)


def top_label_brier_loss(probs: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """(1/N)·Σ_i (p_{i,k*} − 1{y_i = k*})², with k* the top class of row i: the Brier score of the KCal paper."""
    predictions = check_predictions(probs, labels, sample_weight)
    return predictions.mean(top_label_brier_losses(predictions))


def brier_score(probs: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """(1/N)·Σ_i Σ_k (p_ik − 1{y_i = k})², from 0 to 2; with two classes half of it, the squared error of one of them.

    This is ``brier_score_loss`` of scikit-learn.
    """
    predictions = check_predictions(probs, labels, sample_weight)
    return predictions.mean(brier_scores(predictions))


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


def brier_scores(predictions: Predictions) -> NDArray[np.float64]:
    """Compute the Brier score of each row, (n_samples,)."""
    return multiclass_brier_losses(predictions) * (1 if predictions.n_classes == 2 else predictions.n_classes)


def multiclass_brier_losses(predictions: Predictions) -> NDArray[np.float64]:
    """Compute the mean over classes of the squared errors of each row, (n_samples,)."""
    losses = np.empty(predictions.n_samples)
    for rows in blocks(predictions.n_samples, predictions.n_classes):
        residuals = predictions.residuals(rows)
        losses[rows] = np.einsum("ij,ij->i", residuals, residuals)
    return losses / predictions.n_classes


def log_losses(predictions: Predictions, *, clip: Clip) -> NDArray[np.float64]:
    """Compute −log p of each row's label, (n_samples,)."""
    margin = 1e-3 / predictions.n_classes
    lowest, highest = (margin, 1 - margin) if clip == "published" else (clip, 1.0)
    with np.errstate(divide="ignore"):  # with clip=0 a probability of 0 costs infinity
        return np.asarray(0.0 - np.log(np.clip(predictions.label_probs.astype(np.float64), lowest, highest)))


def check_clip(clip: Any) -> Clip:
    """Return the lower bound of probabilities inside the logarithm."""
    if isinstance(clip, str) and clip == "published":
        return "published"
    expected = 'must be "published" or a number from 0 to below 1'
    return check_number(clip, "clip", minimum=0, maximum=1 - 1e-12, expected=expected)


@dataclass(frozen=True, eq=False)
class RejectionCurve:
    """Accuracy of the predictions that are kept when those below a confidence threshold are rejected.

    Equal confidences are rejected together: there is one point per distinct confidence. ``area`` is the mean accuracy
    of the kept samples when 0, 1, …, n − 1 are rejected, the least confident first, in expectation over the order of
    equal confidences. 1 − area is known as AURC. With weights, each step has the weight of the sample that it rejects.
    """

    rejected: NDArray[np.float64]  # (points,), fraction of the samples (of their weight), ascending from 0
    accuracies: NDArray[np.float64]  # (points,), of the samples that are kept
    thresholds: NDArray[np.float64]  # (points,), the lowest confidence that is kept, ascending
    area: float
    n_samples: int  # before any is rejected

    def __str__(self) -> str:
        points = np.searchsorted(self.rejected, PRINTED_FRACTIONS)  # the first with at least this fraction
        shown = np.unique(points[points < self.rejected.shape[0]])
        rows = [f"{self.rejected[i]:8.1%}  {self.thresholds[i]:9.4f}  {self.accuracies[i]:8.4f}" for i in shown]
        summary = f"Accuracy under rejection: {self.n_samples:,} samples, area {self.area:.4f}"
        return "\n".join([summary, f"{'rejected':>8}  {'threshold':>9}  {'accuracy':>8}", *rows])


def accuracy_rejection(
    probs: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None
) -> RejectionCurve:
    """Accuracy of the samples with confidence ≥ t, and the fraction with confidence < t, for every threshold t.

    Parameters
    ----------
    probs, labels, sample_weight
        As in `expected_calibration_error`. The confidence is the largest probability of a row.
    """
    predictions = check_predictions(probs, labels, sample_weight)
    weights = predictions.row_weights
    thresholds, level, counts = np.unique(predictions.confidences, return_inverse=True, return_counts=True)
    level = level.reshape(-1)
    mass = np.bincount(level, weights=weights)  # (points,), weight at each confidence
    correct = np.bincount(level, weights=weights * predictions.correct)
    kept = np.cumsum(mass[::-1])[::-1]
    kept_correct = np.cumsum(correct[::-1])[::-1]
    # Tied samples are added one by one, each with an equal part of their total weight and correct weight.
    steps, right = (np.repeat((sums / counts)[::-1], counts[::-1]) for sums in (mass, correct))  # (n,) each
    return RejectionCurve(
        rejected=np.maximum(kept[0] - kept, 0.0) / kept[0],
        accuracies=np.minimum(kept_correct / kept, 1.0),
        thresholds=thresholds.astype(np.float64),
        area=min(float(np.average(np.cumsum(right) / np.cumsum(steps), weights=steps)), 1.0),
        n_samples=predictions.n_samples,
    )


def accuracy_rejection_area(probs: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """(1/n)·Σ_m accuracy of the m most confident samples: the area under the accuracy–rejection curve.

    From 0 to 1, higher is better; 1 only if every prediction is right. Where equal confidences are cut, the
    expectation over their order. Parameters as in `accuracy_rejection`.
    """
    return accuracy_rejection(probs, labels, sample_weight=sample_weight).area
