"""The interval of one metric, as ``evaluate`` computes it beside those of all others."""

from kcal.metrics.gap_intervals import gap_interval
from kcal.metrics.intervals import Resampling, _accuracy_interval, _Binning, _resampled_gaps, _resampled_means
from kcal.metrics.predictions import check_predictions, resolve_threshold
from kcal.validation import check_groups

BINNED = (
    "expected_calibration_error",
    "classwise_calibration_error",
    "static_expected_calibration_error",
    "static_classwise_calibration_error",
)


def interval_of(name, probs, labels, *, confidence=0.95, resamples=100, bins=20, groups=None):
    """Return the interval of the accuracy or of a binned error, in a small part of the time that all of them take."""
    predictions = check_predictions(probs, labels)
    codes = None if groups is None else check_groups(groups, predictions.n_samples)
    settings = Resampling(confidence, resamples, codes, 0)
    if name == "accuracy":
        means = _resampled_means(predictions, predictions.correct.astype(float)[:, None], settings)
        return _accuracy_interval(predictions, means[:, 0], settings)
    events = range(predictions.n_classes) if "classwise" in name else ["confidence"]
    kind = _Binning(bins, not name.startswith("static_"), resolve_threshold("max", predictions.n_classes))
    gaps = _resampled_gaps(predictions, events, kind, settings)
    return gap_interval(gaps, confidence, seed=0, clustered=codes is not None)


def held_often_enough(holds, *, least, of):
    """Say whether at least so many of so many intervals hold the truth; no more are computed than it takes to know."""
    held = 0
    for number, holds_it in enumerate(holds, start=1):
        held += bool(holds_it)
        if held >= least or number - held > of - least:
            return held >= least
    raise ValueError(f"fewer than {of} intervals")
