"""Calibration errors of the top class and of every class, by binning."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.metrics.binning import bin_event, sort_classes
from kcal.metrics.intervals import estimate_class_errors
from kcal.metrics.predictions import Binning, Event, Predictions, Threshold, check_binned, check_event
from kcal.metrics.reliability_bins import ReliabilityBins
from kcal.metrics.resampling import check_resampling
from kcal.validation import check_integer, collect_classes, require_pandas

if TYPE_CHECKING:
    import pandas

MOST_CLASSES = 10**9


def expected_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 20,
    adaptive: bool = True,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Σ_b (n_b / n)·|accuracy_b − mean confidence_b|, over bins of the top class's probability.

    Parameters
    ----------
    probs
        Probabilities, (n_samples, n_classes); each row sums to 1.
    labels
        True classes as column indices of probs, (n_samples,).
    bins
        Number of bins; empty ones do not count.
    adaptive
        Equal-count bins; if False, equal-width bins, closed on the right.
    sample_weight
        Relative importance of each sample, (n_samples,).

    Returns
    -------
    float
        From 0 to 1, lower is better. The first of several equal largest probabilities is the top class. Equal
        confidences share their outcomes evenly, so that the order of the rows does not matter.
    """
    return reliability(probs, labels, bins=bins, adaptive=adaptive, sample_weight=sample_weight).calibration_error


def classwise_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 20,
    adaptive: bool = True,
    threshold: Threshold = "max",
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean over classes k of Σ_b (n_kb / n_k)·|frequency_kb − mean p_kb|, over bins of p_k.

    Of each class only the n_k rows with p_k ≥ threshold are binned, because the many tiny probabilities of wrong
    classes would hide every error. Classes without such a row are left out of the mean.

    Parameters
    ----------
    probs, labels, bins, adaptive, sample_weight
        As in `expected_calibration_error`; the number of bins is per class.
    threshold
        "max" is max(0.01, 1/K), as in the text of the KCal paper; "min" is min(0.01, 1/K), as in its published
        code and tables; or a number from 0 to 1.

    Returns
    -------
    float
        From 0 to 1, lower is better; nan if no probability reaches the threshold.
    """
    checked = check_binned(probs, labels, sample_weight, bins=bins, adaptive=adaptive, threshold=threshold)
    return mean_class_errors(*checked)[0]


def reliability(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 20,
    of: Event = "confidence",
    adaptive: bool = True,
    threshold: Threshold = 0.0,
    minimum_count: int = 0,
    sample_weight: ArrayLike | None = None,
) -> ReliabilityBins:
    """Bin the predictions of one event beside the observed outcomes, for a reliability diagram.

    Parameters
    ----------
    probs, labels, bins, adaptive, sample_weight
        As in `expected_calibration_error`, with the same defaults. Equal-width bins (``adaptive=False``) spread over
        the whole axis of a diagram.
    of
        "confidence": the probability of the top class, and whether it is right;
        the index of a class: its probability, and whether it is the label.
    threshold
        Rows with a lower prediction are left out: a number from 0 to 1, or "max" or "min" as in
        `classwise_calibration_error`, which is the mean of the errors of these bins over the classes.
    minimum_count
        Neighbouring bins are merged until each has at least this many samples, as by `ReliabilityBins.merged`. The
        calibration error of merged bins is never larger, because gaps of opposite signs cancel.
    """
    checked = check_binned(probs, labels, sample_weight, bins=bins, adaptive=adaptive, threshold=threshold)
    binned = bin_event(*checked, of=check_event(of, checked[0].n_classes))
    return binned.merged(minimum_count)


def mean_class_errors(predictions: Predictions, *binnings: Binning) -> list[float]:
    """Compute the class-wise calibration error for each kind of bins, sorting once; they share their threshold."""
    errors = [
        [ordered.bin(binning, of=k).calibration_error for binning in binnings]
        for k, ordered in enumerate(sort_classes(predictions, threshold=binnings[0].threshold))
    ]
    return [mean_of_defined(column) for column in np.transpose(errors)]


def mean_of_defined(errors: NDArray[np.float64]) -> float:
    """Return the mean of the errors that are not nan, which are those of classes with rows; nan if there are none."""
    return float(np.nanmean(errors)) if np.isfinite(errors).any() else float("nan")


@dataclass(frozen=True, eq=False)
class ClassErrors:
    """One entry per class, in the order of the columns; errors are nan for a class without rows."""

    classes: NDArray[Any]  # labels of the columns
    positives: NDArray[np.intp]  # samples of the class, whatever their probability
    counts: NDArray[np.intp]  # rows whose probability of the class reaches the threshold
    mean_prediction: NDArray[np.float64]  # mean probability of the class over those rows
    frequency: NDArray[np.float64]  # fraction of those rows that are of the class
    error: NDArray[np.float64]  # Σ_b (n_b / n)·|gap_b|, the sum of the next two
    overconfidence: NDArray[np.float64]  # the part from bins whose predictions are too high
    underconfidence: NDArray[np.float64]  # the part from bins whose predictions are too low
    threshold: float  # the smallest probability that is binned
    debiased: NDArray[np.float64] | None = None  # the error without the part that chance adds; None without intervals
    low: NDArray[np.float64] | None = None  # ends of the interval of the error, which contains the debiased one
    high: NDArray[np.float64] | None = None
    signed_margin: NDArray[np.float64] | None = None  # the largest |signed_error| that chance alone gives

    @property
    def signed_error(self) -> NDArray[np.float64]:
        """Frequency minus mean prediction: negative where the predictions are too high."""
        return self.frequency - self.mean_prediction

    @property
    def beyond_chance(self) -> NDArray[np.bool_] | None:
        """Whether an error, in its bins or on average, is more than chance alone gives; None without intervals."""
        if self.low is None or self.signed_margin is None:
            return None
        return np.asarray((np.nan_to_num(self.low) > 0) | (np.abs(self.signed_error) > self.signed_margin))

    @property
    def mean(self) -> float:
        """The class-wise calibration error: the mean over the classes that have rows."""
        return mean_of_defined(self.error)

    def worst(self, n: int = 10) -> NDArray[np.intp]:
        """Return the columns of the n classes with the largest errors, worst first; classes without rows come last."""
        check_integer(n, "n", minimum=0, maximum=MOST_CLASSES)
        return np.argsort(-np.nan_to_num(self.error, nan=-1.0), kind="stable")[:n]

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame with one row per class."""
        pandas = require_pandas()
        names = ("positives", "counts", "mean_prediction", "frequency", "error", "signed_error")
        columns = {name: getattr(self, name) for name in (*names, "overconfidence", "underconfidence")}
        if self.debiased is not None:
            columns |= {
                "debiased": self.debiased,
                "low": self.low,
                "high": self.high,
                "beyond_chance": self.beyond_chance,
            }
        return pandas.DataFrame(columns, index=pandas.Index(self.classes, name="class"))

    def __str__(self) -> str:
        width = min(max(len(str(name)) for name in [*self.classes, "class"]), 60)
        heading = f"{'class':<{width}}  {'samples':>8}  {'rows':>8}  {'prediction':>10}  {'frequency':>9}  {'error':>7}"
        rows = [
            f"{str(self.classes[k])[:width]:<{width}}  {self.positives[k]:>8,}  {self.counts[k]:>8,}  "
            f"{self.mean_prediction[k]:>10.4f}  {self.frequency[k]:>9.4f}  {self.error[k]:>7.4f}"
            for k in self.worst(20)
        ]
        left = len(self.classes) - len(rows)
        more = [f"and {left:,} more"] if left else []
        summary = f"mean error {self.mean:.4f} over probabilities of at least {self.threshold:.4g}, worst classes first"
        return "\n".join([heading, *rows, *more, summary])


def class_errors(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    classes: ArrayLike | None = None,
    bins: int = 20,
    adaptive: bool = True,
    threshold: Threshold = "max",
    sample_weight: ArrayLike | None = None,
    confidence: float | None = None,
    resamples: int = 200,
    groups: ArrayLike | None = None,
    seed: int = 0,
) -> ClassErrors:
    """Calibration error of each class, whose mean is `classwise_calibration_error`.

    Parameters
    ----------
    probs, labels, classes, sample_weight
        As in `evaluate`.
    bins, adaptive, threshold
        As in `classwise_calibration_error`.
    confidence, resamples, groups, seed
        Of the intervals of the errors, as in `evaluate`; no intervals if ``confidence`` is None.
    """
    predictions, binning = check_binned(
        probs, labels, sample_weight, bins=bins, adaptive=adaptive, threshold=threshold, classes=classes, groups=groups
    )
    debiased = low = high = margin = None
    if confidence is not None:
        resampling = check_resampling(predictions, confidence=confidence, resamples=resamples, seed=seed)
        debiased, low, high, margin = estimate_class_errors(predictions, binning, resampling).T
    ordered = enumerate(sort_classes(predictions, threshold=binning.threshold))
    binned = [values.bin(binning, of=k) for k, values in ordered]
    return ClassErrors(
        classes=np.arange(predictions.n_classes) if classes is None else collect_classes([], classes),
        positives=np.bincount(predictions.labels, minlength=predictions.n_classes),
        counts=np.array([part.total for part in binned]),
        mean_prediction=np.array([part.mean_of(part.mean_prediction) for part in binned]),
        frequency=np.array([part.mean_of(part.observed_frequency) for part in binned]),
        error=np.array([part.calibration_error for part in binned]),
        overconfidence=np.array([part.overconfidence for part in binned]),
        underconfidence=np.array([part.underconfidence for part in binned]),
        threshold=binning.threshold,
        debiased=debiased,
        low=low,
        high=high,
        signed_margin=margin,
    )
