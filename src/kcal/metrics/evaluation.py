"""All of the paper's metrics at once, in one result that prints as a table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from numpy.typing import ArrayLike

from kcal.metrics.calibration import confidence_errors, mean_class_errors
from kcal.metrics.intervals import Resampling, metric_intervals
from kcal.metrics.predictions import (
    Threshold,
    check_bins,
    check_predictions,
    resolve_threshold,
)
from kcal.metrics.resampling import Interval, check_confidence, check_resamples
from kcal.metrics.scores import (
    Clip,
    accuracy_of,
    check_clip,
    multiclass_brier_loss_of,
    negative_log_likelihood_of,
    top_label_brier_loss_of,
)
from kcal.validation import check_groups, check_seed

if TYPE_CHECKING:
    import pandas


class MetricDescription(NamedTuple):
    """How a metric is called in a table, and which direction is better."""

    title: str
    better: str


METRICS = {
    "accuracy": MetricDescription("accuracy", "higher"),
    "expected_calibration_error": MetricDescription("expected calibration error", "lower"),
    "classwise_calibration_error": MetricDescription("class-wise calibration error", "lower"),
    "static_expected_calibration_error": MetricDescription("expected calibration error, equal width", "lower"),
    "static_classwise_calibration_error": MetricDescription("class-wise calibration error, equal width", "lower"),
    "top_label_brier_loss": MetricDescription("top-label Brier loss", "lower"),
    "multiclass_brier_loss": MetricDescription("multi-class Brier loss", "lower"),
    "negative_log_likelihood": MetricDescription("negative log-likelihood", "lower"),
}


BELOW_THE_VALUE = "chance adds to calibration errors, so that theirs can lie below the value"


@dataclass(frozen=True)
class Evaluation:
    """The paper's metrics of one set of probabilities.

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
    threshold: float  # resolved: a number, never "max" or "min"
    clip: Clip
    confidence: float | None = None
    intervals: Mapping[str, Interval] = field(default_factory=dict, hash=False)  # by metric; empty unless asked for

    def as_dict(self) -> dict[str, float]:
        """Return the metrics by name, without the settings they were computed with."""
        return {name: getattr(self, name) for name in METRICS}

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame: a row a metric, its value, its interval and which direction is better."""
        import pandas

        columns = {"value": self.as_dict()}
        if self.intervals:
            columns["low"] = {name: interval.low for name, interval in self.intervals.items()}
            columns["high"] = {name: interval.high for name, interval in self.intervals.items()}
        frame = pandas.DataFrame(columns, index=pandas.Index(METRICS, name="metric"))
        frame["better"] = [METRICS[name].better for name in METRICS]
        return frame

    def __str__(self) -> str:
        width = max(len(description.title) for description in METRICS.values())
        rows = [
            f"{title:<{width}}  {getattr(self, name):>9.5f}  {self._interval_text(name)}{better} is better"
            for name, (title, better) in METRICS.items()
        ]
        number = "1 bin" if self.bins == 1 else f"{self.bins} bins"
        clipping = "as published" if self.clip == "published" else f"at {self.clip:g}"
        intervals = (
            []
            if self.confidence is None
            else [f"{self.confidence:.4g} confidence intervals in brackets; {BELOW_THE_VALUE}"]
        )
        return "\n".join(
            [
                f"{self.n_samples:,} samples, {self.n_classes:,} classes",
                *rows,
                f"{number}; class-wise errors over probabilities of at least {self.threshold:.4g}; "
                f"logarithms clipped {clipping}",
                *intervals,
            ]
        )

    def _interval_text(self, name: str) -> str:
        if name not in self.intervals:
            return ""
        return f"[{self.intervals[name].low:.5f}, {self.intervals[name].high:.5f}]  "


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
    """Compute all of the paper's metrics, and their confidence intervals when asked.

    Parameters
    ----------
    probs
        Probabilities, (n_samples, n_classes); each row sums to 1.
    labels
        True classes, (n_samples,): column indices of probs, or any labels where ``classes`` names the columns.
    classes
        The label of every column, as a calibrator's ``classes_``.
    bins
        Number of bins of the calibration errors.
    threshold
        The least probability that counts in the class-wise errors, as in `classwise_calibration_error`.
    clip
        Where probabilities are clipped before the logarithm, as in `negative_log_likelihood`.
    sample_weight
        How much each row counts, (n_samples,).
    confidence
        Share of intervals that are to hold the truth, like 0.95; no intervals if None. They are bootstrap intervals;
        those of calibration errors are freed of the bias that chance gives to such errors (see
        ``kcal.metrics.resampling``), so that the interval can lie below the value.
    resamples
        How many times the rows are drawn anew for the intervals.
    groups
        Patients, speakers, sites, (n_samples,): whole groups are drawn anew, because their rows are not independent.
    seed
        Same seed, same intervals.
    """
    predictions = check_predictions(probs, labels, sample_weight, classes)
    number = check_bins(bins)
    lowest = resolve_threshold(threshold, predictions.n_classes)
    clip = check_clip(clip)
    adaptive, static = confidence_errors(predictions, bins=number, adaptive=(True, False))
    class_adaptive, class_static = mean_class_errors(predictions, bins=number, threshold=lowest, adaptive=(True, False))
    intervals: dict[str, Interval] = {}
    codes = None if groups is None else check_groups(groups, predictions.n_samples)
    if confidence is not None:
        settings = Resampling(check_confidence(confidence), check_resamples(resamples), codes, check_seed(seed))
        intervals = metric_intervals(predictions, settings, bins=number, threshold=lowest, clip=clip)
    return Evaluation(
        accuracy=accuracy_of(predictions),
        expected_calibration_error=adaptive,
        classwise_calibration_error=class_adaptive,
        static_expected_calibration_error=static,
        static_classwise_calibration_error=class_static,
        top_label_brier_loss=top_label_brier_loss_of(predictions),
        multiclass_brier_loss=multiclass_brier_loss_of(predictions),
        negative_log_likelihood=negative_log_likelihood_of(predictions, clip=clip),
        n_samples=predictions.n_samples,
        n_classes=predictions.n_classes,
        bins=number,
        threshold=lowest,
        clip=clip,
        confidence=confidence,
        intervals=intervals,
    )
