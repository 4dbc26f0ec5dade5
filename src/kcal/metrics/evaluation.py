"""All metrics of the KCal paper at once, in one result that prints as a table."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.metrics.binning import sort_event
from kcal.metrics.calibration import mean_class_errors
from kcal.metrics.intervals import metric_intervals
from kcal.metrics.predictions import Predictions, Threshold, check_binned
from kcal.metrics.registry import METRICS
from kcal.metrics.resampling import Interval, check_resampling
from kcal.metrics.scores import Clip, check_clip, log_losses, multiclass_brier_losses, top_label_brier_losses
from kcal.validation import require_pandas

if TYPE_CHECKING:
    import pandas

INTERVAL_NOTE = "calibration errors are biased upwards: debiased is without the part that chance adds"


@dataclass(frozen=True)
class Evaluation:
    """The metrics of the KCal paper for one set of probabilities.

    The static calibration errors are over equal-width bins, the others over equal-count ones.
    A class-wise error is nan if no probability reaches the threshold.
    """

    accuracy: float
    expected_calibration_error: float
    classwise_calibration_error: float
    static_expected_calibration_error: float
    static_classwise_calibration_error: float
    top_label_brier_loss: float
    multiclass_brier_loss: float
    negative_log_likelihood: float
    n_samples: int
    n_classes: int
    bins: int
    threshold: float  # a number, never "max" or "min"
    clip: Clip
    confidence: float | None = None
    intervals: Mapping[str, Interval] = field(default_factory=dict, hash=False)  # by metric; empty unless requested
    debiased: Mapping[str, float] = field(default_factory=dict, hash=False)  # of calibration errors, with intervals

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics by name."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name in METRICS}

    def as_dict(self) -> dict[str, float]:
        """Return the metrics by name, without the options they were computed with.

        With intervals, the entries ``<metric>_debiased`` of calibration errors, ``<metric>_low`` and ``<metric>_high``
        follow each metric.
        """
        entries = {}
        for name, value in self.metrics.items():
            entries[name] = value
            if name in self.debiased:
                entries[f"{name}_debiased"] = self.debiased[name]
            if name in self.intervals:
                entries[f"{name}_low"], entries[f"{name}_high"] = self.intervals[name]
        return entries

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame with one row per metric: value, interval and which direction is better.

        With intervals, the column ``debiased`` is the estimate that the interval is about; the value itself if the
        metric is not biased.
        """
        pandas = require_pandas()
        values = self.metrics
        frame = pandas.DataFrame({"value": values}, index=pandas.Index(values, name="metric"))
        if self.intervals:
            frame["debiased"] = [self.debiased.get(name, value) for name, value in values.items()]
            frame[["low", "high"]] = [self.intervals.get(name, (float("nan"), float("nan"))) for name in values]
        frame["better"] = [METRICS[name].direction for name in values]
        return frame

    def __str__(self) -> str:
        heading, rows = f"{self.n_samples:,} samples, {self.n_classes:,} classes", self._rows()
        number = "1 bin" if self.bins == 1 else f"{self.bins} bins"
        clipping = "as published" if self.clip == "published" else f"at {self.clip:g}"
        threshold = f"class-wise errors over probabilities of at least {self.threshold:.4g}"
        lines = [heading, *rows, f"{number}; {threshold}; probabilities clipped {clipping} in logarithms"]
        if self.confidence is not None:
            lines.append(INTERVAL_NOTE)
        return "\n".join(lines)

    def _rows(self) -> list[str]:
        """Return the metrics as lines, below a heading if there are intervals."""
        width = max(len(METRICS[name].description) for name in self.metrics)
        rows = []
        if self.confidence is not None:
            rows.append(f"{'':<{width}}  {'value':>9}  {'debiased':>9}  {100 * self.confidence:.6g} % interval")
        for name, value in self.metrics.items():
            more = ""
            if self.confidence is not None:
                debiased = f"{self.debiased[name]:.5f}" if name in self.debiased else ""
                interval = "[{:.5f}, {:.5f}]".format(*self.intervals[name]) if name in self.intervals else ""
                more = f"{debiased:>9}  {interval:<18}  "
            metric = METRICS[name]
            rows.append(f"{metric.description:<{width}}  {value:>9.5f}  {more}{metric.direction} is better")
        return rows


def evaluate(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    classes: ArrayLike | None = None,
    bins: int = 20,
    threshold: Threshold = "max",
    clip: Clip = 1e-12,
    sample_weight: ArrayLike | None = None,
    confidence: float | None = None,
    resamples: int = 1000,
    groups: ArrayLike | None = None,
    seed: int = 0,
) -> Evaluation:
    """Compute all metrics of the KCal paper and, optionally, their confidence intervals.

    Parameters
    ----------
    probs
        Probabilities, (n_samples, n_classes); each row sums to 1.
    labels
        True classes, (n_samples,): column indices of probs, or any labels if ``classes`` names the columns.
    classes
        The label of every column, like ``classes_`` of a calibrator.
    bins, threshold
        Of the calibration errors, as in `classwise_calibration_error`.
    clip
        Lower bound of probabilities inside the logarithm, as in `negative_log_likelihood`.
    sample_weight
        Relative importance of each sample, (n_samples,): c times the weights give the same result.
    confidence
        Probability with which an interval is to contain the true value, like 0.95; no intervals if None. They are
        bootstrap intervals; those of calibration errors are corrected for the bias of such errors (see
        ``kcal.metrics.intervals``) and contain the debiased estimate (``debiased``), not always the value.
    resamples
        Number of bootstrap resamples, 20 to 1,000,000.
    groups
        Patients, speakers, sites, (n_samples,): whole groups are resampled, because their rows are not independent.
    """
    predictions, binning = check_binned(
        probs, labels, sample_weight, bins=bins, threshold=threshold, classes=classes, groups=groups
    )
    clip = check_clip(clip)
    scores = _scores(predictions, clip)
    intervals: dict[str, Interval] = {}
    debiased: dict[str, float] = {}
    if confidence is not None:
        resampling = check_resampling(predictions, confidence=confidence, resamples=resamples, seed=seed)
        intervals, debiased = metric_intervals(predictions, scores, binning, resampling)
        confidence = resampling.confidence
    both = (binning, binning._replace(adaptive=False))
    ordered = sort_event(predictions, "confidence")
    adaptive, static = (ordered.bin(kind, of="confidence").calibration_error for kind in both)
    class_adaptive, class_static = mean_class_errors(predictions, *both)
    return Evaluation(
        **{name: predictions.mean(values) for name, values in scores.items()},
        expected_calibration_error=adaptive,
        classwise_calibration_error=class_adaptive,
        static_expected_calibration_error=static,
        static_classwise_calibration_error=class_static,
        n_samples=predictions.n_samples,
        n_classes=predictions.n_classes,
        bins=binning.bins,
        threshold=binning.threshold,
        clip=clip,
        confidence=confidence,
        intervals=intervals,
        debiased=debiased,
    )


def _scores(predictions: Predictions, clip: Clip) -> dict[str, NDArray[np.float64]]:
    """Return the values of each row, (n_samples,), of the metrics that are means over the rows."""
    return {
        "accuracy": predictions.correct.astype(np.float64),
        "top_label_brier_loss": top_label_brier_losses(predictions),
        "multiclass_brier_loss": multiclass_brier_losses(predictions),
        "negative_log_likelihood": log_losses(predictions, clip=clip),
    }
