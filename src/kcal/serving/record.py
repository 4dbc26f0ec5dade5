"""The record of a served model: its latest predictions, their labels, and the monitors that watch both."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from kcal.calibrators import was_fitted_on
from kcal.errors import KcalError, without_warnings
from kcal.files import write_whole
from kcal.metrics import ReliabilityBins, negative_log_likelihood, reliability
from kcal.metrics.resampling import wilson_interval
from kcal.monitoring import (
    CalibrationMonitor,
    DriftMonitor,
    MonitorReport,
    Part,
    PerformanceEstimate,
    PriorEstimate,
    estimate_performance,
    estimate_prior,
)
from kcal.serving.predictor import Arrays, Predictor, Scores

logger = logging.getLogger("kcal.serving")
Floats = NDArray[np.float64]

ALPHA = 0.05
TOLERANCE = 0.01
"""By how much probabilities may be off without an alarm: no calibrator is perfect."""
LOW_EVIDENCE = 0.05
MAX_GROUPS = 200
"""Groups that are watched one by one, those that come first; all later ones are watched as one."""
OTHER_GROUPS = "other groups"
MAX_INPUTS = 256
"""Inputs of the latest predictions that a summary lets the monitor see, at most."""
PERIOD = 5_000
"""Inputs after which the monitor begins again with the calibration set: its memory is bounded."""
MAX_NUMBERS = 2**19
"""Rows times classes that a summary computes estimates of, and lets the monitor of labels see, at most."""
MIN_ROWS, MAX_CLASSES = 100, 400
"""Rows, and classes, with which class frequencies are estimated: the time grows with the cube of the classes."""
N_LATEST = 20
"""Predictions that a summary lists."""
NEW, SEEN, IGNORED = range(3)
"""Whether the monitor of labels has seen a label; it ignores those that came before it was reset."""


@dataclass(slots=True, eq=False)
class Prediction:
    """One prediction."""

    id: str | None
    time: float
    probs: NDArray[np.float32]  # (n_classes,)
    evidence: float | None = None
    rows: Arrays = field(default_factory=dict)  # embedding and logits
    version: str = ""  # of the network that computed them
    code: int = -1  # column of the label
    group: str | None = None
    label_state: int = NEW
    is_input_seen: bool = False  # by the monitor of inputs


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
    after : int or None
        Labels, or inputs, after which it was raised.
    part : Part or None
        What a monitor of labels found: of all predictions, a class or a group.
    """

    kind: str
    severity: str
    after: int | None = None
    part: Part | None = None


@dataclass(frozen=True, eq=False)
class Summary:
    """What the record says now: counts, estimates, monitors and the latest predictions."""

    time: float
    classes: NDArray[Any]
    n_predictions: int  # since the record began
    n_labels: int  # since the record began
    n_inputs: int  # that their monitor has seen
    recent: Floats  # (n, n_classes)
    evidence: Floats  # (m,), of the latest predictions that have it
    probs: Floats  # (n_labelled, n_classes), of the latest labelled predictions
    codes: NDArray[np.intp]  # (n_labelled,)
    performance: PerformanceEstimate | None
    frequencies: PriorEstimate | None
    monitor: MonitorReport
    alarms: tuple[Alarm, ...]
    latest: tuple[Prediction, ...]

    @property
    def accuracy(self) -> tuple[float, float, float]:
        """Accuracy of the labelled predictions, with Wilson's interval of 95 %."""
        return _share(self.probs.argmax(axis=1) == self.codes)

    @property
    def log_loss(self) -> float:
        """Mean log-loss of the labelled predictions."""
        return float(negative_log_likelihood(self.probs, self.codes))

    def reliability(self, of: Any = "confidence") -> ReliabilityBins:
        """Return the reliability curve of the top class, or of a column, in 10 bins of at least 10 labels."""
        return reliability(self.probs, self.codes, bins=10, of=of, adaptive=False, minimum_count=10)


def _share(hits: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Return the share of hits with Wilson's interval of 95 %."""
    low, high = wilson_interval(hits.mean(), len(hits), 0.95)
    return float(hits.mean()), float(low), float(high)


class State(BaseModel):
    """What is in the file of a record."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    format: Literal[4] = 4
    n_predictions: int
    n_labels: int
    monitor: dict[str, Any]
    inputs: dict[str, Any]
    labelled: list[tuple[str, int, str | None, int]]  # id, code, group and label_state
    probs: bytes  # of float32


class Record:
    """The latest predictions of a model, and the latest with labels, ``capacity`` each; safe to use from any thread.

    Adding a prediction costs little. The monitors see what came since when a summary is made. A correction or an
    erasure of a label lets the monitor of labels begin again with those of the record.

    Parameters
    ----------
    classes : array, (n_classes,)
        The label of every column.
    capacity : int
        Predictions, and labelled predictions, that are kept.
    path : Path, optional
        File that holds counts, monitors and labelled predictions (id, probabilities, label, group) over a restart; the
        record goes on from it if its classes are the same.
    """

    def __init__(self, classes: NDArray[Any], capacity: int, path: Path | None = None) -> None:
        self.capacity, self.path = capacity, path
        self.n_predictions = self.n_labels = 0
        self.inputs = InputMonitor()
        self._lock = threading.RLock()  # of the predictions; held for moments
        self._monitor_lock = threading.RLock()  # of the monitors; taken first if both are
        self._start(classes)
        if path is not None and path.exists():
            self._restore(path)

    def _start(self, classes: NDArray[Any]) -> None:
        """Begin with these classes, without predictions."""
        self.classes = classes
        self._codes = {str(label): code for code, label in enumerate(classes.tolist())}
        self._recent: OrderedDict[str | int, Prediction] = OrderedDict()  # by id, or by number without one
        self._labelled: OrderedDict[str, Prediction] = OrderedDict()
        self._restart_monitor()

    def _restart_monitor(self) -> None:
        """Let the monitor of labels begin again with the labels of the record that came since the last reset."""
        self._monitor = CalibrationMonitor(self.classes, alpha=ALPHA, tolerance=TOLERANCE)
        for one in self._labelled.values():
            one.label_state = IGNORED if one.label_state == IGNORED else NEW

    def add(self, classes: NDArray[Any], ids: Sequence[str | None], scores: Scores, version: str = "") -> None:
        """Add predictions; the record begins again if the model has learned another class."""
        now, n_rows = time.time(), len(ids)
        shares = [None] * n_rows if scores.evidence is None else scores.evidence.tolist()
        probs = [row.copy() for row in scores.probs]  # of its own each: nothing else keeps it, or is kept by it
        rows = [{name: part[place].copy() for name, part in scores.rows.items()} for place in range(n_rows)]
        with self._lock:
            if classes is not self.classes and classes.tolist() != self.classes.tolist():
                self._start(classes)
            recent, ones = self._recent, map(Prediction, ids, repeat(now), probs, shares, rows, repeat(version))
            for number, one in enumerate(ones, self.n_predictions):
                recent[number if one.id is None else one.id] = one
                if one.id is not None:
                    recent.move_to_end(one.id)
            self.n_predictions += n_rows
            while len(recent) > self.capacity:
                recent.popitem(last=False)

    def rows_of(self, name: str, version: str) -> Arrays:
        """Return the embedding and the logits of a prediction, (1, ·) each; none if they are not known any more."""
        with self._lock:
            one = self._recent.get(name)
            if one is None or one.version != version:
                return {}
            return {key: row[None].copy() for key, row in one.rows.items()}

    def label(self, name: str, label: Any, group: str | None = None) -> None:
        """Set the label of a prediction; unknown ids and labels are ignored, and an id counts once."""
        with self._lock:
            code, known = self._codes.get(str(label)), self._labelled.get(name)
            one = known or self._recent.get(name)
            if one is None or code is None:
                return
            before, one.code = one.code, code
            if known is None:
                one.group, self._labelled[name] = group, one
                self.n_labels += 1
                if len(self._labelled) > self.capacity:
                    self._labelled.popitem(last=False)
            elif before != code:
                self._restart_monitor()

    def erase(self, ids: Sequence[str]) -> None:
        """Erase all that is known of some ids."""
        with self._lock:
            labelled = [self._labelled.pop(name, None) for name in ids]
            for name in ids:
                self._recent.pop(name, None)
            if any(labelled):
                self._restart_monitor()

    def labelled_ids(self) -> list[str]:
        """Return the ids of the labelled predictions."""
        with self._lock:
            return list(self._labelled)

    def reset_monitors(self) -> None:
        """End all alarms: the monitors begin again, with the predictions and labels that come from now on."""
        with self._lock:
            for one in self._labelled.values():
                one.label_state = IGNORED
            for one in self._recent.values():
                one.is_input_seen = True
            self._restart_monitor()
            self.inputs = InputMonitor()

    def summary(self, predictor: Predictor) -> Summary:
        """Let the monitors see what is new, and return what the record says now."""
        with self._monitor_lock, without_warnings():
            self._monitor_labels()
            self._monitor_inputs(predictor.calibrator)
            with self._lock:
                classes = self.classes
                size = max(MAX_NUMBERS // len(classes), 1)
                recent, labelled = list(self._recent.values())[-size:], list(self._labelled.values())[-size:]
                probs, known = _probs_of(recent, len(classes)), _probs_of(labelled, len(classes))
                codes = np.array([one.code for one in labelled], dtype=np.intp)
                counts = self.n_predictions, self.n_labels, self.inputs.n_rows
                report = self._monitor.report()
            evidence = np.array([one.evidence for one in recent if one.evidence is not None], dtype=np.float64)
            frequencies = _estimate_frequencies(probs, predictor.calibrator, classes)
            performance = None
            if len(probs) > 1:
                performance = estimate_performance(probs, classes=classes, target="population")
            alarms = (*_alarms(report, self.inputs.alarm_at), *_notices(frequencies, evidence))
        estimates, latest = (performance, frequencies), tuple(recent[::-1][:N_LATEST])
        return Summary(time.time(), classes, *counts, probs, evidence, known, codes, *estimates, report, alarms, latest)

    def _monitor_labels(self) -> None:
        """Let the monitor see labels that it has not seen, oldest first; the next summary goes on with the others."""
        with self._lock:
            size = max(MAX_NUMBERS // len(self.classes) // 4, 1)
            ones = [one for one in self._labelled.values() if one.label_state == NEW][:size]
            for one in ones:
                one.label_state = SEEN
            monitor = self._monitor  # another takes its place after a correction
            probs, labels = _probs_of(ones, len(self.classes)), self.classes[[one.code for one in ones]]
        named = {part.name for part in monitor.report().groups}
        for one in ones:
            if one.group is not None and len(named) < MAX_GROUPS:
                named.add(one.group)
        has_group = np.array([one.group is not None for one in ones], dtype=np.bool_)
        if has_group.any():
            groups = [one.group if one.group in named else OTHER_GROUPS for one in ones if one.group is not None]
            monitor.update(probs[has_group], labels[has_group], groups)
        if not has_group.all():
            monitor.update(probs[~has_group], labels[~has_group])

    def _monitor_inputs(self, calibrator: Any) -> None:
        """Let the monitor see inputs that came since the last summary, but for those that the calibrator has learned.

        A learned row is part of the calibration set, and would look too close to it.
        """
        name = "logits" if calibrator.inputs == "logits" else "embeddings"
        with self._lock:
            ones = [one for one in list(self._recent.values())[-MAX_INPUTS:] if not one.is_input_seen]
            for one in self._recent.values():
                one.is_input_seen = True
            ones = [one for one in ones if name in one.rows and len(one.rows[name]) == calibrator.n_features_in_]
            rows = np.array([one.rows[name] for one in ones])
        if not calibrator.tags.has_evidence or not ones:
            return
        unseen = np.flatnonzero(~was_fitted_on(calibrator, rows))
        if not len(unseen):
            return
        reference = calibrator.calibration_log_evidence_
        densities = np.asarray(calibrator.log_evidence(rows[unseen]), dtype=np.float64)
        self.inputs.update(np.searchsorted(reference, densities) / len(reference), len(reference))
        for place, evidence in zip(unseen, np.asarray(calibrator.evidence(rows[unseen])).tolist(), strict=True):
            ones[place].evidence = evidence

    def save(self, predictor: Predictor) -> None:
        """Write counts, monitors and labelled predictions; a state before an erasure never replaces one after it."""
        if self.path is None:
            return
        with self._monitor_lock:
            self.summary(predictor)
            with self._lock:
                ones = self._labelled.items()
                state = State(
                    n_predictions=self.n_predictions,
                    n_labels=self.n_labels,
                    monitor=self._monitor.to_dict(),
                    inputs=self.inputs.to_dict(),
                    labelled=[(name, one.code, one.group, one.label_state) for name, one in ones],
                    probs=b"".join(one.probs.tobytes() for _, one in ones),
                )
            write_whole(self.path, state.model_dump_json().encode())

    def _restore(self, path: Path) -> None:
        """Go on with the state in the file; begin anew if it is of other classes, or damaged."""
        try:
            state = State.model_validate_json(path.read_bytes())
            monitor, inputs = CalibrationMonitor.from_dict(state.monitor), InputMonitor.from_dict(state.inputs)
            probs = np.frombuffer(state.probs, dtype=np.float32).reshape(len(state.labelled), len(monitor.classes))
            if monitor.classes.tolist() == self.classes.tolist():
                for (name, code, group, seen), row in list(zip(state.labelled, probs, strict=True))[-self.capacity :]:
                    self._labelled[name] = Prediction(name, 0.0, row.copy(), code=code, group=group, label_state=seen)
                self._monitor, self.inputs = monitor, inputs
            self.n_predictions, self.n_labels = state.n_predictions, state.n_labels
        except (KcalError, OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s cannot be read (%s); the record of predictions begins anew", path.name, error)


def _probs_of(ones: Sequence[Prediction], n_classes: int) -> Floats:
    return np.array([one.probs for one in ones], dtype=np.float64).reshape(len(ones), n_classes)


@dataclass
class InputMonitor:
    """Watch the ranks of inputs among the calibration set, from 0 to 1, by their density.

    The j-th period of 5,000 inputs is watched by a :class:`~kcal.monitoring.DriftMonitor` with the probability
    α/(j·(j + 1)) of a false alarm: all of them together have α. Each begins with the calibration set, so slow drift
    does not become the rule.
    """

    period: int = 0
    n_rows: int = 0
    alarm_at: int | None = None  # inputs after which the first alarm was raised
    monitor: DriftMonitor | None = None

    def update(self, ranks: Floats, n_reference: int) -> None:
        """Watch the ranks of some more rows among ``n_reference`` samples."""
        if self.monitor is None or self.monitor.n_samples >= PERIOD:
            self.period += 1
            middles = (np.arange(n_reference) + 0.5) / n_reference  # between the ranks that rows can have
            self.monitor = DriftMonitor(middles, alpha=ALPHA / (self.period * (self.period + 1)), seed=self.period)
        before = self.n_rows - self.monitor.n_samples
        report = self.monitor.update(ranks)
        self.n_rows += len(ranks)
        if self.alarm_at is None and report.alarm_at is not None:
            self.alarm_at = before + report.alarm_at

    def to_dict(self) -> dict[str, Any]:
        """Return the state in a form that JSON can represent."""
        return vars(self) | {"monitor": self.monitor and self.monitor.to_dict()}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> InputMonitor:
        """Return the monitor that :meth:`to_dict` described."""
        return cls(**state | {"monitor": state["monitor"] and DriftMonitor.from_dict(state["monitor"])})


def _estimate_frequencies(probs: Floats, calibrator: Any, classes: NDArray[Any]) -> PriorEstimate | None:
    """Return the class frequencies of the latest predictions; None if these say too little."""
    expected = calibrator.prior_ if calibrator.tags.has_prior else None
    n, n_classes = probs.shape
    if expected is None or len(expected) != n_classes or n < MIN_ROWS or n_classes > MAX_CLASSES:
        return None
    estimate = estimate_prior(probs, reference=expected, classes=classes)
    return estimate if estimate.converged and estimate.information * n >= 10 else None


def _alarms(report: MonitorReport, inputs_at: int | None) -> Iterator[Alarm]:
    for kind, parts in (("calibration", [report.overall]), ("class", report.classes), ("group", report.groups)):
        yield from (Alarm(kind, "alarm", part.alarm_at, part) for part in parts if part.alarm)
    if inputs_at is not None:
        yield Alarm("inputs", "alarm", inputs_at)


def _notices(frequencies: PriorEstimate | None, evidence: Floats) -> Iterator[Alarm]:
    if frequencies is not None and frequencies.p_value < 1e-4:  # small, because the dashboard is looked at often
        yield Alarm("frequencies", "notice")
    if len(evidence) and _share(evidence < LOW_EVIDENCE)[1] > 2 * LOW_EVIDENCE:
        yield Alarm("evidence", "notice")
