"""A durable store of labelled samples in one SQLite file: what a calibrator is fitted on, and follows.

    samples   row, id, embedding, logits, label, group, weight, time, model version, checksum
    changes   number, row: every sample that was added, corrected or deleted, in order
    totals    sum of the checksums, number and sum of the changes

A call that changes the store returns when the change is on disk (write-ahead log, ``synchronous=FULL``); a process that
is killed leaves all of it or nothing. Several processes may use one store. A file that is not as it was written raises
at opening.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators import Calibrator, fit_on
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError, KcalWarning, warn
from kcal.persistence.follow import Follower
from kcal.persistence.store_file import COLUMNS, StoreFile
from kcal.persistence.stored_samples import (
    LARGEST_INTEGER,
    StoredSamples,
    as_samples,
    matrix_of,
    plain_ids,
    plain_labels,
)
from kcal.validation import check_groups, check_integer, check_weights, shown

CHUNK = 10_000


class CalibrationStore(StoreFile):
    """A durable home of labelled samples in one file.

    Parameters
    ----------
    path : path
        The file; it is created if it does not exist. SQLite keeps two more beside it while it is in use, PATH-wal and
        PATH-shm.
    version : str
        Version of the network whose outputs are appended; stored with every sample.

    Examples
    --------
    >>> import kcal
    >>> cal = kcal.load_example().calibration
    >>> names = [f"image-{row}" for row in range(300)]
    >>> samples = kcal.ClassifierOutputs(cal.embeddings[:300], cal.logits[:300], cal.labels[:300], ids=names)
    >>> with kcal.CalibrationStore("ward.db") as store:
    ...     ids = store.append(samples)
    ...     store.correct(["image-17"], [3])
    ...     blend = store.fit(kcal.KCalBlend())
    >>> len(blend.ids_)
    300
    """

    def __init__(self, path: str | Path, *, version: str = "") -> None:
        self.version = check_version(version) or ""
        super().__init__(path)

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context in which several changes are made together: all of them if it ends, none if it raises.

        Other threads and processes see the changes, and they are on disk, when the context has ended.

        Examples
        --------
        >>> import kcal
        >>> sample = kcal.ClassifierOutputs([[0.1, 0.2]], labels=["artefact"], ids=["eeg-18"])
        >>> with kcal.CalibrationStore("eeg.db") as store, store.transaction():
        ...     ids = store.append(sample)
        ...     store.correct(ids, ["seizure"])
        """
        return self._transaction()

    def append(self, outputs: ClassifierOutputs, *, times: Any = None) -> list[Any]:
        """Add samples and return their ids, those of ``outputs`` or new ones; labels may follow by :meth:`correct`.

        Parameters
        ----------
        outputs : ClassifierOutputs
            Embeddings, logits or both; labels, groups, weights and ids as far as they are known. All samples of a store
            have groups or none has; ids, labels and groups are each of one type. New ids are the next integers if the
            others are numbers, otherwise random text.
        times : (n,) array, optional
            When the samples were taken, in seconds since 1970; by default now.
        """
        records = list(self._records(outputs, times))
        with self._transaction():
            self._check_widths(outputs)
            self._check_columns(records)
            if outputs.ids is None:
                records = [(name, *rest) for name, (_, *rest) in zip(self._new_ids(len(records)), records, strict=True)]
            for record in records:
                try:
                    self._run(f"INSERT INTO samples ({COLUMNS.removeprefix('row, ')}) VALUES (?,?,?,?,?,?,?,?)", record)
                except sqlite3.IntegrityError:
                    expected, remedy = "must be new", "Change labels with correct()."
                    raise InvalidInputError("ids", expected, got=f"{record[0]!r} again", remedy=remedy) from None
                self._seal(record[0])
        return [record[0] for record in records]

    def correct(self, ids: Sequence[Any], labels: Any) -> None:
        """Replace the labels of samples, or add late ones."""
        names = plain_ids(ids, len(ids))
        new = plain_labels(labels, len(names))
        with self._transaction():
            self._check_type("label", new, "labels")
            for name, label in zip(names, new, strict=True):
                if not self._read("id = ?", (name,)):
                    raise unknown_id(name)
                self._run("UPDATE samples SET label = ? WHERE id = ?", (label, name))
                self._seal(name)

    def delete(self, ids: Sequence[Any]) -> None:
        """Delete samples; :meth:`vacuum` then removes the last of their bytes from the file."""
        with self._transaction():
            for name in plain_ids(ids, len(ids)):
                if self._run("DELETE FROM samples WHERE id = ?", (name,)) == 0:
                    raise unknown_id(name)

    def vacuum(self) -> None:
        """Rewrite the file, so that it holds no byte of deleted samples and is as small as possible."""
        with self._lock:
            if self.is_in_transaction:
                raise InvalidInputError("vacuum", "must be called outside a transaction")
            self._run("VACUUM")
            if self._number("PRAGMA wal_checkpoint(TRUNCATE)"):
                expected = "must not be read by another process during vacuum"
                raise InvalidInputError("path", expected, got=str(self.path), remedy="Call vacuum again later.")

    def __len__(self) -> int:
        """Return the number of samples, with and without labels."""
        return self._number("SELECT count(*) FROM samples")

    def samples(self, *, labelled: bool = True, version: str | None = None) -> StoredSamples:
        """Return all samples in the order of their arrival; by default those with labels, of any model version.

        With ``labelled=False`` the labels are None if no sample has one, and an array of objects, None where a label is
        missing, if some have.
        """
        return as_samples(self._select(labelled, check_version(version), after=0))

    def chunks(
        self, size: int = CHUNK, *, labelled: bool = True, version: str | None = None
    ) -> Iterator[StoredSamples]:
        """Yield the samples in the order of their arrival, ``size`` at a time; those that arrive meanwhile included."""
        size, version = check_integer(size, "size", minimum=1, maximum=LARGEST_INTEGER), check_version(version)

        def read() -> Iterator[StoredSamples]:
            after = 0
            while records := self._select(labelled, version, after, limit=size):
                after = records[-1][0]
                yield as_samples(records)

        return read()

    def fit(
        self,
        calibrator: Calibrator,
        training: ClassifierOutputs | None = None,
        *,
        classes: Any = None,
        version: str | None = None,
    ) -> Calibrator:
        """Fit a calibrator on the labelled samples and return it; the rest as in :func:`kcal.fit_on`.

        Embeddings of different networks have nothing to do with each other: where the samples are of several model
        versions, or of another than that of this store, it warns. ``version`` chooses the samples of one.
        """
        samples = self.samples(version=version)
        self.warn_of_versions(set(samples.versions.tolist()), version)
        return fit_on(calibrator, samples.outputs, training, classes=classes)

    def follow(
        self,
        calibrator: Calibrator,
        *,
        every: float | None = None,
        classes: Any = None,
        version: str | None = None,
        keep_others: bool = False,
    ) -> Follower:
        """Return a follower whose ``update()`` brings what changed here to a KCal or a KCalBlend.

        With ``every``, ``with store.follow(calibrator, every=60):`` does so from a thread, every so many seconds.
        ``classes`` are those of the first fit, as in ``fit``; ``version`` chooses the samples of one model version.
        With ``keep_others`` samples of the calibrator that were never here stay: the store holds additional ones.
        """
        options: dict[str, Any] = {"classes": classes, "version": check_version(version), "keep_others": keep_others}
        return Follower(self, calibrator, every, **options)

    def warn_of_versions(self, versions: set[str], chosen: str | None = None) -> None:
        """Warn if samples are of several model versions or, unless one was ``chosen``, of another than the store's."""
        expected = {self.version} if self.version and chosen is None else set()
        if len(versions | expected) < 2:
            return
        listed = ", ".join(sorted(map(repr, versions)))
        own = f"; the store was opened for {self.version!r}" if expected else ""
        warn(
            f"The samples are outputs of the model versions {listed}{own}. Outputs of two networks do not compare.",
            KcalWarning,
            remedy="Pass version= to choose one.",
        )

    def contains(self, ids: Sequence[Any]) -> list[bool]:
        """Return for each id whether a sample has it."""
        return [version is not None for version in self.versions_of(ids)]

    def versions_of(self, ids: Sequence[Any]) -> list[str | None]:
        """Return for each id the model version of its sample; None if no sample has it."""
        found = (self._rows("SELECT version FROM samples WHERE id = ?", (name,)) for name in plain_ids(ids, len(ids)))
        return [rows[0][0] if rows else None for rows in found]

    def ids(self) -> list[Any]:
        """Return the ids of all labelled samples, in the order of their arrival."""
        return [name for (name,) in self._rows("SELECT id FROM samples WHERE label IS NOT NULL ORDER BY row")]

    def count_by_version(self) -> dict[str, int]:
        """Return the number of samples of each model version, with and without labels."""
        return dict(self._rows("SELECT version, count(*) FROM samples GROUP BY version"))

    @property
    def last_change(self) -> int:
        """Number of the last change; it grows with every sample that is added, corrected or deleted."""
        return self._number("SELECT coalesce(max(number), 0) FROM changes")

    def changes(
        self, since: int = 0, *, version: str | None = None
    ) -> tuple[StoredSamples | None, NDArray[np.int64], int]:
        """Return what changed after the change number ``since``.

        Returns
        -------
        samples : StoredSamples or None
            Labelled samples that were added or corrected, as they are now, of any or of one model version; None if
            there are none.
        deleted : (n,) array
            Rows of samples that are no longer there.
        last : int
            Number of the last change, for the next call.
        """
        with self._transaction("DEFERRED"):
            last = self.last_change
            rows = [row for (row,) in self._rows("SELECT DISTINCT row FROM changes WHERE number > ?", (since,))]
            changed = "row IN (SELECT row FROM changes WHERE number > ?)"
            records = self._read(f"{changed} ORDER BY row", (since,))
        deleted = np.array(sorted(set(rows) - {record[0] for record in records}), dtype=np.int64)
        labelled = [record for record in records if record[4] is not None and version in (None, record[8])]
        return (as_samples(labelled) if labelled else None), deleted, last

    def __repr__(self) -> str:
        return f"CalibrationStore({str(self.path)!r})"

    def _select(self, labelled: bool, version: str | None, after: int, limit: int = -1) -> list[tuple[Any, ...]]:
        where = "AND label IS NOT NULL" if labelled else ""
        where += "" if version is None else " AND version = ?"
        values = (after, *(() if version is None else (version,)), limit)
        return self._read(f"row > ? {where} ORDER BY row LIMIT ?", values)

    def _records(self, outputs: ClassifierOutputs, times: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the values of the columns from the id on, one record per sample; the id is None if it is not given."""
        if not isinstance(outputs, ClassifierOutputs):
            raise InvalidInputError("outputs", "must be a kcal.ClassifierOutputs", got=shown(outputs))
        matrices = {name: part for name in ("embeddings", "logits") if (part := getattr(outputs, name)) is not None}
        if not matrices:
            raise InvalidInputError("outputs", "must have embeddings or logits", got="neither")
        blobs = {name: matrix_of(part, f"outputs.{name}", logits=name == "logits") for name, part in matrices.items()}
        n_samples = len(next(iter(blobs.values())))
        for name, matrix in blobs.items():
            if len(matrix) != n_samples:
                raise InvalidInputError(f"outputs.{name}", f"must have {n_samples:,} rows", got=f"{len(matrix):,}")
        none = [None] * n_samples
        ids = none if outputs.ids is None else plain_ids(outputs.ids, n_samples)
        labels = none if outputs.labels is None else plain_labels(outputs.labels, n_samples)
        groups: list[Any] = none
        if outputs.groups is not None:
            check_groups(outputs.groups, n_samples)
            groups = np.asarray(outputs.groups).tolist()
        weights = np.ones(n_samples)
        if outputs.weights is not None:
            check_weights(outputs.weights, n_samples)  # scaled there, as given here
            weights = np.asarray(outputs.weights, dtype=np.float64)
        moments = np.full(n_samples, time.time()) if times is None else np.asarray(times, dtype=np.float64)
        if moments.shape != (n_samples,) or not np.isfinite(moments).all():
            raise InvalidInputError("times", f"must be {n_samples:,} finite numbers", got=shown(times))
        for place, name in enumerate(ids):
            rows = [blobs[part][place].tobytes() if part in blobs else None for part in ("embeddings", "logits")]
            values = (labels[place], groups[place], float(weights[place]), float(moments[place]), self.version)
            yield (name, *rows, *values)

    def _check_widths(self, outputs: ClassifierOutputs) -> None:
        """Raise if embeddings or logits have other columns than those in the store."""
        for name, column in (("embeddings", "embedding"), ("logits", "logits")):
            matrix = getattr(outputs, name)
            width = 0 if matrix is None else (*np.shape(matrix), 1)[1]  # logits of two classes may be one number each
            lengths = self._rows(f"SELECT coalesce(length({column}), 0) FROM samples LIMIT 1")
            known = lengths[0][0] // 4 if lengths else width  # single precision
            if width != known:
                expected = f"must have {known:,} columns, as in the store" if known else "must be left out, as before"
                raise InvalidInputError(f"outputs.{name}", expected, got=f"{width:,}" if width else "None")

    def _check_columns(self, records: Sequence[tuple[Any, ...]]) -> None:
        """Raise if ids, labels or groups are of another type than those in the store, or only some have groups."""
        ids, _, _, labels, groups, *_ = zip(*records, strict=True)
        self._check_type("id", ids, "outputs.ids")
        self._check_type("label", labels, "labels")
        known = self._rows('SELECT "group" IS NOT NULL FROM samples LIMIT 1')
        if known and known[0][0] != (groups[0] is not None):
            expected = "must be given, as in the store" if known[0][0] else "must be left out, as in the store"
            raise InvalidInputError("outputs.groups", expected, got="None" if known[0][0] else "groups")
        self._check_type('"group"', groups, "outputs.groups")

    def _check_type(self, column: str, values: Sequence[Any], name: str) -> None:
        """Raise if the values of a column are text in the store and numbers now, or the other way round."""
        new = {isinstance(value, str) for value in values if value is not None}
        known = self._rows(f"SELECT typeof({column}) FROM samples WHERE {column} IS NOT NULL LIMIT 1")
        text = bool(known) and known[0][0] == "text"
        if known and new and new != {text}:
            kinds = ("text", "numbers") if text else ("numbers", "text")
            raise InvalidInputError(name, f"must be {kinds[0]}, as in the store", got=kinds[1])

    def _new_ids(self, n_samples: int) -> list[Any]:
        """Return ids that no sample of the store has, of the type of the others; inside a transaction."""
        largest = self._rows("SELECT max(id) FROM samples")[0][0]
        if largest is None or isinstance(largest, str):
            return [uuid.uuid4().hex for _ in range(n_samples)]
        first = max(int(largest) + 1, 0)
        if first + n_samples - 1 > LARGEST_INTEGER:
            expected = f"must be given, since there are none left above {largest}"
            raise InvalidInputError("outputs.ids", expected)
        return list(range(first, first + n_samples))


def check_version(version: Any) -> str | None:
    """Return a model version, or None for any."""
    if not (version is None or isinstance(version, str)):
        raise InvalidInputError("version", "must be text", got=shown(version))
    return version


def unknown_id(name: Any) -> InvalidInputError:
    """Return the error for an id that no sample has."""
    return InvalidInputError("ids", "must be ids of samples in the store", got=repr(name))
