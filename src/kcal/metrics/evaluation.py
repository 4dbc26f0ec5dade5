"""The metrics of a protocol at once, in one result that prints as a table, and the interval of any metric."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_args, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.errors import InvalidInputError
from kcal.metrics.calibration import mean_errors
from kcal.metrics.intervals import BinnedError, metric_intervals
from kcal.metrics.kernel_errors import smooth_error
from kcal.metrics.predictions import Binning, Predictions, Threshold, check_bins, check_predictions, resolve_threshold
from kcal.metrics.registry import PROTOCOLS, Metric, kind_of_metric
from kcal.metrics.resampling import DEFAULT_CONFIDENCE, Interval, Resampling, check_resampling, tails
from kcal.metrics.scores import (
    Clip,
    brier_scores,
    check_clip,
    log_losses,
    multiclass_brier_losses,
    top_label_brier_losses,
)
from kcal.metrics.subgroups import SubgroupEvaluation, check_subgroups, evaluate_subgroups
from kcal.validation import check_choice

if TYPE_CHECKING:
    import pandas

Protocol = Literal["standard", "paper"]
BINS: dict[str, int] = {"standard": 15, "paper": 20}
THRESHOLDS: dict[str, Threshold] = {"standard": 0.0, "paper": "max"}
INTERVAL_NOTE = (
    "calibration errors are biased upwards: debiased is without the part that chance adds; the intervals are about it"
)


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one set of probabilities; each is an attribute too, like ``expected_calibration_error``.

    A class-wise error is nan if no probability reaches the threshold.
    """

    metrics: Mapping[str, float] = field(hash=False)  # by name
    n_samples: int
    n_classes: int
    bins: int
    threshold: float  # of class-wise errors: a number, never "max" or "min"
    clip: Clip
    protocol: Protocol = "standard"
    confidence: float | None = None
    intervals: Mapping[str, Interval] = field(default_factory=dict, hash=False)  # by metric; empty unless requested
    debiased: Mapping[str, float] = field(default_factory=dict, hash=False)  # of calibration errors, with intervals

    def __getattr__(self, name: str) -> float:
        if name != "metrics" and name in self.metrics:
            return self.metrics[name]
        raise AttributeError(f"an evaluation by the {self.protocol} protocol has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.metrics]

    @property
    def adaptive(self) -> bool:
        """Whether the calibration errors are over bins of equal count."""
        return self.protocol == "paper"

    @property
    def definitions(self) -> dict[str, Metric]:
        """Title, unit and direction of each metric, by name."""
        return PROTOCOLS[self.protocol]

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

        With intervals, the column ``debiased`` is the estimate that the interval is about, the value itself if the
        metric is not biased; NaN for the smooth ECE, which has no interval.
        """
        import pandas

        values = self.metrics
        frame = pandas.DataFrame({"value": values}, index=pandas.Index(values, name="metric"))
        if self.intervals:
            nan = float("nan")
            frame["debiased"] = [
                self.debiased.get(name, value if name in self.intervals else nan) for name, value in values.items()
            ]
            frame[["low", "high"]] = [self.intervals.get(name, (nan, nan)) for name in values]
        frame["better"] = [self.definitions[name].direction for name in values]
        return frame

    def __str__(self) -> str:
        frame = self.to_frame().rename(index={name: metric.description for name, metric in self.definitions.items()})
        frame.index.name = None
        heading = f"{self.n_samples:,} samples, {self.n_classes:,} classes"
        lines = [heading, frame.to_string(float_format="{:.5f}".format, na_rep="–"), self.settings]
        if self.confidence is not None:
            lines.append(f"{100 * self.confidence:.6g} % intervals; {INTERVAL_NOTE}")
        return "\n".join(lines)

    @property
    def settings(self) -> str:
        """Bins, threshold and clipping in words."""
        kind = "equal-count bins unless noted" if self.adaptive else "equal-width bins"
        over = f"probabilities of at least {self.threshold:.4g}" if self.threshold > 0 else "all probabilities"
        clipping = "as published" if self.clip == "published" else f"at {self.clip:g}"
        return f"{self.bins} {kind}; class-wise errors over {over}; probabilities clipped {clipping} in logarithms"


class EvaluationOptions(TypedDict, total=False):
    """The types of the options of `evaluate`."""

    classes: ArrayLike | None
    protocol: Protocol
    bins: int | None
    threshold: Threshold | None
    clip: Clip
    sample_weight: ArrayLike | None
    confidence: float | None
    resamples: int
    groups: ArrayLike | None
    seed: int


@overload
def evaluate(
    probs: ArrayLike, labels: ArrayLike, *, by: None = None, **options: Unpack[EvaluationOptions]
) -> Evaluation: ...
@overload
def evaluate(
    probs: ArrayLike, labels: ArrayLike, *, by: ArrayLike, **options: Unpack[EvaluationOptions]
) -> SubgroupEvaluation: ...
def evaluate(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    classes: ArrayLike | None = None,
    protocol: Protocol = "standard",
    bins: int | None = None,
    threshold: Threshold | None = None,
    clip: Clip = 1e-12,
    sample_weight: ArrayLike | None = None,
    confidence: float | None = None,
    resamples: int = 1000,
    groups: ArrayLike | None = None,
    seed: int = 0,
    by: ArrayLike | None = None,
) -> Evaluation | SubgroupEvaluation:
    """Compute accuracy, ECE, class-wise ECE, smooth ECE, Brier score and log-loss, with intervals if asked for.

    Parameters
    ----------
    probs
        Probabilities, (n_samples, n_classes); each row sums to 1.
    labels
        True classes, (n_samples,): column indices of probs, or any labels if ``classes`` names the columns.
    classes
        The label of every column, like ``classes_`` of a calibrator.
    protocol
        "standard": the definitions of most papers and libraries. "paper": those of the KCal paper, with 20 bins of
        equal count, class-wise errors over probabilities of at least max(0.01, 1/K), and the Brier score of the top
        class.
    bins, threshold
        Of the calibration errors, as in `classwise_calibration_error`; by default 15 and 0, or 20 and "max" of the
        paper.
    clip
        Lower bound of probabilities inside the logarithm, as in `negative_log_likelihood`.
    sample_weight
        Relative importance of each sample, (n_samples,): c times the weights give the same result.
    confidence
        Probability with which an interval is to contain the true value, like 0.95; no intervals if None. They are
        bootstrap intervals; those of calibration errors are corrected for the bias of such errors (see
        ``kcal.metrics.intervals``) and contain the debiased estimate (``debiased``), not always the value. The smooth
        ECE has none, which would take long: see `confidence_interval`.
    resamples
        Number of bootstrap resamples, 20 to 1,000,000.
    groups
        Patients, speakers, sites, (n_samples,): whole groups are resampled, because their rows are not independent.
    by
        Subgroup of each sample, (n_samples,), such as sex or device. The result then is a `SubgroupEvaluation`: one row
        per subgroup with accuracy, mean confidence, ECE and its interval (95 % unless ``confidence`` says otherwise),
        whether the confidence is too high or too low, and whether its gap then differs from that of the other samples,
        beyond chance.
    """
    check_choice(protocol, "protocol", get_args(Protocol))
    predictions = check_predictions(probs, labels, sample_weight, classes, groups)
    number = check_bins(BINS[protocol] if bins is None else bins)
    lowest = resolve_threshold(THRESHOLDS[protocol] if threshold is None else threshold, predictions.n_classes)
    if by is not None:
        level = DEFAULT_CONFIDENCE if confidence is None else confidence
        resampling = check_resampling(predictions, confidence=level, resamples=resamples, seed=seed)
        binning = Binning(number, adaptive=protocol == "paper")
        return evaluate_subgroups(
            predictions, *check_subgroups(by, sample_weight, np.shape(labels)[0]), binning, resampling
        )
    clip, errors = check_clip(clip), _binned_errors(protocol, Binning(number, adaptive=False, threshold=lowest))
    scores = _scores(predictions, protocol, clip)
    intervals: dict[str, Interval] = {}
    debiased: dict[str, float] = {}
    if confidence is not None:
        resampling = check_resampling(predictions, confidence=confidence, resamples=resamples, seed=seed)
        intervals, debiased = metric_intervals(predictions, scores, errors, resampling)
        confidence = resampling.confidence
    values = {name: predictions.mean(per_row) for name, per_row in scores.items()} | mean_errors(predictions, errors)
    if protocol == "standard":
        values["smooth_calibration_error"] = smooth_error(predictions)
    return Evaluation(
        metrics={name: values[name] for name in PROTOCOLS[protocol]},
        n_samples=predictions.n_samples,
        n_classes=predictions.n_classes,
        bins=number,
        threshold=lowest,
        clip=clip,
        protocol=protocol,
        confidence=confidence,
        intervals=intervals,
        debiased=debiased,
    )


def _binned_errors(protocol: Protocol, binning: Binning) -> dict[str, BinnedError]:
    """Return the binned calibration errors of a protocol by name."""
    kinds = {"": False} if protocol == "standard" else {"": True, "static_": False}
    errors = {}
    for prefix, adaptive in kinds.items():
        of_classes = binning._replace(adaptive=adaptive)
        errors[f"{prefix}expected_calibration_error"] = BinnedError("confidence", of_classes._replace(threshold=0.0))
        errors[f"{prefix}classwise_calibration_error"] = BinnedError("classes", of_classes)
    return errors


def _scores(predictions: Predictions, protocol: Protocol, clip: Clip) -> dict[str, NDArray[np.float64]]:
    """Return the values of each row, (n_samples,), of the metrics that are means over the rows."""
    scores = {"accuracy": predictions.correct.astype(np.float64)}
    if protocol == "standard":
        scores["brier_score"] = brier_scores(predictions)
    else:
        scores["top_label_brier_loss"] = top_label_brier_losses(predictions)
        scores["multiclass_brier_loss"] = multiclass_brier_losses(predictions)
    return scores | {"negative_log_likelihood": log_losses(predictions, clip=clip)}


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
