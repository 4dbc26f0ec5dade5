"""The interval of one metric, as ``evaluate`` computes it beside those of all others."""

import math

from kcal.metrics.intervals import accuracy_interval, estimate_binned_error, resampled_means
from kcal.metrics.predictions import Binning, check_predictions, resolve_threshold
from kcal.metrics.resampling import check_resampling

BINNED = (
    "expected_calibration_error",
    "classwise_calibration_error",
    "static_expected_calibration_error",
    "static_classwise_calibration_error",
)


def interval_of(name, probs, labels, *, confidence=0.95, resamples=100, bins=20, groups=None):
    """Return the interval of the accuracy or of a binned error, in a small part of the time that all of them take."""
    predictions = check_predictions(probs, labels, groups=groups)
    resampling = check_resampling(predictions, confidence=confidence, resamples=resamples, seed=0)
    if name == "accuracy":
        means = resampled_means(predictions, predictions.correct.astype(float)[:, None], resampling)
        return accuracy_interval(predictions, means[:, 0], resampling)
    classwise = "classwise" in name
    threshold = resolve_threshold("max", predictions.n_classes) if classwise else 0.0
    events = range(predictions.n_classes) if classwise else ["confidence"]
    binning = Binning(bins, not name.startswith("static_"), threshold)
    return estimate_binned_error(predictions, events, binning, resampling).interval


def coverage_is_nominal(holds, *, poor, nominal=0.95, false_alarm=0.002, oversight=0.05):
    """Wald's sequential test of a nominal coverage against a poor one; stops once the likelihood ratio decides.

    A nominal coverage is rejected with probability 0.002 (about three standard errors), a poor one accepted with 0.05.
    """
    accepted, rejected = math.log((1 - false_alarm) / oversight), math.log(false_alarm / (1 - oversight))
    score = 0.0
    for holds_truth in holds:
        score += math.log(nominal / poor) if holds_truth else math.log((1 - nominal) / (1 - poor))
        if not rejected < score < accepted:
            return score > 0
    raise ValueError("too few intervals for a decision")
