"""Confidence intervals of all metrics of an evaluation from one set of resamples."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from kcal.metrics.binning import sort_weighted
from kcal.metrics.gap_intervals import Gaps, gap_interval
from kcal.metrics.predictions import Event, Predictions
from kcal.metrics.resampling import BLOCK_ENTRIES, Interval, Resampling, wilson_interval
from kcal.metrics.scores import Clip, log_losses, multiclass_brier_losses, top_label_brier_losses

TINY = np.finfo(np.float64).tiny

Array = NDArray[np.float64]


class Binning(NamedTuple):
    """The kind of bins, and the threshold of class probabilities (the confidence has none)."""

    bins: int
    adaptive: bool
    threshold: float


def metric_intervals(
    predictions: Predictions, resampling: Resampling, *, bins: int, threshold: float, clip: Clip
) -> dict[str, Interval]:
    """Return the interval of every metric of an `Evaluation`; class-wise errors only if a class has samples."""
    losses = {
        "accuracy": predictions.correct.astype(np.float64),
        "top_label_brier_loss": top_label_brier_losses(predictions),
        "multiclass_brier_loss": multiclass_brier_losses(predictions),
        "negative_log_likelihood": log_losses(predictions, clip=clip),
    }
    per_row = np.stack(list(losses.values()), axis=1)  # (n_samples, n_metrics)
    means = resampled_means(predictions, per_row, resampling)
    intervals = {name: resampling.percentile_interval(means[:, i]) for i, name in enumerate(losses)}
    intervals["accuracy"] = accuracy_interval(predictions, means[:, 0], resampling)
    events_of: dict[str, Sequence[Event]] = {"expected": ["confidence"], "classwise": range(predictions.n_classes)}
    for prefix, adaptive in (("", True), ("static_", False)):
        for name, events in events_of.items():
            interval = binned_error_interval(predictions, events, Binning(bins, adaptive, threshold), resampling)
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
    parts = []
    for matrices in _gap_matrices(predictions, events, binning):
        blocks = [matrices.gap_shares(drawn).astype(np.float32) for drawn in resampling.draws(predictions)]
        measured = matrices.gap_shares(predictions.row_weights[:, None])[:, 0]
        parts.append((measured, np.concatenate(blocks, axis=1), *matrices.bin_sums))
    if not parts:
        return None
    measured, drawn, shares, means, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
    n_events = len(measured) // binning.bins
    resampled = np.asarray(drawn.T / n_events, dtype=np.float32)
    gaps = Gaps(measured / n_events, resampled, shares / n_events, means, counts, n_events)
    clustered = resampling.groups is not None
    return gap_interval(gaps, resampling.confidence, seed=resampling.seed, clustered=clustered)


class _GapMatrices(NamedTuple):
    """Linear maps from weights of the rows to the gaps of some events, all bins of one event after the other."""

    residuals: csr_array  # (n_events·bins, n_samples): outcome minus prediction, where a row is in the bin
    kept: csr_array  # (n_events, n_samples): 1 where a row reaches the threshold
    bin_sums: Array  # (3, n_events·bins): fraction of the event, mean prediction and effective count of each bin

    def gap_shares(self, weights: Array) -> Array:
        """Return Σ_bin w·(y − p) / Σ_event w for each column of weights (n_samples, n_vectors); 0 without weight."""
        bins = self.residuals.shape[0] // self.kept.shape[0]
        totals = np.repeat(self.kept @ weights, bins, axis=0)
        return np.asarray((self.residuals @ weights) / np.where(totals > 0, totals, 1.0))


def _gap_matrices(predictions: Predictions, events: Sequence[Event], binning: Binning) -> Iterator[_GapMatrices]:
    """Yield the matrices of as many events at a time as memory allows; events without samples are left out."""
    waiting: list[_GapMatrices] = []
    for of in events:
        matrices = _event_matrices(predictions, of, binning)
        if matrices is None:
            continue
        waiting.append(matrices)
        if sum(part.residuals.nnz for part in waiting) >= BLOCK_ENTRIES:
            yield _stacked(waiting)
            waiting = []
    if waiting:
        yield _stacked(waiting)


def _event_matrices(predictions: Predictions, of: Event, binning: Binning) -> _GapMatrices | None:
    event = sort_weighted(predictions, of, threshold=0.0 if of == "confidence" else binning.threshold)
    if event.is_empty:
        return None
    memberships = event.memberships(bins=binning.bins, adaptive=binning.adaptive)
    mass, squares = memberships @ event.weights, memberships @ event.weights**2
    filled = np.where(mass > 0, mass, 1.0)
    means = memberships @ (event.weights * event.values) / filled
    bin_sums = np.stack([mass / mass.sum(), means, mass**2 / np.fmax(squares, TINY)])
    memberships.data *= event.residuals[memberships.indices]
    kept = csr_array(np.ones((1, len(event.order))))
    n_samples = predictions.n_samples
    return _GapMatrices(_at_rows(memberships, event.order, n_samples), _at_rows(kept, event.order, n_samples), bin_sums)


def _stacked(parts: list[_GapMatrices]) -> _GapMatrices:
    residuals = vstack([part.residuals for part in parts], format="csr")
    kept = vstack([part.kept for part in parts], format="csr")
    return _GapMatrices(residuals, kept, np.concatenate([part.bin_sums for part in parts], axis=1))


def _at_rows(matrix: csr_array, order: NDArray[np.intp], n_samples: int) -> csr_array:
    """Reorder columns of sorted predictions to the rows that they come from."""
    return csr_array((matrix.data, order[matrix.indices], matrix.indptr), shape=(matrix.shape[0], n_samples))
