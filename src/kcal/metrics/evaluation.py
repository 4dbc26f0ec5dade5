"""All metrics of the KCal paper at once, in one result that prints as a table, and the interval of any metric."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.errors import InvalidInputError
from kcal.metrics.binning import sort_event
from kcal.metrics.calibration import mean_class_errors
from kcal.metrics.intervals import metric_intervals
from kcal.metrics.predictions import Predictions, Threshold, check_binned, check_predictions
from kcal.metrics.registry import METRICS, kind_of_metric
from kcal.metrics.resampling import Interval, Resampling, check_resampling, tails
from kcal.metrics.scores import Clip, check_clip, log_losses, multiclass_brier_losses, top_label_brier_losses
from kcal.validation import check_choice, require_pandas

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


Kind = Literal["auto", "score", "error", "squared error"]
SCALES = (0.0, 0.25, 0.5, 0.75, 1.0)

Measure = Callable[[Predictions, NDArray[np.float64] | None], float]
"""A metric of predictions and of weights of the rows."""


def confidence_interval(
    metric: Callable[..., Any],
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    kind: Kind = "auto",
    confidence: float = 0.95,
    resamples: int = 200,
    groups: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    seed: int = 0,
) -> Interval:
    """Interval of any metric by resampling: percentiles for a score, an inverted test for a calibration error.

    Parameters
    ----------
    metric
        Function of probabilities and labels that returns a number: any metric of ``kcal.metrics``, your own, or
        ``functools.partial`` of one to set its options. A metric without ``sample_weight`` is given repeated rows.
    probs, labels
        As in `expected_calibration_error`; the metric is given numpy arrays.
    kind
        "score": a mean over the samples, like accuracy or log-loss; "error": a calibration error, which grows with
        the gaps between prediction and outcome; "squared error": one that grows with their squares. "auto" looks the
        metric up in ``kcal.metrics.registry`` and takes any other for a score.
    confidence, groups, seed
        As in `evaluate`. Whole groups are resampled; labels are still drawn row by row.
    resamples
        Number of resamples, 20 to 1,000,000; five times as many for an error.
    sample_weight
        Relative importance of each sample, (n_samples,); passed on to the metric as ``sample_weight``.

    Notes
    -----
    Coverage of 95 % intervals in simulations is in the benchmarks of the documentation.
    """
    predictions = check_predictions(probs, labels, sample_weight, groups=groups)
    check_choice(kind, "kind", get_args(Kind))
    chosen = kind_of_metric(metric) if kind == "auto" else kind
    measure = _measure_of(metric)
    resampling = check_resampling(predictions, confidence=confidence, resamples=resamples, seed=seed)
    if chosen == "score":
        values = [measure(predictions, drawn) for block in resampling.draws(predictions) for drawn in block.T]
        return resampling.percentile_interval(np.array(values))
    measured = measure(predictions, predictions.weights)
    quantiles = np.array([_quantiles(measure, predictions, scale, resampling) for scale in SCALES])
    power = 1 if chosen == "error" else 2
    return _inverted(measured, np.maximum.accumulate(quantiles, axis=0), power, resampling.few_groups_factor)


def _measure_of(metric: Callable[..., Any]) -> Measure:
    """Return the metric as a function of predictions and weights of the rows."""
    try:
        signature = inspect.signature(metric)
        signature.bind(None, None)
    except (TypeError, ValueError) as error:
        raise InvalidInputError("metric", "must be a function of probabilities and labels", got=str(error)) from None
    parameters = signature.parameters
    if "resamples" in parameters:  # those of its own p-value, which is not used here
        metric = partial(metric, resamples=0)

    def measure(predictions: Predictions, weights: NDArray[np.float64] | None) -> float:
        if weights is None:
            return _number(metric(predictions.probs, predictions.labels))
        if "sample_weight" in parameters:
            return _number(metric(predictions.probs, predictions.labels, sample_weight=weights))
        if predictions.weights is not None:
            raise InvalidInputError("metric", "must take sample_weight if weights are given", got="one that does not")
        rows = np.repeat(np.arange(predictions.n_samples), weights.astype(np.intp))
        return _number(metric(predictions.probs[rows], predictions.labels[rows]))

    return measure


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidInputError("metric", "must return a number", got=type(value).__name__) from None


def _quantiles(measure: Measure, predictions: Predictions, scale: float, resampling: Resampling) -> NDArray[np.float64]:
    """Return the lower, middle and upper quantiles of the metric if the true gaps are ``scale`` times the observed."""
    generator = np.random.default_rng([resampling.seed, round(100 * scale)])
    cumulative = predictions.probs.cumsum(axis=1, dtype=np.float64)  # (n_samples, n_classes)
    groups = np.arange(predictions.n_samples) if resampling.groups is None else resampling.groups
    values = []
    for block in resampling.draws(predictions):
        for drawn in block.T:
            kept = (generator.random(groups.max() + 1) < scale)[groups]
            above = (generator.random(predictions.n_samples) * cumulative[:, -1])[:, None] >= cumulative
            labels = np.where(kept, predictions.labels, np.minimum(above.sum(axis=1), predictions.n_classes - 1))
            simulated = Predictions(predictions.probs, labels, predictions.weights)
            values.append(measure(simulated, np.where(kept, drawn, predictions.row_weights)))
    low, high = tails(resampling.confidence)
    return np.asarray(np.nanquantile(values, (low, 0.5, high)))


def _inverted(measured: float, quantiles: NDArray[np.float64], power: int, widening: float) -> Interval:
    """Return the errors, s to some power times the measured one, under which the measured one is not extreme.

    Data with s > 1 cannot be simulated; there the interval reaches as far above as the lower quantile is below, and
    farther if there are few groups.
    """
    lower, middle, upper = quantiles.T
    at_least, at_most = (float(np.interp(measured, ends, SCALES)) for ends in (upper, lower))
    low = at_least**power * max(measured, 0.0)
    distance = measured - float(lower[-1])
    high = measured + widening * distance if distance >= 0 else at_most**power * max(measured, 0.0)
    noise = float(upper[0] - middle[0])  # errors this small cannot be distinguished from 0
    return Interval(low, max(high, noise))
