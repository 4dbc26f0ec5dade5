"""The accuracy–rejection curve: accuracy of the predictions that remain when the least confident are rejected."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.metrics.predictions import check_predictions

PRINTED_FRACTIONS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)  # rejected fractions of a printed curve


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
    predictions = check_predictions(probs, labels, sample_weight).weighted_rows()
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
