"""A record of one served model: its latest predictions, their labels, and the monitors that watch them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kcal.deployment.service.alarms import find_alarms
from kcal.deployment.service.rings import RowRing, prediction_at
from kcal.deployment.service.snapshot import (
    LabelledPredictions,
    ObservedPrediction,
    ServiceSnapshot,
    class_frequencies,
    evidence_summary,
)
from kcal.deployment.service.watches import DriftWatch, LabelWatch, rank_inputs
from kcal.errors import FileFormatError, KcalError
from kcal.monitoring import estimate_performance
from kcal.validation import check_integer, check_seed

N_LATEST = 20
"""Predictions that a snapshot lists."""
WATCHED_AT_ONCE = 256
"""Rows whose density a snapshot computes, at most: the latest."""
WATCHED_NUMBERS = 2**17
"""Labels times classes that a snapshot lets the monitor see, at most."""
WINDOW_NUMBERS = 2**21
"""Latest predictions times classes that a snapshot is made of, at most."""
MAX_AGE = 1.0
FORMAT = 1


class Observer:
    """Record what a served model predicts and which labels it gets, in bounded memory; safe to use from any thread.

    :meth:`predicted` copies rows into arrays. What costs time happens in :meth:`snapshot`, whose results are kept for a
    moment. Two records have ``capacity`` rows each: the latest predictions, and the latest with labels; with very many
    classes, a snapshot is made of fewer.

    The monitors see each labelled prediction once, when a snapshot is made; and of the inputs those that came since
    the last snapshot, at most 256, without those that the calibrator has learnt meanwhile: these are too close to the
    calibration set, being part of it. A correction or an erasure of a label that a monitor has seen lets it begin again
    with the labels as they are now, as long as all of them are in the record; of older ones only sums remain.

    Parameters
    ----------
    calibrator
        Fitted. If it learns online, what is compared with the calibration set is compared with the present one. The
        attribute of this name may be replaced by a later calibrator of the same model.
    capacity : int
        Rows of each record.
    seed : int
        Of the random order of equal ranks.
    """

    def __init__(self, calibrator: Any, *, capacity: int = 1000, seed: int = 0) -> None:
        self.calibrator = calibrator
        self.capacity = check_integer(capacity, "capacity", minimum=1, maximum=10**7)
        self.seed = check_seed(seed)
        self._rows = threading.Lock()  # of both records
        self._summary = threading.Lock()  # of the monitors and the last snapshot; taken first if both are
        self.n_predictions = self.n_labels = 0
        self._first_time: float | None = None
        self._drift = DriftWatch(len(self._reference()), seed=self.seed)
        self._start(np.asarray(calibrator.classes_))

    def _start(self, classes: NDArray[Any]) -> None:
        """Begin with these classes, without rows."""
        self.classes = classes
        self._codes = {str(label): code for code, label in enumerate(classes.tolist())}
        self._recent, self._labelled = RowRing(self.capacity), RowRing(self.capacity)
        self._watch = LabelWatch(classes)
        self._last_watched = self._last_checked = -1  # numbers of rows that the monitors have seen
        self._is_stale = False  # whether the monitor of labels has seen a label that has changed since
        self._is_complete = True  # whether all labels that it has seen are in the record
        self._cached: ServiceSnapshot | None = None
        self._changes, self._cached_changes = 0, -1

    def _reference(self) -> NDArray[np.float64]:
        """Return the log evidence of calibration samples, ascending; a single 0 if the method has none."""
        if not self.calibrator.has_evidence:
            return np.zeros(1)
        return np.asarray(self.calibrator.calibration_log_evidence_)

    def predicted(
        self,
        ids: Sequence[str] | None,
        probs: NDArray[Any],
        *,
        evidence: NDArray[Any] | None = None,
        groups: Sequence[Any] | None = None,
        embeddings: NDArray[Any] | None = None,
        logits: NDArray[Any] | None = None,
    ) -> None:
        """Record predictions, (n, n_classes), in their order, with what is known of each.

        ``evidence``, (n,), is that of ``calibrator.evidence``. If the number of classes has changed, because the
        calibrator learnt a new one, the record begins again; predictions with other columns than it has are ignored.
        """
        probs = np.asarray(probs, dtype=np.float64)
        n_rows, n_columns = probs.shape
        if n_rows == 0:
            return
        if n_columns != len(self.classes):
            self._restart(n_columns)
        now = time.time()
        rows = {
            "probs": probs,
            "time": np.full(n_rows, now),
            "code": np.full(n_rows, -1, dtype=np.int64),
            "evidence": None if evidence is None else np.asarray(evidence, dtype=np.float64).reshape(n_rows),
            "group": None if groups is None else _texts(groups),
            "embedding": None if embeddings is None else np.asarray(embeddings),
            "logits": None if logits is None else np.asarray(logits),
        }
        with self._rows:
            if n_columns != len(self.classes):
                return
            self._first_time = self._first_time or now
            self.n_predictions += n_rows
            self._recent.append(None if ids is None else [str(name) for name in ids], rows)
            self._changes += 1

    def _restart(self, n_columns: int) -> None:
        """Begin again if the calibrator now has so many classes."""
        with self._summary, self._rows:
            classes = np.asarray(self.calibrator.classes_)
            if len(classes) == n_columns != len(self.classes):
                self._start(classes)

    def labelled(self, ids: Sequence[str], labels: Sequence[Any], *, groups: Sequence[Any] | None = None) -> None:
        """Record labels or corrections of predictions by their ids; unknown ids and labels are ignored.

        An id counts once: a second label replaces the first. ``groups`` are for predictions that came without.
        """
        named = [None] * len(ids) if groups is None else _texts(groups).tolist()
        with self._rows:
            for name, label, group in zip(map(str, ids), labels, named, strict=True):
                code = self._codes.get(str(label))
                if code is not None:
                    self._label(name, code, group)
            self._changes += 1

    def _label(self, name: str, code: int, group: str | None) -> None:
        place, known = self._recent.place_of(name), self._labelled.place_of(name)
        is_first = place is not None and self._recent.columns["code"][place] < 0
        if place is not None:
            self._recent.columns["code"][place] = code
        if known is not None:
            changes = self._labelled.columns["code"][known] != code
            self._is_stale |= bool(changes and self._labelled.numbers[known] <= self._last_checked)
            self._labelled.columns["code"][known] = code
        elif place is not None and is_first:
            group = self._recent.value("group", place) or group
            row = {"probs": self._recent.columns["probs"][[place]], "code": np.array([code]), "group": _texts([group])}
            self._labelled.append([name], row)
            self.n_labels += 1

    def erased(self, ids: Sequence[str]) -> None:
        """Erase all that is known of some ids."""
        names = set(map(str, ids))
        with self._summary, self._rows:
            self._drift.forget(self._recent.erase(names))
            for name in names:
                place = self._labelled.place_of(name)
                if place is not None and self._labelled.numbers[place] <= self._last_checked:
                    self._is_stale = True
                    self._watch.forget_group_of_row(self._labelled.value("group", place))
            self._labelled.erase(names)
            self._forget_changed_labels()
            self._cached = None
            self._changes += 1

    def _forget_changed_labels(self) -> None:
        """Let the monitor of labels begin again if it has seen labels that changed and all others are at hand."""
        self._is_complete &= self._labelled.n_rows <= self.capacity
        if self._is_stale and self._is_complete:
            self._watch, self._last_checked = LabelWatch(self.classes), -1
        self._is_stale = False

    def find(self, id: str) -> ObservedPrediction | None:
        """Return the latest prediction of an id, with embedding and logits if they are known; None if it is gone."""
        with self._rows:
            place = self._recent.place_of(str(id))
            return None if place is None else prediction_at(self._recent, place, self.classes)

    def snapshot(self, *, max_age: float = MAX_AGE) -> ServiceSnapshot:
        """Return what the model has done lately.

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
            places, known = self._recent.places()[-window:], self._labelled.places()[-window:]
            columns = self._recent.rows(places, ("probs", "evidence"))
            labelled = self._labelled.rows(known, ("probs", "code"))
            numbers = self._recent.numbers[places]
            latest = tuple(prediction_at(self._recent, place, self.classes) for place in places[::-1][:N_LATEST])
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
            last_time=latest[0].time if latest else None,
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
            waiting = self._labelled.places(after=self._last_checked)
            rows = self._labelled.rows(waiting[:most], ("probs", "code", "group"))
            self._last_checked = int(self._labelled.numbers[waiting[:most]].max(initial=self._last_checked))
            self._changes += len(waiting) > most
        if len(waiting):
            self._watch.update(rows["probs"], self.classes[rows["code"]], rows["group"].tolist())

    def _watch_inputs(self, columns: dict[str, NDArray[Any]], numbers: NDArray[np.int64]) -> None:
        """Let the monitor of inputs see the latest rows since the last snapshot; add the evidence that they lack."""
        self._drift.refresh()
        name = "logits" if self.calibrator.inputs == "logits" else "embedding"
        new = np.flatnonzero(numbers > self._last_watched)[-WATCHED_AT_ONCE:]
        if not len(new) or not self.calibrator.has_evidence:
            return
        self._last_watched = int(numbers.max())
        with self._rows:
            new = new[self._recent.has(numbers[new])]
            rows = self._recent.rows(numbers[new] % self.capacity, (name,)).get(name)
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
                self._recent.fill("evidence", numbers[new], found)

    def to_dict(self) -> dict[str, Any]:
        """Return counts and monitors in a form that JSON can represent; neither rows nor ids are among them."""
        self.snapshot(max_age=0.0)
        with self._summary, self._rows:
            return {
                "format": FORMAT,
                "n_predictions": self.n_predictions,
                "n_labels": self.n_labels,
                "first_time": self._first_time,
                "labels": self._watch.to_dict(),
                "inputs": self._drift.to_dict(),
            }

    @classmethod
    def from_dict(cls, state: dict[str, Any], calibrator: Any, *, capacity: int = 1000, seed: int = 0) -> Self:
        """Return an observer that goes on with what :meth:`to_dict` described; the rows of the record are gone.

        If the calibrator has other classes now, only counts remain.
        """
        observer = cls(calibrator, capacity=capacity, seed=seed)
        try:
            if state["format"] != FORMAT:
                raise FileFormatError(f"the state of an observer must be of format {FORMAT}; got {state['format']!r}.")
            watch, drift = LabelWatch.from_dict(state["labels"]), DriftWatch.from_dict(state["inputs"])
            if watch.monitor.classes.tolist() == observer.classes.tolist():
                observer._watch, observer._drift = watch, drift
                observer._is_complete = watch.monitor.n_samples == 0
            observer.n_predictions, observer.n_labels = int(state["n_predictions"]), int(state["n_labels"])
            observer._first_time = None if state["first_time"] is None else float(state["first_time"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, KcalError):
                raise
            raise FileFormatError(f"this is not the state of an observer ({error!r}).") from error
        return observer


def _texts(values: Sequence[Any]) -> NDArray[Any]:
    """Return groups as text, None where there is none, (n,)."""
    texts = np.empty(len(values), dtype=object)
    texts[:] = [None if value is None else str(value) for value in values]
    return texts
