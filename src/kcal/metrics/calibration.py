"""Calibration errors by binning: of the top class, of every class, squared, and of whole distributions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.metrics.binning import ROUNDING, ReliabilityBins, SortedEvent, bin_event, sort_event, sort_events_of_classes
from kcal.metrics.intervals import BinnedError, estimate_class_errors
from kcal.metrics.predictions import (
    Binning,
    Event,
    Floats,
    Predictions,
    Threshold,
    blocks,
    check_binned,
    check_bins,
    check_event,
    check_predictions,
)
from kcal.metrics.resampling import check_resampling
from kcal.validation import check_flag, check_integer, collect_classes

if TYPE_CHECKING:
    import pandas

MAX_CLASSES = 10**9
ROWS_SHOWN = 20
"""Classes of a printed table."""


def expected_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    adaptive: bool = False,
    sample_weight: ArrayLike | None = None,
) -> float:
    """ECE: Σ_b (n_b / n)·|accuracy_b − mean confidence_b|, over bins of the top class's probability.

    By default over 15 bins of equal width, as in most papers and libraries. The KCal paper has 20 bins of equal count:
    ``bins=20, adaptive=True``.

    Parameters
    ----------
    probs
        Probabilities, (n_samples, n_classes); each row sums to 1.
    labels
        True classes as column indices of probs, (n_samples,).
    bins
        Number of bins; empty ones do not count.
    adaptive
        Equal-width bins, closed on the right; if True, equal-count bins: with n samples in B bins each holds n // B,
        and the last n mod B one more.
    sample_weight
        Relative importance of each sample, (n_samples,).

    Returns
    -------
    float
        From 0 to 1, lower is better. The first of several equal largest probabilities is the top class. Equal
        confidences share their outcomes evenly: the order of the rows does not matter.
    """
    return reliability(probs, labels, bins=bins, adaptive=adaptive, sample_weight=sample_weight).calibration_error


def classwise_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    adaptive: bool = False,
    threshold: Threshold = 0.0,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Class-wise ECE: the mean over classes k of Σ_b (n_kb / n_k)·|frequency_kb − mean p_kb|, over bins of p_k.

    By default over 15 bins of equal width and all probabilities (Kull et al. 2019). With a threshold, only the n_k rows
    with p_k ≥ threshold are binned: with many classes the tiny probabilities of wrong classes hide every error. Classes
    without such a row are left out of the mean. The KCal paper has ``bins=20, adaptive=True, threshold="max"``.

    Parameters
    ----------
    probs, labels, bins, adaptive, sample_weight
        As in `expected_calibration_error`; the number of bins is per class.
    threshold
        A number from 0 to 1; "max" is max(0.01, 1/K), as in the text of the KCal paper; "min" is min(0.01, 1/K), as in
        its published code and tables.

    Returns
    -------
    float
        From 0 to 1, lower is better; nan if no probability reaches the threshold.
    """
    predictions, binning = check_binned(probs, labels, sample_weight, bins=bins, adaptive=adaptive, threshold=threshold)
    return mean_errors(predictions, {"error": BinnedError("classes", binning)})["error"]


def reliability(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    of: Event = "confidence",
    adaptive: bool = False,
    threshold: Threshold = 0.0,
    minimum_count: int = 0,
    sample_weight: ArrayLike | None = None,
) -> ReliabilityBins:
    """Bin the predictions of one event beside the observed outcomes, for a reliability diagram.

    Parameters
    ----------
    probs, labels, bins, adaptive, sample_weight
        As in `expected_calibration_error`, with the same defaults.
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


def mean_errors(predictions: Predictions, errors: Mapping[str, BinnedError]) -> dict[str, float]:
    """Compute binned errors by name, sorting once for all of the confidence and once for all of the classes."""
    values: dict[str, float] = {}
    for of in ("confidence", "classes"):
        binnings = {name: error.binning for name, error in errors.items() if error.of == of}
        if binnings:
            threshold = next(iter(binnings.values())).threshold  # which they share
            events: Iterable[SortedEvent] = [sort_event(predictions, "confidence")]
            if of == "classes":
                events = sort_events_of_classes(predictions, threshold)
            by_event = [
                [event.bin(binning, of=k).calibration_error for binning in binnings.values()]
                for k, event in enumerate(events)
            ]
            values |= dict(zip(binnings, map(mean_of_defined, np.transpose(by_event)), strict=True))
    return values


def mean_of_defined(errors: NDArray[np.float64]) -> float:
    """Return the mean of the errors that are not nan, which are those of classes with rows; nan if all are nan."""
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
        check_integer(n, "n", minimum=0, maximum=MAX_CLASSES)
        return np.argsort(-np.nan_to_num(self.error, nan=-1.0), kind="stable")[:n]

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas DataFrame with one row per class."""
        import pandas

        names = ["positives", "counts", "mean_prediction", "frequency", "error", "signed_error"]
        names += ["overconfidence", "underconfidence"]
        names += [] if self.debiased is None else ["debiased", "low", "high", "beyond_chance"]
        columns = {name: getattr(self, name) for name in names}
        return pandas.DataFrame(columns, index=pandas.Index(self.classes, name="class"))

    def __str__(self) -> str:
        frame = self.to_frame().drop(columns=["signed_error", "overconfidence", "underconfidence"])
        text = frame.iloc[self.worst(ROWS_SHOWN)].to_string(float_format="{:.4f}".format)
        left = len(self.classes) - ROWS_SHOWN
        over = f"probabilities of at least {self.threshold:.4g}" if self.threshold else "all probabilities"
        more = f"\nand {left:,} more" if left > 0 else ""
        return f"{text}{more}\nmean error {self.mean:.4f} over {over}, worst classes first"


def class_errors(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    classes: ArrayLike | None = None,
    bins: int = 15,
    adaptive: bool = False,
    threshold: Threshold = 0.0,
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
    ordered = enumerate(sort_events_of_classes(predictions, binning.threshold))
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


def debiased_squared_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 20,
    adaptive: bool = True,
    of: Event = "confidence",
    sample_weight: ArrayLike | None = None,
) -> float:
    """Σ_b (n_b / n)·(gap_b² − s_b² / n_b): an unbiased estimate of the mean squared gap of the bins.

    A gap is a mean of n_b residuals y − p, so that noise increases the expectation of its square by their variance
    over n_b; s_b² is their sample variance. With equal predictions in a bin this is the estimator of Kumar, Liang and
    Ma (2019). Bins of one sample are left out; the number of equal-count bins is limited so that each holds two. It
    can be negative: calibrated predictions give 0 on average. nan if no bin holds two samples.

    Parameters
    ----------
    probs, labels, bins, adaptive, of
        As in `reliability`.
    sample_weight
        Relative importance of each sample, (n_samples,). With weights, s_b² / n_b becomes the variance of a weighted
        mean, s_b²·Σw² / (Σw)², with s_b² = Σw·(r − gap_b)² / (Σw − Σw² / Σw).
    """
    predictions, binning = check_binned(probs, labels, sample_weight, bins=bins, adaptive=adaptive)
    return _debiased(predictions, binning, check_event(of, predictions.n_classes))


def marginal_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 20,
    adaptive: bool = True,
    debiased: bool = True,
    sample_weight: ArrayLike | None = None,
) -> float:
    """√(mean over classes of the squared calibration error of p_k), over all rows, without a threshold.

    The marginal calibration error of Kumar, Liang and Ma (2019), with equal weight per class. Debiased, the squared
    error of each class is that of `debiased_squared_calibration_error`, and a negative mean counts as 0.

    Parameters
    ----------
    probs, labels, bins, adaptive, sample_weight
        As in `expected_calibration_error`.
    debiased
        Whether to subtract the bias of squared gaps.
    """
    predictions, binning = check_binned(probs, labels, sample_weight, bins=bins, adaptive=adaptive)
    squared_error = _debiased if check_flag(debiased, "debiased") else _plain
    squares = [squared_error(predictions, binning, k) for k in range(predictions.n_classes)]
    return float(np.sqrt(max(float(np.mean(squares)), 0.0)))


def top_label_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 20,
    adaptive: bool = True,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Calibration error of the confidence, given which class is on top: Σ_k (n_k / n)·ECE of the rows with top class k.

    Gupta and Ramdas (2022): confidences of 0.7 can be right on average, and yet too high whenever the answer is "cat"
    and too low whenever it is "dog".

    Parameters
    ----------
    probs, labels, bins, adaptive, sample_weight
        As in `expected_calibration_error`; the number of bins is per top class.
    """
    predictions, binning = check_binned(probs, labels, sample_weight, bins=bins, adaptive=adaptive)
    total = 0.0
    for k in np.unique(predictions.top_classes):
        rows = predictions.top_classes == k
        part = predictions.rows(rows)
        if part.weights is None or part.weights.any():
            total += predictions.mean(rows) * bin_event(part, binning, of="confidence").calibration_error
    return total


@dataclass(frozen=True)
class MurphyDecomposition:
    """Brier score = reliability − resolution + uncertainty + within_bins."""

    brier: float
    reliability: float  # Σ_b (n_b / n)·(mean prediction_b − frequency_b)², which calibration can reduce
    resolution: float  # Σ_b (n_b / n)·(frequency_b − overall frequency)², how well predictions separate the events
    uncertainty: float  # overall frequency times one minus it, which does not depend on the predictions
    within_bins: float  # variance of the predictions within bins, minus twice their covariance with the outcomes


def murphy_decomposition(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 20,
    adaptive: bool = True,
    of: Literal["classes", "confidence"] | int = "classes",
    sample_weight: ArrayLike | None = None,
) -> MurphyDecomposition:
    """Murphy's (1973) decomposition of the Brier score over bins of the prediction.

    Parameters
    ----------
    probs, labels, bins, adaptive, sample_weight
        As in `expected_calibration_error`.
    of
        "classes": the mean over all classes, whose Brier score is `multiclass_brier_loss`; "confidence": of the top
        class, whose Brier score is `top_label_brier_loss`; or the index of a class.
    """
    predictions, binning = check_binned(probs, labels, sample_weight, bins=bins, adaptive=adaptive)
    if isinstance(of, str) and of == "classes":
        parts = [astuple(_murphy(predictions, binning, k)) for k in range(predictions.n_classes)]
        return MurphyDecomposition(*np.mean(parts, axis=0).tolist())
    return _murphy(predictions, binning, check_event(of, predictions.n_classes))


def _murphy(predictions: Predictions, binning: Binning, of: Event) -> MurphyDecomposition:
    values, occurred = predictions.event(of)
    binned = bin_event(predictions, binning, of=of)
    overall = predictions.mean(occurred)
    brier = predictions.mean((values.astype(np.float64) - occurred) ** 2)
    reliability = binned.mean_of(binned.gap**2)
    resolution = binned.mean_of((binned.observed_frequency - overall) ** 2)
    uncertainty = overall * (1.0 - overall)
    within_bins = brier - (reliability - resolution + uncertainty)
    return MurphyDecomposition(brier, reliability, resolution, uncertainty, within_bins)


def _plain(predictions: Predictions, binning: Binning, of: Event) -> float:
    binned = bin_event(predictions, binning, of=of)
    return binned.mean_of(binned.gap**2)


def _debiased(predictions: Predictions, binning: Binning, of: Event) -> float:
    event = sort_event(predictions, of)
    if binning.adaptive:
        binning = binning._replace(bins=max(min(binning.bins, predictions.n_samples // 2), 1))
    w, r = event.row_weights, event.residuals
    mass, residual, square, squared_mass = event.cut(binning).sums(w, w * r, w * r**2, w**2)
    enough = mass**2 > squared_mass * (1 + ROUNDING)  # a single sample has no variance
    if not enough.any():
        return float("nan")
    mass, residual, square, squared_mass = (sums[enough] for sums in (mass, residual, square, squared_mass))
    gap = residual / mass
    variance = np.maximum(square - mass * gap**2, 0.0) / (mass - squared_mass / mass)
    return float(np.sum(mass * (gap**2 - variance * squared_mass / mass**2)) / mass.sum())


def canonical_calibration_error(
    probs: ArrayLike, labels: ArrayLike, *, bins: int = 10, sample_weight: ArrayLike | None = None
) -> float:
    """Σ_c (n_c / n)·½·Σ_k |mean of p_k in cell c − frequency of class k in cell c|, over cells of the simplex.

    Two rows are in one cell if each of their probabilities falls into the same of the bins
    [0, 1/B), [1/B, 2/B), …, [1 − 1/B, 1]. Half the sum over classes is the total variation distance.

    Parameters
    ----------
    probs, labels, sample_weight
        As in `expected_calibration_error`.
    bins
        Number of bins B of every probability.

    Returns
    -------
    float
        From 0 to 1, lower is better. With many classes almost every sample is alone in its cell, and the value
        measures the distance of predictions from the labels rather than calibration: compare it only between methods
        on the same samples.
    """
    predictions = check_predictions(probs, labels, sample_weight)
    cells, weights = _cells(predictions.probs, check_bins(bins)), predictions.row_weights
    total = 0.0
    for k, column in enumerate(predictions.probs.T):  # one class at a time, so that memory stays bounded
        differences = np.bincount(cells, weights=weights * (column.astype(np.float64) - (predictions.labels == k)))
        total += float(np.abs(differences).sum())
    return total / (2 * float(weights.sum()))


@dataclass(frozen=True, eq=False)
class CanonicalCells:
    """Predicted and observed distributions in the occupied cells of the simplex; the samples themselves for plots."""

    counts: NDArray[np.intp]  # (n_cells,), samples in each cell
    mean_prediction: NDArray[np.float64]  # (n_cells, n_classes)
    observed_frequency: NDArray[np.float64]  # (n_cells, n_classes), of each class
    weights: NDArray[np.float64]  # (n_cells,), sums of the samples' weights; the counts if they have none
    bins: int  # of every probability
    probs: Floats
    labels: NDArray[np.intp]

    @property
    def calibration_error(self) -> float:
        """Mean total variation between prediction and observation: `canonical_calibration_error`."""
        distances = 0.5 * np.abs(self.mean_prediction - self.observed_frequency).sum(axis=1)  # (n_cells,)
        return float(np.average(distances, weights=self.weights))

    def __str__(self) -> str:
        return (
            f"{len(self.labels):,} samples in {len(self.counts):,} cells of the simplex of {self.probs.shape[1]:,} "
            f"classes, canonical calibration error {self.calibration_error:.4f}"
        )


def canonical_cells(
    probs: ArrayLike, labels: ArrayLike, *, bins: int = 10, sample_weight: ArrayLike | None = None
) -> CanonicalCells:
    """Return the cells of `canonical_calibration_error`, of the same parameters; those without weight are left out."""
    predictions = check_predictions(probs, labels, sample_weight)
    number, n_classes = check_bins(bins), predictions.n_classes
    cells = _cells(predictions.probs, number)
    weights = predictions.row_weights
    mass = np.bincount(cells, weights=weights)
    predicted = np.stack([np.bincount(cells, weights=weights * column) for column in predictions.probs.T], axis=1)
    of_pair = np.bincount(cells * n_classes + predictions.labels, weights=weights, minlength=len(mass) * n_classes)
    return CanonicalCells(
        counts=np.bincount(cells),
        mean_prediction=predicted / mass[:, None],
        observed_frequency=of_pair.reshape(len(mass), n_classes) / mass[:, None],
        weights=np.asarray(mass, dtype=np.float64),
        bins=number,
        probs=predictions.probs,
        labels=predictions.labels,
    )


def _cells(probs: Floats, bins: int) -> NDArray[np.intp]:
    """Return the cell of every row; occupied cells are numbered from 0."""
    edges = (np.arange(1, bins) / bins).astype(probs.dtype)  # correctly rounded, so that 0.3 is the edge 3/10
    coordinates = np.empty(probs.shape, dtype=np.min_scalar_type(bins))  # (n_samples, n_classes), one byte each
    for rows in blocks(*probs.shape):
        coordinates[rows] = np.searchsorted(edges, probs[rows], side="right")
    as_bytes = coordinates.view(f"V{coordinates.itemsize * probs.shape[1]}")[:, 0]  # each row is one value
    return np.asarray(np.unique(as_bytes, return_inverse=True)[1].reshape(-1), dtype=np.intp)
