"""Feedback: labels, corrections and erasures are written to the calibration store; then the calibrator follows it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import HTTPException
from pydantic import BeforeValidator, ConfigDict, Field, RootModel, model_validator

from kcal.calibrators import online_ids, online_state
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError, KcalError, without_warnings
from kcal.persistence import CalibrationStore
from kcal.serving.predictor import Arrays, Predictor, unable_to_learn
from kcal.serving.protocol import Message, PrintableName, bad_request, busy
from kcal.serving.record import Record
from kcal.threads import threads_for

logger = logging.getLogger("kcal.serving")

SAVE_SECONDS = 60.0
"""How often the record is written, and changes that other programs made in the store are looked for."""
STOP_SECONDS = 5.0
"""How long a search may go on when the service stops."""
Label = str | int | float | bool


class Feedback(Message):
    """The label or the correction of a prediction, or its erasure; further fields are the inputs of the model."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[Any]]

    id: PrintableName
    label: Label | None = None
    correction: Label | None = None
    erase: Literal[True] | None = None
    group: PrintableName | None = None

    @model_validator(mode="after")
    def _check_action(self) -> Feedback:
        if sum(value is not None for value in (self.label, self.correction, self.erase)) != 1:
            raise ValueError("must have one of label, correction and erase")
        if self.erase and (self.group is not None or self.__pydantic_extra__):
            raise ValueError("erase must come with the id alone")
        return self

    def given_label(self, classes: Sequence[Any]) -> Any:
        """Return the class that was given; None for an erasure, and an error if the model has no such class."""
        given = self.label if self.correction is None else self.correction
        if given is None:
            return None
        for label in classes:
            if str(label) == str(given) or (type(given) is int and type(label) is float and label == given):
                return label
        raise bad_request(f"the label of {self.id!r} must be a class of the model; got {given!r}")

    def rows(self, predictor: Predictor) -> Arrays:
        """Return the embedding and the logits, (1, ·) each, of the inputs that were given; none without inputs."""
        if not self.__pydantic_extra__:
            return {}
        checked = predictor.read_lists(self.__pydantic_extra__)
        if len(next(iter(checked.values()))) != 1:
            raise bad_request(f"the inputs of {self.id!r} must be one row")
        return predictor.rows(checked)


def _as_list(content: Any) -> Any:
    return content if isinstance(content, list) else [content]


class FeedbackRecords(RootModel[list[Feedback]]):
    """One record of feedback, or a list of them."""

    root: Annotated[list[Feedback], BeforeValidator(_as_list), Field(min_length=1, max_length=10_000)]


class Learner:
    """Writes the feedback of one model to its store, and lets the calibrator follow the store.

    A label is acknowledged when it is on disk. One background thread lets the calibrator follow, searches for
    bandwidths or weights when that is due, and saves the record. Predictions change by one assignment, and wait for
    none of it. An erasure is acknowledged when store, predictions and record have nothing of the sample.

    Parameters
    ----------
    path : Path
        File of the store.
    is_complete : bool
        Whether the store holds the whole calibration set: samples that it does not have are forgotten.
    record : Record
        Of the predictions.
    predictor : Predictor
        That of the model's file.

    Attributes
    ----------
    predictor : Predictor
        The predictor in use: the calibrator with the samples of the store.
    reason : str
        Why the calibrator cannot learn; empty if it can.
    error : str
        Why predictions do not follow the store now; empty if they do.
    """

    def __init__(self, path: Path, is_complete: bool, record: Record, predictor: Predictor) -> None:
        self.store, self.is_complete, self.record = CalibrationStore(path), is_complete, record
        self.counts = {"stored": 0, "corrected": 0, "erased": 0, "absent": 0}
        self.error = ""
        self._lock = threading.RLock()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="kcal-learning")
        try:
            first = next(iter(self.store.ids()), None)
            if (first is None and is_complete) or not isinstance(first, str | None):
                expected = "must have samples with text as ids" if is_complete else "must have text as ids"
                raise InvalidInputError("--store", expected, got=f"{path.name} with {first!r}")
            self.start(predictor)
        except BaseException:
            self.store.close()
            raise
        self._thread.start()

    def start(self, predictor: Predictor) -> None:
        """Let another predictor follow the store and predict: at the start, and when the model's file is replaced."""
        version = self._version_of(predictor)
        counts = self.store.count_by_version() if version else {}
        self.n_other_versions = sum(counts.values()) - counts.get(version, 0)
        reason, calibrator, sync, own_ids = unable_to_learn(predictor.calibrator), predictor.calibrator, None, set()
        if not reason:
            calibrator = _with_text_ids(calibrator)
            own_ids = set() if self.is_complete else set(online_ids(calibrator))
            with without_warnings(), threads_for(0):
                sync = self._new_sync(calibrator, version)
                sync.update(search=False)
        with self._lock:
            with self.store.transaction():  # no feedback on the network before is written meanwhile
                self.store.version = version
            self._calibrator, self._sync, self._own_ids, self.reason = calibrator, sync, own_ids, reason
            self._present(predictor)
        self._wake.set()

    def _version_of(self, predictor: Predictor) -> str:
        """Return the version of samples that a predictor follows: its network, unless the store is complete."""
        return "" if self.is_complete else predictor.version

    def _new_sync(self, calibrator: Any, version: str) -> Any:
        return self.store.follow(calibrator, keep_others=not self.is_complete, version=version or None)

    def _present(self, predictor: Predictor) -> None:
        """Let predictions come from the present samples."""
        if self._sync is not None:
            with without_warnings(), threads_for(0):  # operations are small: threads would wait for each other
                self._sync.update(search=False)
                predictor = Predictor(self._calibrator.snapshot(search=False), predictor.network)
            self._last_change = self._sync.since
        self.predictor = predictor

    @property
    def has_groups(self) -> bool:
        """Whether the samples of the calibrator have groups: labels need them, too."""
        return self._sync is not None and bool(online_state(self._calibrator).has_groups)

    def give(self, records: Sequence[Feedback]) -> list[str]:
        """Write records, all or none; return what was done with each: "stored", "corrected", "erased" or "absent".

        If predictions cannot follow an erasure, this raises though the sample is gone from the store; the same request
        completes it later.
        """
        predictor = self.predictor
        classes = predictor.classes.tolist()
        changes = [(one, one.given_label(classes), one.rows(predictor)) for one in records]
        try:
            with self.store.transaction():
                if self.store.version != self._version_of(predictor):
                    raise busy("the network is being replaced; try again")
                done = [self._write(*change, predictor) for change in changes]
        except InvalidInputError as error:
            raise HTTPException(409, f"the calibration store rejects the feedback: {error}") from error
        except KcalError as error:
            logger.error("feedback was not written: %s", error)
            raise busy("the calibration store cannot be written now; try again later", 5) from error
        for (one, label, _), status in zip(changes, done, strict=True):
            self.counts[status] += 1
            if label is not None:
                self.record.label(one.id, label, one.group)
        if erased := [one.id for one in records if one.erase]:
            self._complete_erasure(erased, is_stored="erased" in done)
        self._wake.set()
        return done

    def _write(self, one: Feedback, label: Any, rows: Arrays, predictor: Predictor) -> str:
        """Write one record to the store; return what was done."""
        (version,) = self.store.versions_of([one.id])
        if version is None and one.id in self._own_ids:
            raise HTTPException(409, f"{one.id!r} is a sample of the model's file; change it there")
        if version is None and one.erase:
            return "absent"
        is_replaced = version is not None and bool(rows) and version != self.store.version  # of an earlier network
        if one.erase or is_replaced:
            self.store.delete([one.id])
        if version is None or is_replaced:
            self._append(one, label, rows, predictor)
        elif not one.erase:
            self.store.correct([one.id], np.array([label]))
        return "erased" if one.erase else "stored" if version is None else "corrected"

    def _append(self, one: Feedback, label: Any, rows: Arrays, predictor: Predictor) -> None:
        """Append a sample to the store, with the rows of its prediction if none were sent."""
        rows, width = rows or self.record.rows_of(one.id, predictor.version), predictor.calibrator.n_features_in_
        if set(rows) != set(predictor.taken) or ("embeddings" in rows and rows["embeddings"].shape[1] != width):
            names = " and ".join(spec.name for spec in predictor.inputs)
            message = f"no recent prediction and no sample has the id {one.id!r}; send its {names} with the label"
            raise HTTPException(404, message)
        if self.has_groups and one.group is None:
            raise bad_request(f"feedback of {one.id!r} must have a group, as the samples of the model have")
        labels, ids, groups = (np.array([value]) for value in (label, one.id, one.group))
        matrices = {name: rows[name].astype(np.float32) for name in predictor.taken}
        self.store.append(
            ClassifierOutputs(**matrices, labels=labels, groups=groups if self.has_groups else None, ids=ids)
        )

    def _complete_erasure(self, ids: Sequence[str], *, is_stored: bool) -> None:
        """Let predictions, the record and its file follow an erasure; raise if one of them cannot."""
        self.record.erase(ids)
        try:
            if is_stored:
                self.store.vacuum()
        except KcalError as error:  # in use elsewhere, or no space: the bytes go with the next vacuum
            logger.warning("the store was not rewritten after an erasure: %s", error)
        if not self._try(self._follow):
            raise busy("the sample is erased from the store, but predictions do not follow it yet; try again later")
        if not self._try(self._save) and self.record.path is not None:
            self.record.path.unlink(missing_ok=True)  # no space, perhaps: the record begins anew after a restart

    def _follow(self) -> None:
        """Apply what changed in the store, and let predictions come from the present samples."""
        with self._lock:
            if self._sync is not None and self.store.last_change != self._last_change:
                self._present(self.predictor)

    def _search(self) -> None:
        """Search on a copy, which then takes the place of the calibrator: neither predictions nor erasures wait."""
        with self._lock:
            calibrator = self._calibrator
            copy = deepcopy(calibrator)
        with without_warnings(), threads_for(0):
            copy.refresh()
            if self._stop.is_set():  # the store is closed, perhaps
                return
            with self._lock:
                self._follow()
                if calibrator is not self._calibrator:  # the file was replaced meanwhile
                    return
                kept = set(online_ids(calibrator))
                if gone := [name for name in online_ids(copy) if name not in kept]:
                    copy.forget(gone)
                self._calibrator, self._sync = copy, self._new_sync(copy, self.store.version)
                self._present(self.predictor)

    def _work(self) -> None:
        last_save = time.monotonic()
        while not self._stop.is_set():
            self._wake.wait(SAVE_SECONDS)
            self._wake.clear()
            start = time.monotonic()
            is_followed = self._try(self._follow)
            self._stop.wait(time.monotonic() - start)  # predictions get the processor for as long as this took
            if (
                is_followed
                and self._sync is not None
                and online_state(self._calibrator).is_search_due
                and not self._stop.is_set()
            ):
                self._try(self._search)
            if time.monotonic() - last_save >= SAVE_SECONDS and not self._stop.is_set():
                self._try(self._save)
                last_save = time.monotonic()

    def _save(self) -> None:
        """Write the record, without predictions whose samples another program has deleted from the store."""
        names = self.record.labelled_ids()
        known = self.store.contains(names) if names else []
        self.record.erase([name for name, is_known in zip(names, known, strict=True) if not is_known])
        self.record.save(self.predictor)

    def _try(self, step: Callable[[], None]) -> bool:
        """Return whether a step succeeded; if it did not, the next one tries again, and the dashboard says why."""
        try:
            step()
        except Exception as error:
            self.error = str(error) if isinstance(error, KcalError) else type(error).__name__
            logger.error("%s failed: %s", step.__name__.strip("_"), self.error)
            return False
        self.error = ""
        return True

    @property
    def is_working(self) -> bool:
        """Whether the thread has not ended."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End the thread, save the record, and close the store; a search that takes long goes on for nothing."""
        self._stop.set()
        self._wake.set()
        self._thread.join(STOP_SECONDS)
        self._try(self._save)
        self.store.close()


def _with_text_ids(calibrator: Any) -> Any:
    """Return a copy of a calibrator whose samples have text as ids, as predictions have: "row 17" without ids."""
    prefix = "row " if calibrator.ids_ is None else ""
    return calibrator.snapshot(ids=[f"{prefix}{name}" for name in online_ids(calibrator)])
