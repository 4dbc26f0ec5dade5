"""Results on the recent predictions of a served model: estimates, reliability, frequencies, evidence and alarms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.errors import without_warnings
from kcal.metrics import Interval, ReliabilityBins, negative_log_likelihood, reliability
from kcal.metrics.predictions import Event
from kcal.metrics.resampling import wilson_interval
from kcal.monitoring import MonitorReport, PerformanceEstimate, PriorEstimate, estimate_prior

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
BINS = 10
ROWS_PER_BIN = 10
"""Labelled predictions that a bin of a reliability curve needs; with fewer it is merged with its neighbour."""
LOW_EVIDENCE = 0.05
NOTED_P_VALUE = 1e-4
"""Small, because the page is looked at often."""
FEWEST_ROWS = 100
"""Predictions from which class frequencies are estimated."""
MOST_CLASSES = 400
"""Classes up to which frequencies are estimated: the time grows with their cube."""
ESTIMATED_NUMBERS = 2**19
"""Latest predictions times classes that frequencies are estimated from, at most."""
FEWEST_EFFECTIVE_LABELS = 10.0
"""Labels that would say as much as the predictions, from which on frequencies count as identifiable."""


@dataclass(frozen=True, eq=False)
class ObservedPrediction:
    """One recent prediction.

    Attributes
    ----------
    number : int
        Predictions before it.
    time : float
        Seconds since the epoch.
    label : object
        The label or its latest correction; None without one.
    """

    id: str | None
    number: int
    time: float
    probs: Floats = field(repr=False)  # (n_classes,)
    label: Any = None
    evidence: float | None = None
    group: str | None = None
    embedding: NDArray[Any] | None = field(default=None, repr=False)  # (h,)
    logits: NDArray[Any] | None = field(default=None, repr=False)  # (n_logits,)


@dataclass(frozen=True, eq=False)
class LabelledPredictions:
    """The latest labelled predictions, and measures of them."""

    probs: Floats = field(repr=False)  # (n, n_classes)
    codes: NDArray[np.intp] = field(repr=False)  # (n,), columns of the labels

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def accuracy(self) -> float:
        """Share of the predictions whose top class is the label."""
        return float((self.probs.argmax(axis=1) == self.codes).mean())

    @property
    def accuracy_interval(self) -> Interval:
        """Wilson's interval of the accuracy."""
        low, high = wilson_interval(self.accuracy, len(self), CONFIDENCE)
        return Interval(float(low), float(high))

    @property
    def mean_confidence(self) -> float:
        """Mean probability of the top class."""
        return float(self.probs.max(axis=1).mean())

    @property
    def negative_log_likelihood(self) -> float:
        """Mean log-loss."""
        return float(negative_log_likelihood(self.probs, self.codes))

    def reliability(self, of: Event = "confidence") -> ReliabilityBins:
        """Return the reliability curve of the top class, or of a column, in 10 equal-width bins, small ones merged."""
        return reliability(self.probs, self.codes, bins=BINS, of=of, adaptive=False, minimum_count=ROWS_PER_BIN)


@dataclass(frozen=True, eq=False)
class ClassFrequencies:
    """Class frequencies in the field, and those that the probabilities assume, (n_classes,) each.

    Attributes
    ----------
    expected : array or None
        That the probabilities assume: those of the calibration set, unless a prior was given.
    predicted : array
        Mean probability of the latest predictions.
    estimate : PriorEstimate or None
        Estimated from the latest predictions; None with few of them, very many classes, or no ``expected``.
    identifiable : bool
        Whether the predictions say enough for the estimate to be shown.
    """

    expected: Floats | None
    predicted: Floats
    estimate: PriorEstimate | None
    identifiable: bool

    @property
    def has_changed(self) -> bool:
        """Whether the frequencies are not those that are assumed, at a very small p-value."""
        return self.estimate is not None and self.identifiable and self.estimate.p_value < NOTED_P_VALUE


@dataclass(frozen=True, eq=False)
class EvidenceSummary:
    """Evidence of the latest predictions: uniform from 0 to 1 for rows like the calibration set.

    Attributes
    ----------
    shares : array, (10,)
        Of the predictions in tenths of the evidence.
    low_share : float
        With an evidence below 0.05; about 5 % of rows like the calibration set.
    low_interval : Interval
        Wilson's.
    """

    n_samples: int
    shares: Floats
    median: float
    low_share: float
    low_interval: Interval


@dataclass(frozen=True)
class Alarm:
    """Something that needs attention.

    Attributes
    ----------
    kind : str
        "calibration", "class", "group" or "inputs" of an alarm; "frequencies" or "evidence" of a notice.
    severity : "alarm" or "notice"
        An alarm is false with a probability of 5 % at most, however long the service runs; a notice is a test of the
        latest predictions alone.
    name : object
        The class or group; None if it is about all predictions.
    after : int or None
        Rows after which it was raised.
    """

    kind: str
    severity: str
    name: Any
    message: str
    remedy: str
    after: int | None = None


@dataclass(frozen=True, eq=False)
class ServiceSnapshot:
    """Results on the recent predictions of a served model.

    Attributes
    ----------
    n_predictions, n_labels : int
        Since the record began.
    n_recent : int
        Predictions that estimates are made of: the latest.
    performance : PerformanceEstimate or None
        Of the latest predictions, from their probabilities alone; None if there are none.
    labelled : LabelledPredictions or None
        The latest with labels; None if there are none.
    monitor : MonitorReport
        Of the calibration, from labels.
    n_watched : int
        Inputs that were watched for drift.
    drift_log_wealth : float or None
        Logarithm of the wealth of their monitor, weighted: it raises the alarm when this reaches −log α of ``monitor``.
        None if nothing was watched.
    """

    time: float
    classes: NDArray[Any]
    n_predictions: int
    n_labels: int
    n_recent: int
    first_time: float | None
    performance: PerformanceEstimate | None
    labelled: LabelledPredictions | None
    frequencies: ClassFrequencies | None
    evidence: EvidenceSummary | None
    monitor: MonitorReport
    n_watched: int
    drift_log_wealth: float | None
    alarms: tuple[Alarm, ...]
    latest: tuple[ObservedPrediction, ...]  # newest first

    @property
    def is_empty(self) -> bool:
        """Whether it knows no prediction; after a restart there may be labelled ones only."""
        return not self.n_recent and self.labelled is None


def class_frequencies(probs: Floats, expected: Floats | None, classes: NDArray[Any]) -> ClassFrequencies:
    """Return the frequencies of the latest predictions and the expected ones."""
    predicted = probs.mean(axis=0)
    n_classes = probs.shape[1]
    rows = probs[-max(ESTIMATED_NUMBERS // n_classes, 1) :]
    if expected is None or len(expected) != n_classes or len(rows) < FEWEST_ROWS or n_classes > MOST_CLASSES:
        return ClassFrequencies(expected, predicted, None, identifiable=False)
    with without_warnings():
        estimate = estimate_prior(rows, reference=expected, classes=classes)
    identifiable = estimate.converged and estimate.information * len(rows) >= FEWEST_EFFECTIVE_LABELS
    return ClassFrequencies(expected, predicted, estimate, identifiable)


def evidence_summary(evidence: Floats) -> EvidenceSummary | None:
    """Return how the evidence of the latest predictions is distributed; None without any."""
    known = evidence[np.isfinite(evidence)]
    if not len(known):
        return None
    shares = np.histogram(known, bins=10, range=(0.0, 1.0))[0] / len(known)
    low_share = float((known < LOW_EVIDENCE).mean())
    low, high = wilson_interval(low_share, len(known), CONFIDENCE)
    interval = Interval(float(low), float(high))
    return EvidenceSummary(len(known), shares, float(np.median(known)), low_share, interval)
