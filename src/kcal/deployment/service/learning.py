"""Feedback is written to the calibration store, then the calibrator follows the store."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from kcal.calibrators import Calibrator
from kcal.deployment.predictors import taken_outputs
from kcal.deployment.service.batching import Batcher
from kcal.deployment.service.errors import RequestError, bad_request, busy
from kcal.deployment.service.feedback import FeedbackRecord, segments, stacked
from kcal.deployment.service.inference import ServedModel
from kcal.deployment.service.state_file import StateFile
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError, KcalError, without_warnings
from kcal.persistence import CalibrationStore
from kcal.persistence.store_file import StoreBusyError
from kcal.threads import threads_for

logger = logging.getLogger("kcal.service")

MOST_AT_ONCE = 1000
"""Records that are written in one transaction."""
Records = Sequence[FeedbackRecord]
"""The records of one request."""


def with_text_ids(calibrator: Calibrator) -> Calibrator:
    """Return a calibrator, just loaded, whose samples have text as ids, as predictions have: "row 17" without ids."""
    live: Any = calibrator
    names = [f"row {row}" for row in live.support_indices_] if live.ids_ is None else map(str, live.ids_.tolist())
    live.ids_ = np.array(list(names), dtype=np.str_)
    return calibrator


def obstacle_to_following(calibrator: Calibrator) -> str:
    """Return why no samples can be added to a calibrator; empty if they can."""
    if not calibrator.learns_online:
        return f"the method {calibrator.method} does not learn online."
    try:
        _ = calibrator.has_groups_
    except InvalidInputError as error:  # a compressed support, or a blend that was saved without logits
        return str(error)
    return ""


class Learner:
    """Writes feedback on a served model to a store, and lets its calibrator follow.

    Requests that arrive together are written in one transaction. A request is answered when its records are on disk;
    the calibrator follows in a thread of its own, and predictions change when it has.

    Parameters
    ----------
    model : ServedModel
        Of a calibrator.
    store : CalibrationStore
        Holds the feedback or, if it is not ``additional``, the whole calibration set.
    additional : bool
        Whether samples of the model that are not in the store stay.
    state_file : StateFile, optional
        Holds labelled predictions: it is written again before an erasure is acknowledged.
    """

    def __init__(
        self,
        model: ServedModel,
        store: CalibrationStore,
        *,
        additional: bool = True,
        state_file: StateFile | None = None,
    ) -> None:
        assert model.predictor.calibrator is not None
        self.model, self.store, self.calibrator = model, store, model.predictor.calibrator
        self.obstacle = obstacle_to_following(self.calibrator)
        """Why predictions do not follow the feedback, which is then for the monitor and the next fit; empty if they do.
        """
        if self.obstacle:
            logger.warning("predictions of %s do not follow the feedback: %s", model.name, self.obstacle)
        counts = store.count_by_version() if store.version else {}
        self.n_of_other_networks = sum(counts.values()) - counts.get(store.version, 0)
        """Samples of the store that are outputs of another network, or do not name one: they are not followed."""
        if self.n_of_other_networks:
            text = "%d samples in the store of %s are outputs of another network, and are not followed"
            logger.warning(text, self.n_of_other_networks, model.name)
        follows = not self.obstacle
        self._follower = None
        if follows:
            live = with_text_ids(self.calibrator)
            self._follower = store.follow(live, keep_others=additional, version=store.version or None)
        self._has_groups = follows and bool(self._live.has_groups_)
        self.own_ids = frozenset(map(str, self._live.current_ids_)) if follows and additional else frozenset()
        self._state_file, self._has_erased = state_file, False
        self._follow()
        self.forget_deleted()
        self.error = ""
        """Why the calibrator could not follow the store; empty if it could."""
        self.counts = {"stored": 0, "corrected": 0, "erased": 0, "absent": 0}
        self._executor = ThreadPoolExecutor(1, f"kcal-follow-{model.name}")
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._next: Future[None] | None = None
        self._search_soon()
        self.batcher: Batcher[Records] = Batcher(
            self._write_all, after=self._after, max_batch=MOST_AT_ONCE, name=f"kcal-feedback-{model.name}"
        )

    @property
    def _live(self) -> Any:
        return self.calibrator

    async def learn(self, records: Records) -> list[str]:
        """Write records and return what was done with each: "stored", "corrected", "erased" or "absent".

        An erasure is complete when this returns: the calibrator has followed, and the file of the record, too.
        """
        if any(not record.is_erasure and self._find(record) is record for record in records):
            await self.model.batcher.settled()  # a prediction is recorded just after its answer
        found = [self._find(record) for record in records]
        done: list[str] = await self.batcher.submit(found, len(found))
        if any(record.is_erasure for record in records):
            await self.batcher.settled()
            await asyncio.wrap_future(self.follow_soon())
        return done

    def _find(self, record: FeedbackRecord) -> FeedbackRecord:
        """Return a record with the inputs of its prediction, if it has none and the prediction is remembered."""
        if record.is_erasure or record.rows is not None:
            return record
        prediction = self.model.find(record.id)
        if prediction is None:
            return record
        given = {"embeddings": prediction.embedding, "logits": prediction.logits}
        rows = {name: given[name] for name in taken_outputs(self.calibrator)}
        if any(row is None for row in rows.values()):
            return record
        kept = {name: np.asarray(row, dtype=np.float32)[None] for name, row in rows.items()}
        return replace(record, rows=kept, group=record.group or prediction.group)

    def _write_all(self, requests: Sequence[Records]) -> Sequence[Any]:
        """Write the records of several requests; if one request is refused, each by itself."""
        try:
            done = iter(self._write([record for records in requests for record in records]))
            return [list(islice(done, len(records))) for records in requests]
        except (KcalError, RequestError) as error:
            if len(requests) == 1:
                return [_answer(error)]
            return [result for records in requests for result in self._write_all([records])]

    def _write(self, records: Records) -> list[str]:
        """Write all records, or raise and write none; return what was done with each."""
        done: list[str] = []
        with self.store.transaction():
            for part in segments(records):
                done += self._write_segment(part)
        if "erased" in done:
            with suppress(InvalidInputError, StoreBusyError):  # in use elsewhere: the bytes go with the next vacuum
                self.store.vacuum()
        return done

    def _write_segment(self, records: Records) -> list[str]:
        """Write records of different ids, in any order."""
        known = self.store.contains([record.id for record in records])
        done = [self._status(record, is_known) for record, is_known in zip(records, known, strict=True)]
        for status, write in {"stored": self._append, "corrected": self._correct, "erased": self._erase}.items():
            chosen = [record for record, one in zip(records, done, strict=True) if one == status]
            if chosen:
                write(chosen)
        return done

    def _status(self, record: FeedbackRecord, is_known: bool) -> str:
        """Return what becomes of a record; raise if it cannot be used."""
        if not is_known and record.id in self.own_ids:
            what = "erased" if record.is_erasure else "corrected"
            message = f"{record.id!r} is a sample of the model's file, not of feedback; it must be {what} there"
            raise RequestError(409, message)
        if record.is_erasure:
            return "erased" if is_known else "absent"
        if is_known:
            return "corrected"
        if record.rows is None:
            names = " and ".join(spec.name for spec in self.model.predictor.inputs)
            message = f"no recent prediction and no sample has the id {record.id!r}; send its {names} with the label"
            raise RequestError(404, message)
        if self._has_groups and record.group is None:
            raise bad_request(f"feedback of {record.id!r} must have a group, as the samples of the model have")
        return "stored"

    def _append(self, records: list[FeedbackRecord]) -> None:
        groups = [record.group for record in records] if self._has_groups else None
        self.store.append(
            ClassifierOutputs(
                embeddings=stacked(records, "embeddings"),
                logits=stacked(records, "logits"),
                labels=np.array([record.label for record in records]),
                groups=None if groups is None else np.array(groups),
                ids=np.array([record.id for record in records]),
            )
        )

    def _correct(self, records: list[FeedbackRecord]) -> None:
        self.store.correct([record.id for record in records], np.array([record.label for record in records]))

    def _erase(self, records: list[FeedbackRecord]) -> None:
        self.store.delete([record.id for record in records])

    def _after(self, requests: Sequence[Records], results: Sequence[Any]) -> None:
        """Add the labels to the record of predictions, and let the calibrator follow."""
        for records, done in zip(requests, results, strict=True):
            if isinstance(done, Exception):
                continue
            for record, status in zip(records, done, strict=True):
                self.counts[status] += 1
                if record.is_erasure:
                    self.model.erased(record.id)
                    self._has_erased = True
                else:
                    self.model.labelled(record.id, record.label, record.group)
        self.follow_soon()

    def follow_soon(self) -> Future[None]:
        """Let the calibrator follow the store in the thread; calls that come before it begins share one update."""
        with self._lock:
            if self._next is None:
                self._next = self._executor.submit(self._update)
            return self._next

    def _update(self) -> None:
        with self._lock:
            self._next = None
        if self._try(self._follow):
            self._search_soon()  # in a task of its own, which no erasure waits for
        if self._has_erased:
            self._has_erased = False
            self._erase_from_file()

    def _erase_from_file(self) -> None:
        """Write the record of predictions without those that were erased; raise if they may be in the file still."""
        if self._state_file is None:
            return
        try:
            self._state_file.write(self.model.observer.to_dict)
        except Exception as error:  # no space, perhaps: then the page begins again after a restart
            logger.error("the record of predictions of %s was not written: %s", self.model.name, error)
            try:
                self._state_file.remove()
            except OSError:
                self._has_erased = True
                raise busy("the record of predictions cannot be written; try again later") from error

    def forget_deleted(self) -> None:
        """Erase predictions from the record whose samples another program has deleted from the store."""
        names = self.model.observer.labelled_ids()
        known = self.store.contains(names) if names else []
        gone = [name for name, is_known in zip(names, known, strict=True) if not is_known]
        if gone:
            self.model.observer.erased(gone)

    def _search_soon(self) -> None:
        if not self._stop.is_set():
            with suppress(RuntimeError):  # the thread has ended meanwhile
                self._executor.submit(self._try, self._search)

    def _try(self, step: Callable[[], None]) -> bool:
        """Make a step in the thread, then leave the processor to predictions for as long; return if it succeeded."""
        start = time.monotonic()
        try:
            step()
            self.error = ""
        except Exception as error:  # the store has the feedback; the next update tries again
            self.error = str(error) if isinstance(error, KcalError) else type(error).__name__
            logger.error("%s could not follow its store: %s", self.model.name, self.error)
        self._stop.wait(time.monotonic() - start)
        return not self.error

    def _follow(self) -> None:
        """Apply what changed in the store; predictions go on with the earlier samples until all is ready.

        Bandwidths and weights stay, as between two searches. So the service is ready soon after a restart, and an
        erasure is complete soon, also if a search is due.
        """
        with without_warnings(), threads_for(0):  # its operations are small: two threads would wait for each other
            if self._follower is not None and self._follower.update(search=False):
                self._show()

    def _search(self) -> None:
        """Search for the bandwidth, or fit the weights of a blend, if it is due."""
        with without_warnings(), threads_for(0):
            if self._follower is not None and self._live.is_search_due_ and not self._stop.is_set():
                self._live.refresh()
                self._show()

    def _show(self) -> None:
        """Let predictions come from the present samples."""
        frozen = self._live.frozen(search=False)
        self.model.predictor = self.model.predictor.with_calibrator(frozen)
        self.model.observer.calibrator = frozen  # the page must not wait for a search either

    async def close(self) -> None:
        """Write what waits, and end the threads; the store stays open."""
        await self.batcher.close()
        self._stop.set()
        await asyncio.to_thread(self._executor.shutdown)


def _answer(error: Exception) -> RequestError:
    """Return the answer to a request whose records were not written."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, StoreBusyError):
        return busy("the calibration store is busy; try again later")
    if isinstance(error, InvalidInputError):
        return RequestError(409, f"the calibration store refuses the feedback: {error}")
    logger.error("feedback was not written: %s", error)
    return RequestError(503, "the calibration store cannot be written", {"Retry-After": "5"})


def open_store(path: Path, name: str, version: str = "") -> CalibrationStore:
    """Open the store of a model: the file itself or, in a folder, NAME.db; ``version`` is that of its network."""
    store = CalibrationStore(path / f"{name}.db" if path.is_dir() else path, version=version)
    first = next(iter(store.ids()), "")
    if not isinstance(first, str):
        store.close()
        raise InvalidInputError("--store", "must hold samples with text as ids", got=f"a number, {first!r}")
    return store
