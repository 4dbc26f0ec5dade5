"""Feedback is written to the calibration store, then the calibrator follows the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from kcal.calibrators import Calibrator
from kcal.deployment.export import taken_outputs
from kcal.deployment.service.batching import Batcher
from kcal.deployment.service.errors import RequestError, bad_request, busy
from kcal.deployment.service.feedback import FeedbackRecord, segments, stacked
from kcal.deployment.service.following import FollowingCalibrator
from kcal.deployment.service.inference import ServedModel
from kcal.deployment.service.state_file import StateFile
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError, KcalError
from kcal.persistence import CalibrationStore, StoreBusyError

logger = logging.getLogger("kcal.service")

MOST_AT_ONCE = 1000
"""Records that are written in one transaction."""
Records = Sequence[FeedbackRecord]
"""The records of one request."""


class Learner:
    """Writes feedback on the latest version of a model to a store, and lets its calibrator follow.

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
    versions : callable, optional
        Returns all versions of the model that are served: their records of predictions get labels and erasures, too.
    """

    def __init__(
        self,
        model: ServedModel,
        store: CalibrationStore,
        *,
        additional: bool = True,
        state_file: StateFile | None = None,
        versions: Callable[[], Sequence[ServedModel]] = tuple,
    ) -> None:
        self.model, self.store, self._state_file, self._versions = model, store, state_file, versions
        counts = store.count_by_version() if store.version else {}
        self.n_of_other_networks = sum(counts.values()) - counts.get(store.version, 0)
        """Samples of the store that are outputs of another network, or do not name one: they are not followed."""
        if self.n_of_other_networks:
            text = "%d samples in the store of %s are outputs of another network, and are not followed"
            logger.warning(text, self.n_of_other_networks, model.name)
        self.following = FollowingCalibrator(model, store, additional=additional)
        self.forget_deleted()
        self.counts = {"stored": 0, "corrected": 0, "erased": 0, "absent": 0}
        self.batcher: Batcher[Records] = Batcher(
            self._write_all, after=self._after, max_batch=MOST_AT_ONCE, name=f"kcal-feedback-{model.name}"
        )

    @property
    def obstacle(self) -> str:
        """Why predictions do not follow the feedback, now or in general; empty if they do."""
        return self.following.obstacle or self.following.error

    @property
    def calibrator(self) -> Calibrator:
        """The calibrator that follows the store."""
        return self.following.calibrator

    def follow_soon(self) -> Future[None]:
        """Let the calibrator follow the store in its thread."""
        return self.following.follow_soon()

    async def learn(self, records: Records) -> list[str]:
        """Write records and return what was done with each: "stored", "corrected", "erased" or "absent".

        An erasure is complete when this returns: the calibrator has followed, and the file of the record, too. If they
        cannot, this raises though the sample is gone from the store; the same request completes it later.
        """
        for model in self._models():
            await model.batcher.settled()  # its monitors see a prediction just after the answer
        complete = [self._find(record) for record in records]
        done: list[str] = await self.batcher.submit(complete, len(complete))
        if any(record.is_erasure for record in records):
            await self.batcher.settled()
            await self.finish_erasures()
        return done

    async def finish_erasures(self) -> None:
        """Wait until what was erased from the store is gone from predictions and from the file of the record."""
        await asyncio.wrap_future(self.following.follow_soon(urgent=True))
        if self.following.error:
            raise busy("the sample is erased from the store, but predictions do not follow it yet; try again later")
        await asyncio.to_thread(self._erase_from_file)

    def _find(self, record: FeedbackRecord) -> FeedbackRecord:
        """Return a record with the inputs of its prediction, if it has none and they are known and still fit."""
        if record.is_erasure or record.rows is not None:
            return record
        found = self.model.inputs.find(record.id, self.model.predictor.network_checksum)
        names = taken_outputs(self.calibrator)
        if not found.keys() >= set(names) or found[names[0]].shape[1] != self.calibrator.n_features_in_:
            return record
        return replace(record, rows={name: np.asarray(found[name], dtype=np.float32) for name in names})

    def _models(self) -> set[ServedModel]:
        """Return the model that learns, and all that are served under its name."""
        return {self.model, *self._versions()}

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
            try:
                self.store.vacuum()
            except KcalError as error:  # in use elsewhere, or no space: the bytes go with the next vacuum
                logger.warning("the store of %s was not rewritten after an erasure: %s", self.model.name, error)
        return done

    def _write_segment(self, records: Records) -> list[str]:
        """Write records of different ids, in any order."""
        versions = self.store.versions_of([record.id for record in records])
        done = [self._status(record, version is not None) for record, version in zip(records, versions, strict=True)]
        steps: dict[str, list[FeedbackRecord]] = {"erased": [], "corrected": [], "replaced": [], "stored": []}
        for record, version, status in zip(records, versions, done, strict=True):
            is_of_other_network = version not in (None, self.store.version) and record.rows is not None
            steps.setdefault("replaced" if status == "corrected" and is_of_other_network else status, []).append(record)
        gone = steps["erased"] + steps["replaced"]
        if gone:
            self.store.delete([record.id for record in gone])
        if corrected := steps["corrected"]:
            labels = np.array([record.label for record in corrected])
            self.store.correct([record.id for record in corrected], labels)
        if new := steps["stored"] + steps["replaced"]:
            self._append(new)
        return done

    def _status(self, record: FeedbackRecord, is_known: bool) -> str:
        """Return what becomes of a record; raise if it cannot be used."""
        if not is_known and record.id in self.following.own_ids:
            change = "erased" if record.is_erasure else "corrected"
            message = f"{record.id!r} is a sample of the model's file, not of feedback; it must be {change} there"
            raise RequestError(409, message)
        if record.is_erasure:
            return "erased" if is_known else "absent"
        if is_known:
            return "corrected"
        if record.rows is None:
            names = " and ".join(spec.name for spec in self.model.predictor.inputs)
            message = f"no recent prediction and no sample has the id {record.id!r}; send its {names} with the label"
            raise RequestError(404, message)
        if self.following.has_groups and record.group is None:
            raise bad_request(f"feedback of {record.id!r} must have a group, as the samples of the model have")
        return "stored"

    def _append(self, records: list[FeedbackRecord]) -> None:
        groups = [record.group for record in records] if self.following.has_groups else None
        self.store.append(
            ClassifierOutputs(
                embeddings=stacked(records, "embeddings"),
                logits=stacked(records, "logits"),
                labels=np.array([record.label for record in records]),
                groups=None if groups is None else np.array(groups),
                ids=np.array([record.id for record in records]),
            )
        )

    def _after(self, requests: Sequence[Records], results: Sequence[Any]) -> None:
        """Add the labels to the record of predictions, and let the calibrator follow."""
        for records, done in zip(requests, results, strict=True):
            if isinstance(done, Exception):
                continue
            self.model.inputs.remove(record.id for record in records)
            for record, status in zip(records, done, strict=True):
                self.counts[status] += 1
                for model in self._models():
                    if record.is_erasure:
                        model.observer.erased([record.id])
                    else:
                        model.observer.labelled([record.id], [record.label], groups=[record.group])
        self.follow_soon()

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
                raise busy("the record of predictions cannot be written; try again later") from error

    def forget_deleted(self) -> None:
        """Erase predictions from the record whose samples another program has deleted from the store."""
        names = self.model.observer.labelled_ids()
        known = self.store.contains(names) if names else []
        gone = [name for name, is_known in zip(names, known, strict=True) if not is_known]
        if gone:
            self.model.observer.erased(gone)

    async def close(self) -> None:
        """Write what waits, and end the threads; the store stays open."""
        await self.batcher.close()
        await asyncio.to_thread(self.following.close)

    async def retire(self) -> None:
        """Close, because another version learns from now on: this one predicts as its file says."""
        await self.batcher.close()
        await asyncio.to_thread(self.following.retire)


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
