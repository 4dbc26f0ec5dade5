"""Confidence intervals of all metrics of an evaluation from one set of resamples."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from kcal.metrics.binning import ReliabilityBins, WeightedPredictions, sort_weighted
from kcal.metrics.gap_intervals import Gaps, gap_interval
from kcal.metrics.predictions import Binning, Event, Predictions
from kcal.metrics.resampling import Interval, Resampling, wilson_interval

Array = NDArray[np.float64]


def metric_intervals(
    predictions: Predictions, scores: dict[str, Array], binning: Binning, resampling: Resampling
) -> dict[str, Interval]:
    """Return the interval of every metric of an `Evaluation`; class-wise errors only if a class has samples.

    ``scores`` has the values of each row, (n_samples,), by metric; the accuracy is the first.
    """
    per_row = np.stack(list(scores.values()), axis=1)  # (n_samples, n_metrics)
    means = resampled_means(predictions, per_row, resampling)
    intervals = {name: resampling.percentile_interval(means[:, i]) for i, name in enumerate(scores)}
    intervals["accuracy"] = accuracy_interval(predictions, means[:, 0], resampling)
    for prefix, adaptive in (("", True), ("static_", False)):
        classwise = binning._replace(adaptive=adaptive)
        events: dict[str, tuple[Sequence[Event], Binning]] = {
            "expected": (["confidence"], classwise._replace(threshold=0.0)),
            "classwise": (range(predictions.n_classes), classwise),
        }
        for name, options in events.items():
            interval = binned_error_interval(predictions, *options, resampling)
            if interval is not None:
                intervals[f"{prefix}{name}_calibration_error"] = interval
    return intervals


def resampled_means(predictions: Predictions, per_row: Array, resampling: Resampling) -> Array:
    """Return the means of values (n_samples, n_metrics) in each resample, (resamples, n_metrics)."""
    return np.concatenate([drawn.T @ per_row / drawn.sum(axis=0)[:, None] for drawn in resampling.draws(predictions)])


def accuracy_interval(predictions: Predictions, resampled: Array, resampling: Resampling) -> Interval:
    """Return Wilson's interval for the number of independent samples with the variance of the resampled accuracies.

    If all predictions are right (or all wrong), resamples do not vary; samples, or groups, then count by their weight.
    """
    accuracy = predictions.mean(predictions.correct)
    variance = float(resampled.var()) * resampling.few_groups_factor**2
    if variance > 0 and predictions.correct.any() and not predictions.correct.all():
        count = accuracy * (1 - accuracy) / variance
    else:
        weights = predictions.row_weights
        if resampling.groups is not None:
            weights = np.bincount(resampling.groups, weights=weights).astype(np.float64)
        count = float(weights.sum() ** 2 / np.sum(weights**2))
    low, high = wilson_interval(accuracy, count, resampling.confidence)
    return Interval(float(low), float(high))


def binned_error_interval(
    predictions: Predictions, events: Sequence[Event], binning: Binning, resampling: Resampling
) -> Interval | None:
    """Return the interval of the mean calibration error of the events that have samples; None if there are none.

    The bins stay those of the given predictions: if they moved with every resample, samples that change bins would
    count as noise twice.
    """
    sorted_events = ((of, sort_weighted(predictions, of, threshold=binning.threshold)) for of in events)
    parts = [
        _event_matrices(event, of, binning, predictions.n_samples) for of, event in sorted_events if event.weights.any()
    ]
    if not parts:
        return None
    residuals, kept = (vstack([part[i] for part in parts], format="csr") for i in (0, 1))
    binned = [part[2] for part in parts]

    def gap_shares(weights: Array) -> Array:
        """Return Σ_bin w·(y − p) / Σ_event w for each column of weights (n_samples, n_vectors); 0 without weight."""
        totals = np.repeat(kept @ weights, binning.bins, axis=0)
        return np.asarray((residuals @ weights) / np.where(totals > 0, totals, 1.0) / len(parts))

    blocks = [gap_shares(drawn).astype(np.float32) for drawn in resampling.draws(predictions)]
    gaps = Gaps(
        measured=gap_shares(predictions.row_weights[:, None])[:, 0],
        resampled=np.ascontiguousarray(np.concatenate(blocks, axis=1).T),
        shares=np.concatenate([part.weights / part.weights.sum() for part in binned]) / len(parts),
        predictions=np.concatenate([np.nan_to_num(part.mean_prediction) for part in binned]),
        counts=np.concatenate([part.effective_counts for part in binned]),
        n_events=len(parts),
    )
    clustered = resampling.groups is not None
    return gap_interval(gaps, resampling.confidence, seed=resampling.seed, clustered=clustered)


def _event_matrices(
    event: WeightedPredictions, of: Event, binning: Binning, n_samples: int
) -> tuple[csr_array, csr_array, ReliabilityBins]:
    """Return residuals where a row is in a bin, (bins, n_samples), 1 where it is in any bin, and the bins."""
    memberships = event.memberships(binning)
    residuals = memberships.data * event.residuals[memberships.indices]
    rows, n_kept = event.order[memberships.indices], len(event.order)
    return (
        csr_array((residuals, rows, memberships.indptr), shape=(binning.bins, n_samples)),
        csr_array((np.ones(n_kept), event.order, [0, n_kept]), shape=(1, n_samples)),
        event.bin(binning, of=of),
    )
