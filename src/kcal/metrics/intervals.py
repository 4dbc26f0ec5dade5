"""Confidence intervals of all of the paper's metrics from one set of resamples."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from kcal.metrics.checks import Predictions
from kcal.metrics.resampling import (
    ENTRIES_AT_ONCE,
    Interval,
    absolute_sum_interval,
    percentile_interval,
    resampled_weights,
)
from kcal.metrics.scores import Clip, log_losses, multiclass_brier_losses, top_label_brier_losses
from kcal.metrics.weighted_binning import weighted_event

Event = Literal["confidence"] | int


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
    losses = {
        "accuracy": predictions.correct.astype(np.float64),
        "top_label_brier_loss": top_label_brier_losses(predictions),
        "multiclass_brier_loss": multiclass_brier_losses(predictions),
        "negative_log_likelihood": log_losses(predictions, clip=clip),
    }
    resampled = _resampled_means(predictions, np.stack(list(losses.values()), axis=1), settings)
    intervals = {name: percentile_interval(resampled[:, i], settings.confidence) for i, name in enumerate(losses)}
    events_of: dict[str, Sequence[Event]] = {"expected": ["confidence"], "classwise": range(predictions.n_classes)}
    for prefix, adaptive in (("", True), ("static_", False)):
        kind = _Binning(bins, adaptive, threshold)
        for name, events in events_of.items():
            gaps, drawn = _resampled_gaps(predictions, events, kind, settings)
            if len(gaps):
                key = f"{prefix}{name}_calibration_error"
                intervals[key] = absolute_sum_interval(gaps, drawn, settings.confidence)
    return intervals


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
) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Shares (n_b / n)·gap_b of all bins of the events that keep rows, each event counting alike.

    Returned as measured, (n_events·bins,), and in each resample, (resamples, n_events·bins). The bins are those of the
    measured predictions: if they moved with every resample, the samples that change bins would look like chance twice.
    """
    own = np.ones(predictions.n_samples) if predictions.weights is None else predictions.weights
    measured, resampled = [], []
    for matrices in _gap_matrices(predictions, events, kind):
        measured.append(matrices.gap_shares(own[:, None])[:, 0])
        parts = [matrices.gap_shares(drawn).astype(np.float32) for drawn in _draws(predictions, settings)]
        resampled.append(np.concatenate(parts, axis=1))
    if not measured:
        return np.zeros(0), np.zeros((settings.resamples, 0), dtype=np.float32)
    kept = sum(map(len, measured)) // kind.bins
    return np.concatenate(measured) / kept, np.concatenate(resampled).T / np.float32(kept)


class _GapMatrices(NamedTuple):
    """Maps weights of the rows to the gaps of some events, all bins of one event after the other."""

    residuals: csr_array  # (n_events·bins, n_samples): outcome minus prediction, where a row falls into the bin
    kept: csr_array  # (n_events, n_samples): 1 where a row reaches the threshold
    bins: int

    def gap_shares(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Σ_bin w·(y − p) / Σ_event w for each column of ``weights`` (n_samples, n_vectors); 0 without any weight."""
        totals = np.repeat(self.kept @ weights, self.bins, axis=0)
        return np.asarray((self.residuals @ weights) / np.where(totals > 0, totals, 1.0))


def _gap_matrices(predictions: Predictions, events: Sequence[Event], kind: _Binning) -> Iterator[_GapMatrices]:
    """Yield the matrices of as many events at a time as memory allows; events that keep no weight are left out."""
    residuals: list[csr_array] = []
    kept: list[csr_array] = []
    for of in events:
        event = weighted_event(predictions, of, threshold=0.0 if of == "confidence" else kind.threshold)
        if not event.weights.any():
            continue
        shares = event.memberships(bins=kind.bins, adaptive=kind.adaptive)
        shares.data *= event.residuals[shares.indices]
        residuals.append(_at_rows(shares, event.order, predictions.n_samples))
        kept.append(_at_rows(csr_array(np.ones((1, len(event.order)))), event.order, predictions.n_samples))
        if sum(part.nnz for part in residuals) >= ENTRIES_AT_ONCE:
            yield _GapMatrices(vstack(residuals, format="csr"), vstack(kept, format="csr"), kind.bins)
            residuals, kept = [], []
    if residuals:
        yield _GapMatrices(vstack(residuals, format="csr"), vstack(kept, format="csr"), kind.bins)


def _at_rows(matrix: csr_array, order: NDArray[np.intp], n_samples: int) -> csr_array:
    """Move columns that count sorted predictions to the rows that these come from."""
    return csr_array((matrix.data, order[matrix.indices], matrix.indptr), shape=(matrix.shape[0], n_samples))
