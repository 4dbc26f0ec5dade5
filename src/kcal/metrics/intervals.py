"""Confidence intervals of all of the paper's metrics from one set of resamples."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from kcal.metrics.gap_intervals import Gaps, gap_interval
from kcal.metrics.predictions import Predictions
from kcal.metrics.resampling import (
    ENTRIES_AT_ONCE,
    Interval,
    few_groups_factor,
    percentile_interval,
    resampled_weights,
)
from kcal.metrics.scores import Clip, log_losses, multiclass_brier_losses, top_label_brier_losses
from kcal.metrics.weighted_binning import WeightedPredictions, weighted_event
from kcal.metrics.wilson import wilson_interval

Event = Literal["confidence"] | int
TINY = np.finfo(np.float64).tiny


class Resampling(NamedTuple):
    """How rows are drawn anew."""

    confidence: float
    resamples: int
    groups: NDArray[np.intp] | None
    seed: int


def metric_intervals(
    predictions: Predictions, settings: Resampling, *, bins: int, threshold: float, clip: Clip
) -> dict[str, Interval]:
    """Return the interval of every metric of an `Evaluation`, by name; class-wise ones only where classes keep rows."""
    predictions, settings = _rows_that_count(predictions, settings)
    losses = {
        "accuracy": predictions.correct.astype(np.float64),
        "top_label_brier_loss": top_label_brier_losses(predictions),
        "multiclass_brier_loss": multiclass_brier_losses(predictions),
        "negative_log_likelihood": log_losses(predictions, clip=clip),
    }
    resampled = _resampled_means(predictions, np.stack(list(losses.values()), axis=1), settings)
    few = few_groups_factor(settings.groups, settings.confidence)
    intervals = {
        name: percentile_interval(resampled[:, i], settings.confidence, widened=few) for i, name in enumerate(losses)
    }
    intervals["accuracy"] = _accuracy_interval(predictions, resampled[:, 0], settings)
    events_of: dict[str, Sequence[Event]] = {"expected": ["confidence"], "classwise": range(predictions.n_classes)}
    for prefix, adaptive in (("", True), ("static_", False)):
        kind = _Binning(bins, adaptive, threshold)
        for name, events in events_of.items():
            gaps = _resampled_gaps(predictions, events, kind, settings)
            if gaps is not None:
                intervals[f"{prefix}{name}_calibration_error"] = gap_interval(
                    gaps, settings.confidence, seed=settings.seed, clustered=settings.groups is not None
                )
    return intervals


def _rows_that_count(predictions: Predictions, settings: Resampling) -> tuple[Predictions, Resampling]:
    """Leave out rows of weight 0, which say nothing, however often they are drawn."""
    if predictions.weights is None or predictions.weights.all():
        return predictions, settings
    counts = predictions.weights > 0
    groups = settings.groups
    if groups is not None:
        groups = np.unique(groups[counts], return_inverse=True)[1].reshape(-1)
    return predictions.rows(counts), settings._replace(groups=groups)


def _independent_parts(predictions: Predictions, settings: Resampling) -> float:
    """Return how many samples, or groups, of equal weight say as much as all."""
    weights = predictions.row_weights
    if settings.groups is not None:
        weights = np.bincount(settings.groups, weights=weights).astype(np.float64)
    return float(weights.sum() ** 2 / np.sum(weights**2))


def _accuracy_interval(predictions: Predictions, resampled: NDArray[np.float64], settings: Resampling) -> Interval:
    """Wilson's interval, of as many independent samples as would vary like the resamples do.

    Where all are right (or all wrong) resamples do not vary at all, and each sample, or group, counts as one.
    """
    accuracy = predictions.mean(predictions.correct)
    variance = float(resampled.var()) * few_groups_factor(settings.groups, settings.confidence) ** 2
    varies = variance > 0 and predictions.correct.any() and not predictions.correct.all()
    count = accuracy * (1 - accuracy) / variance if varies else _independent_parts(predictions, settings)
    low, high = wilson_interval(accuracy, count, settings.confidence)
    return Interval(float(low), float(high))


class _Binning(NamedTuple):
    """How the predictions of a class are cut; the threshold does not concern the confidence."""

    bins: int
    adaptive: bool
    threshold: float


def _draws(predictions: Predictions, settings: Resampling) -> Iterator[NDArray[np.float64]]:
    return resampled_weights(
        predictions.n_samples,
        resamples=settings.resamples,
        seed=settings.seed,
        groups=settings.groups,
        weights=predictions.weights,
    )


def _resampled_means(
    predictions: Predictions, by_row: NDArray[np.float64], settings: Resampling
) -> NDArray[np.float64]:
    """Means of values (n_samples, n_metrics) in each resample, (resamples, n_metrics)."""
    means = [drawn.T @ by_row / drawn.sum(axis=0)[:, None] for drawn in _draws(predictions, settings)]
    return np.concatenate(means)


def _resampled_gaps(
    predictions: Predictions, events: Sequence[Event], kind: _Binning, settings: Resampling
) -> Gaps | None:
    """Return the gaps of the events that keep any weight, or None if there are none.

    The bins are those of the measured predictions: if they moved with every resample, the samples that change bins
    would look like chance twice.
    """
    own = predictions.row_weights
    parts = []
    for matrices in _gap_matrices(predictions, events, kind):
        blocks = [matrices.gap_shares(drawn).astype(np.float32) for drawn in _draws(predictions, settings)]
        measured = matrices.gap_shares(own[:, None])[:, 0]
        parts.append((measured, np.concatenate(blocks, axis=1), *matrices.bin_sums))
    if not parts:
        return None
    measured, drawn, shares, means, counts = (np.concatenate(each) for each in zip(*parts, strict=True))
    n_events = len(measured) // kind.bins
    resampled = np.asarray(drawn.T / n_events, dtype=np.float32)
    return Gaps(measured / n_events, resampled, shares / n_events, means, counts, n_events)


class _GapMatrices(NamedTuple):
    """Maps weights of the rows to the gaps of some events, all bins of one event after the other."""

    residuals: csr_array  # (n_events·bins, n_samples): outcome minus prediction, where a row falls into the bin
    kept: csr_array  # (n_events, n_samples): 1 where a row reaches the threshold
    bin_sums: tuple[NDArray[np.float64], ...]  # share of the event, mean prediction and effective count of each bin
    bins: int

    def gap_shares(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Σ_bin w·(y − p) / Σ_event w for each column of ``weights`` (n_samples, n_vectors); 0 without any weight."""
        totals = np.repeat(self.kept @ weights, self.bins, axis=0)
        return np.asarray((self.residuals @ weights) / np.where(totals > 0, totals, 1.0))


class _EventMatrices(NamedTuple):
    """The part of one event."""

    residuals: csr_array
    kept: csr_array
    bin_sums: NDArray[np.float64]  # (3, bins)

    @classmethod
    def of(cls, event: WeightedPredictions, kind: _Binning, n_samples: int) -> "_EventMatrices":
        shares = event.memberships(bins=kind.bins, adaptive=kind.adaptive)
        mass, squares = shares @ event.weights, shares @ event.weights**2
        filled = np.where(mass > 0, mass, 1.0)
        sums = [mass / mass.sum(), shares @ (event.weights * event.values) / filled, mass**2 / np.fmax(squares, TINY)]
        shares.data *= event.residuals[shares.indices]
        everyone = csr_array(np.ones((1, len(event.order))))
        return cls(_at_rows(shares, event.order, n_samples), _at_rows(everyone, event.order, n_samples), np.stack(sums))


def _gap_matrices(predictions: Predictions, events: Sequence[Event], kind: _Binning) -> Iterator[_GapMatrices]:
    """Yield the matrices of as many events at a time as memory allows; events that keep no weight are left out."""
    waiting: list[_EventMatrices] = []
    for of in events:
        event = weighted_event(predictions, of, threshold=0.0 if of == "confidence" else kind.threshold)
        if event.is_empty:
            continue
        waiting.append(_EventMatrices.of(event, kind, predictions.n_samples))
        if sum(part.residuals.nnz for part in waiting) >= ENTRIES_AT_ONCE:
            yield _stacked(waiting, kind.bins)
            waiting = []
    if waiting:
        yield _stacked(waiting, kind.bins)


def _stacked(parts: list[_EventMatrices], bins: int) -> _GapMatrices:
    residuals = vstack([part.residuals for part in parts], format="csr")
    kept = vstack([part.kept for part in parts], format="csr")
    return _GapMatrices(residuals, kept, tuple(np.concatenate([part.bin_sums for part in parts], axis=1)), bins)


def _at_rows(matrix: csr_array, order: NDArray[np.intp], n_samples: int) -> csr_array:
    """Move columns that count sorted predictions to the rows that these come from."""
    return csr_array((matrix.data, order[matrix.indices], matrix.indptr), shape=(matrix.shape[0], n_samples))
