"""Confidence intervals of all of the paper's metrics from one set of resamples."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kcal.metrics.checks import Predictions
from kcal.metrics.resampling import Interval, absolute_sum_interval, percentile_interval, resampled_weights
from kcal.metrics.scores import Clip, log_losses, multiclass_brier_losses, top_label_brier_losses
from kcal.metrics.weighted_binning import WeightedPredictions, sort_weighted


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
    weights = np.ones(predictions.n_samples) if predictions.weights is None else predictions.weights
    top = [sort_weighted(predictions.confidences, predictions.correct, weights)]
    by_class = [
        sort_weighted(*predictions.event(k), weights, threshold=threshold) for k in range(predictions.n_classes)
    ]
    by_class = [kept for kept in by_class if kept.weights.any()]
    binned = {
        "expected_calibration_error": _Gaps(top, bins, adaptive=True),
        "static_expected_calibration_error": _Gaps(top, bins, adaptive=False),
        "classwise_calibration_error": _Gaps(by_class, bins, adaptive=True),
        "static_classwise_calibration_error": _Gaps(by_class, bins, adaptive=False),
    }
    losses = {
        "accuracy": predictions.correct.astype(np.float64),
        "top_label_brier_loss": top_label_brier_losses(predictions),
        "multiclass_brier_loss": multiclass_brier_losses(predictions),
        "negative_log_likelihood": log_losses(predictions, clip=clip),
    }
    by_row = np.stack(list(losses.values()), axis=1)  # (n_samples, n_metrics)
    means = []
    for block in resampled_weights(
        predictions.n_samples,
        resamples=settings.resamples,
        seed=settings.seed,
        groups=settings.groups,
        weights=predictions.weights,
    ):
        means.append(block @ by_row / block.sum(axis=1, keepdims=True))
        for gaps in binned.values():
            gaps.add(block)
    resampled_means = np.concatenate(means)  # (resamples, n_metrics)
    intervals = {name: percentile_interval(resampled_means[:, i], settings.confidence) for i, name in enumerate(losses)}
    for name, gaps in binned.items():
        if gaps.events:
            intervals[name] = absolute_sum_interval(gaps.measured, gaps.resampled, settings.confidence)
    return intervals


class _Gaps:
    """The signed gaps of all bins of some events, each event counting alike, as measured and resampled."""

    def __init__(self, events: list[WeightedPredictions], bins: int, *, adaptive: bool) -> None:
        self.events, self.bins, self.adaptive = events, bins, adaptive
        self.blocks: list[NDArray[np.float32]] = []

    @property
    def measured(self) -> NDArray[np.float64]:
        """(n_events·bins,)."""
        return np.asarray(self._gaps([event.weights[None, :] for event in self.events])[0])

    @property
    def resampled(self) -> NDArray[np.floating[Any]]:
        """(resamples, n_events·bins)."""
        return np.concatenate(self.blocks)

    def add(self, weights: NDArray[np.float64]) -> None:
        """Note the gaps under each row of ``weights`` (n_vectors, n_samples)."""
        if self.events:
            drawn = self._gaps([weights[:, event.order] for event in self.events])
            self.blocks.append(drawn.astype(np.float32))

    def _gaps(self, weights: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        parts = [
            event.masses(drawn, bins=self.bins, adaptive=self.adaptive).gap_shares
            for event, drawn in zip(self.events, weights, strict=True)
        ]
        return np.asarray(np.concatenate(parts, axis=1) / len(self.events))
