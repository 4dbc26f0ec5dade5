"""A record of one served model: its latest predictions, their labels, and the monitors that watch them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kcal.deployment.service.alarms import find_alarms
from kcal.deployment.service.record import WATCHED_AT_ONCE, PredictionRecord
from kcal.deployment.service.snapshot import (
    LabelledPredictions,
    ServiceSnapshot,
    class_frequencies,
    evidence_summary,
)
from kcal.deployment.service.watches import DriftWatch, LabelWatch, rank_inputs
from kcal.errors import FileFormatError, KcalError
from kcal.monitoring import estimate_performance

N_LATEST = 20
"""Predictions that a snapshot lists."""
WATCHED_NUMBERS = 2**17
"""Labels times classes that a snapshot lets the monitor see, at most."""
WINDOW_NUMBERS = 2**21
"""Latest predictions times classes that a snapshot is made of, at most."""
MAX_AGE = 1.0
FORMAT = 2


class Observer:
    """Record what a served model predicts and which labels it gets, in bounded memory; safe to use from any thread.

    :meth:`predicted` copies rows into arrays. Expensive work is done in :meth:`snapshot`, whose results are kept for a
    moment. Two records have ``capacity`` rows each: the latest predictions, and the latest with labels; with very many
    classes, a snapshot is made of fewer.

    The monitors see each labelled prediction once, when a snapshot is made; and of the inputs those that came since
    the last snapshot, at most 256, without those that the calibrator has learnt since: they are part of the calibration
    set, and would look too close to it. A correction or an erasure of a label that a monitor has seen lets it begin
    again with the labels as they are now, as long as all of them are in the record; of older ones only sums remain.

    Parameters
    ----------
    calibrator
        Fitted. If it learns online, what is compared with the calibration set is compared with the present one. The
        attribute of this name may be replaced by a later calibrator of the same model. Of one within an ONNX file
        only classes and their frequencies are known.
    capacity : int
        Rows of each record.
    """

    def __init__(self, calibrator: Any, *, capacity: int = 1000) -> None:
        self.calibrator, self.capacity = calibrator, capacity
        self._rows = threading.Lock()  # of the record
        self._summary = threading.Lock()  # of the monitors and the last snapshot; taken first if both are
        self._earlier = (0, 0)  # predictions and labels before those of the record
        self._first_time: float | None = None
        self._drift = self._new_drift_watch()
        self._start(np.asarray(calibrator.classes_))

    def _start(self, classes: NDArray[Any]) -> None:
        """Begin with these classes, without rows."""
        self._record = PredictionRecord(classes, self.capacity)
        self._watch = LabelWatch(classes)
        self._last_watched = self._last_checked = -1  # numbers of rows that the monitors have seen
        self._first_checked = 0  # number of the first label that the monitor of labels was shown, or will be
        self._is_stale = False  # whether the monitor of labels has seen a label that has changed since
        self._is_complete = True  # whether all labels that it has seen are in the record
        self._cached: ServiceSnapshot | None = None
        self._changes, self._cached_changes = 0, -1

    def _new_drift_watch(self) -> DriftWatch:
        return DriftWatch(len(self.calibrator.calibration_log_evidence_) if self.calibrator.has_evidence else 1)

    @property
    def classes(self) -> NDArray[Any]:
        """The classes of the predictions."""
        return self._record.classes

    @property
    def n_predictions(self) -> int:
        """Predictions since the first start."""
        return self._earlier[0] + self._record.recent.n_rows

    @property
    def n_labels(self) -> int:
        """Predictions that got a label since the first start."""
        return self._earlier[1] + self._record.labelled.n_rows

    def predicted(self, ids: Sequence[str] | None, probs: NDArray[Any], **given: Any) -> None:
        """Record predictions, (n, n_classes), in their order, with evidence, groups, embeddings and logits if given.

        ``evidence``, (n,), is that of ``calibrator.evidence``. If the number of classes has changed, because the
        calibrator learnt a new one, the record begins again; predictions with other columns than it has are ignored.
        """
        probs = np.asarray(probs, dtype=np.float64)
        if len(probs) and probs.shape[1] != len(self.classes):
            self._restart(probs.shape[1])
        with self._rows:
            if len(probs) and probs.shape[1] == len(self.classes):
                self._first_time = self._first_time or time.time()
                self._record.add(ids, probs, **given)
                self._changes += 1

    def _restart(self, n_columns: int) -> None:
        """Begin again if the calibrator now has so many classes."""
        with self._summary, self._rows:
            classes = np.asarray(self.calibrator.classes_)
            if len(classes) == n_columns != len(self.classes):
                self._earlier = (self.n_predictions, self.n_labels)
                self._start(classes)

    def labelled(self, ids: Sequence[str], labels: Sequence[Any], *, groups: Sequence[Any] | None = None) -> None:
        """Record labels or corrections of predictions by their ids; unknown ids and labels are ignored.

        An id counts once: a second label replaces the first. ``groups`` are for predictions that came without.
        """
        named = [None] * len(ids) if groups is None else groups
        with self._rows:
            for name, label, group in zip(map(str, ids), labels, named, strict=True):
                changed = self._record.label(name, label, group)
                self._is_stale |= changed >= 0 and self._first_checked <= changed <= self._last_checked
            self._changes += 1

    def erased(self, ids: Sequence[str]) -> None:
        """Erase all that is known of some ids."""
        names = set(map(str, ids))
        with self._summary, self._rows:
            labelled = self._record.labelled
            self._drift.forget(self._record.recent.erase(names))
            self._record.inputs.erase(names)
            for name in names:
                place = labelled.place_of(name)
                if place is not None and self._first_checked <= labelled.numbers[place] <= self._last_checked:
                    self._is_stale = True
                    self._watch.forget_group_of_row(labelled.value("group", place))
            labelled.erase(names)
            self._forget_changed_labels()
            self._cached = None
            self._changes += 1

    def reset_monitors(self) -> None:
        """End all alarms: the monitors begin again, with the predictions and labels that come from now on."""
        with self._summary, self._rows:
            self._watch, self._drift = LabelWatch(self.classes), self._new_drift_watch()
            self._last_checked = self._record.labelled.n_rows - 1
            self._last_watched = self._record.recent.n_rows - 1
            self._first_checked = self._record.labelled.n_rows
            self._is_stale, self._is_complete = False, True
            self._cached = None
            self._changes += 1

    def _forget_changed_labels(self) -> None:
        """Let the monitor of labels begin again if it has seen labels that changed and all others are at hand."""
        self._is_complete &= self._record.labelled.n_rows - self._first_checked <= self.capacity
        if self._is_stale and self._is_complete:
            self._watch, self._last_checked = LabelWatch(self.classes), self._first_checked - 1
        self._is_stale = False

    def snapshot(self, *, max_age: float = MAX_AGE) -> ServiceSnapshot:
        """Return results on the recent predictions.

        The last snapshot is returned if nothing has changed since, or if it is no older than ``max_age`` seconds.
        """
        with self._summary:
            cached = self._cached
            if cached is not None and (self._changes == self._cached_changes or time.time() - cached.time <= max_age):
                return cached
            self._cached_changes, self._cached = self._changes, self._compute()
            return self._cached

    def _compute(self) -> ServiceSnapshot:
        with self._rows:
            window = max(WINDOW_NUMBERS // len(self.classes), 1)
            record = self._record
            places, known = record.recent.places()[-window:], record.labelled.places()[-window:]
            columns = record.recent.rows(places, ("probs", "evidence"))
            labelled = record.labelled.rows(known, ("probs", "code"))
            numbers = record.recent.numbers[places]
            latest = tuple(record.prediction(place) for place in places[::-1][:N_LATEST])
            self._forget_changed_labels()
            n_predictions, n_labels, first_time = self.n_predictions, self.n_labels, self._first_time
        self._watch_labels()
        self._watch_inputs(columns, numbers)
        frequencies = evidence = performance = None
        if len(places):
            frequencies = class_frequencies(columns["probs"], getattr(self.calibrator, "prior_", None), self.classes)
            performance = estimate_performance(columns["probs"], classes=self.classes, target="population")
            evidence = evidence_summary(columns["evidence"]) if "evidence" in columns else None
        monitor = self._watch.report()
        return ServiceSnapshot(
            time=time.time(),
            classes=self.classes,
            n_predictions=n_predictions,
            n_labels=n_labels,
            n_recent=len(places),
            first_time=first_time,
            performance=performance,
            labelled=LabelledPredictions(labelled["probs"], labelled["code"]) if len(known) else None,
            frequencies=frequencies,
            evidence=evidence,
            monitor=monitor,
            n_watched=self._drift.n_samples,
            drift_log_wealth=self._drift.log_wealth,
            alarms=find_alarms(monitor, self._drift.alarm_at, frequencies, evidence),
            latest=latest,
        )

    def _watch_labels(self) -> None:
        """Let the monitor of labels see some of those that it has not seen, oldest first; the next snapshot goes on."""
        most = max(WATCHED_NUMBERS // len(self.classes), 1)
        with self._rows:
            labelled = self._record.labelled
            waiting = labelled.places(after=self._last_checked)
            rows = labelled.rows(waiting[:most], ("probs", "code", "group"))
            self._last_checked = int(labelled.numbers[waiting[:most]].max(initial=self._last_checked))
            self._changes += len(waiting) > most
        if len(waiting):
            self._watch.update(rows["probs"], self.classes[rows["code"]], rows["group"].tolist())

    def _watch_inputs(self, columns: dict[str, NDArray[Any]], numbers: NDArray[np.int64]) -> None:
        """Let the monitor of inputs see the latest rows since the last snapshot; add the evidence that they lack."""
        self._drift.refresh()
        new = np.flatnonzero(numbers > self._last_watched)[-WATCHED_AT_ONCE:]
        if not len(new) or not self.calibrator.has_evidence:
            return
        name = "logits" if self.calibrator.inputs == "logits" else "embedding"
        self._last_watched = int(numbers.max())
        with self._rows:
            inputs = self._record.inputs
            new = new[inputs.has(numbers[new])]
            rows = inputs.rows(numbers[new] % inputs.capacity, (name,)).get(name)
        if rows is None or rows.shape[1] != self.calibrator.n_features_in_:
            return
        present = self.calibrator.snapshot() if self.calibrator.learns_online else self.calibrator
        usable = np.isfinite(rows).all(axis=1)
        if usable.any():
            usable[usable] = ~present.was_fitted_on(rows[usable])
        new, rows = new[usable], rows[usable]
        if len(new):
            evidence = columns.setdefault("evidence", np.full(len(numbers), np.nan))
            ranks, found = rank_inputs(present, rows, evidence[new])
            self._drift.update(ranks, numbers[new])
            evidence[new] = found
            with self._rows:
                self._record.recent.fill("evidence", numbers[new], found)

    def labelled_ids(self) -> list[str]:
        """Return the ids of the labelled predictions in the record."""
        with self._rows:
            labelled = self._record.labelled
            return [str(labelled.name_at(place)) for place in labelled.places().tolist()]

    def to_dict(self) -> dict[str, Any]:
        """Return counts, monitors and the labelled predictions in a form that JSON can represent.

        Of a labelled prediction these are the id, the probabilities, the label and the group.
        """
        self.snapshot(max_age=0.0)
        with self._summary, self._rows:
            self._forget_changed_labels()
            labelled = self._record.labelled
            every = labelled.places()
            places = every[-max(WINDOW_NUMBERS // len(self.classes), 1) :]
            return {
                "format": FORMAT,
                "n_predictions": self.n_predictions,
                "n_labels": self.n_labels,
                "first_time": self._first_time,
                "labels": self._watch.to_dict(),
                "inputs": self._drift.to_dict(),
                "labelled": self._record.labelled_state(places),
                "n_unchecked_before": int((labelled.numbers[places] < self._first_checked).sum()),
                "n_checked": int((labelled.numbers[places] <= self._last_checked).sum()),
                "is_complete": self._is_complete and len(places) == len(every),
            }

    @classmethod
    def from_dict(cls, state: dict[str, Any], calibrator: Any, *, capacity: int = 1000) -> Self:
        """Return an observer that goes on with what :meth:`to_dict` described; of the record, with labelled rows.

        If the calibrator has other classes now, only counts remain.
        """
        observer = cls(calibrator, capacity=capacity)
        try:
            if state["format"] != FORMAT:
                raise FileFormatError(f"the state of an observer must be of format {FORMAT}; got {state['format']!r}.")
            watch, drift, n_rows = LabelWatch.from_dict(state["labels"]), DriftWatch.from_dict(state["inputs"]), 0
            if watch.monitor.classes.tolist() == observer.classes.tolist():
                n_rows = observer._record.restore_labelled(state["labelled"])
                n_left_out = len(state["labelled"]["ids"]) - n_rows
                observer._watch, observer._drift = watch, drift
                observer._last_checked = max(int(state["n_checked"]) - n_left_out, 0) - 1
                observer._first_checked = max(int(state["n_unchecked_before"]) - n_left_out, 0)
                observer._is_complete = bool(state["is_complete"]) and n_left_out == 0
            observer._earlier = (int(state["n_predictions"]), int(state["n_labels"]) - n_rows)
            observer._first_time = None if state["first_time"] is None else float(state["first_time"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, KcalError):
                raise
            raise FileFormatError(f"this is not the state of an observer ({error!r}).") from error
        return observer
