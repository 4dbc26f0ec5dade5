"""A confidence interval of any metric, by resampling rows and, for calibration errors, drawing labels.

A calibration error is biased upwards by noise, and a resample adds noise a second time. So tests of hypotheses are
inverted instead, each "the true gaps between prediction and outcome are s times the observed ones". Data of such a
hypothesis are simulated: with probability s a row keeps its label and is resampled; otherwise its label is drawn from
its predicted probabilities. The interval holds the errors of the hypotheses under which the measured error is not
extreme.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.errors import InvalidInputError
from kcal.metrics.predictions import Predictions, check_predictions
from kcal.metrics.registry import kind_of_metric
from kcal.metrics.resampling import Interval, Resampling, check_resampling, tails
from kcal.validation import check_choice

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
    Coverage of 95 % intervals in simulations is on the page of benchmarks of the documentation.
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
    parameters = _parameters(metric)
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


def _parameters(metric: Callable[..., Any]) -> set[str]:
    """Return the names of the parameters; raise if the metric does not take probabilities and labels."""
    try:
        signature = inspect.signature(metric)
        signature.bind(None, None)
    except (TypeError, ValueError) as error:
        raise InvalidInputError("metric", "must be a function of probabilities and labels", got=str(error)) from None
    return set(signature.parameters)


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
