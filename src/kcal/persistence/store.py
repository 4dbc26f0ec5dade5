"""A durable store of labelled samples in one SQLite file: what a calibrator is fitted on, and kept in sync with.

    samples   row, id, embedding, logits, label, group, weight, time, model version, checksum
    changes   number, row: every sample that was added, corrected or deleted, in order
    totals    sum of the checksums, number and sum of the changes

A call that changes the store returns when the change is on disk (write-ahead log, ``synchronous=FULL``); a process that
is killed leaves all of it or nothing. Several processes may use one store. A file that is not as it was written raises
at opening: every sample has a checksum of all that a reader gets of it, and the totals have the sum of these checksums
modulo 2**62, which a lost, added or replaced sample changes. Triggers keep the totals at constant cost per change.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators import Calibrator, fit_on, online_ids, online_samples, online_state, update_on, was_fitted_on
from kcal.embeddings import ClassifierOutputs
from kcal.errors import FileFormatError, InvalidInputError, KcalError, KcalWarning, warn
from kcal.files import check_path
from kcal.validation import (
    check_group_names,
    check_ids,
    check_integer,
    check_labels,
    check_matrix,
    check_nonnegative,
    check_weights,
    shown,
    to_array,
    to_numbers,
)

FORMAT = 2
APPLICATION = 0x6B63616C  # "kcal"
BUSY_SECONDS = 30.0
"""How long a call waits for another process that writes."""
MAX_INTEGER = 2**63 - 1
MODULUS = 2**62
"""Of checksums and their sum: SQLite's integers are below 2**63."""
COLUMNS = 'row, id, embedding, logits, label, "group", weight, time, version'
SCHEMA = (
    """CREATE TABLE samples (
    row INTEGER PRIMARY KEY AUTOINCREMENT,
    id NOT NULL UNIQUE,
    embedding BLOB,
    logits BLOB,
    label,
    "group",
    weight REAL NOT NULL,
    time REAL NOT NULL,
    version TEXT NOT NULL,
    checksum INTEGER NOT NULL DEFAULT 0
)""",
    "CREATE TABLE changes (number INTEGER PRIMARY KEY AUTOINCREMENT, row INTEGER NOT NULL)",
    "CREATE TABLE totals (samples INTEGER NOT NULL, n_changes INTEGER NOT NULL, changes INTEGER NOT NULL)",
    f"""CREATE TRIGGER sealed AFTER UPDATE OF checksum ON samples BEGIN
    INSERT INTO changes (row) VALUES (new.row);
    UPDATE totals SET samples = (samples - old.checksum + new.checksum) & {MODULUS - 1};
END""",
    f"""CREATE TRIGGER deleted AFTER DELETE ON samples BEGIN
    INSERT INTO changes (row) VALUES (old.row);
    UPDATE totals SET samples = (samples - old.checksum) & {MODULUS - 1};
END""",
    """CREATE TRIGGER logged AFTER INSERT ON changes BEGIN
    UPDATE totals SET n_changes = n_changes + 1, changes = changes + new.row;
END""",
)

Record = tuple[Any, ...]
"""Values of ``COLUMNS``, in their order."""


class StoreBusyError(KcalError, TimeoutError):
    """Raise if another process held the store for longer than a call waits."""


class Changes(NamedTuple):
    """What changed in a store: labelled samples with their rows and model versions, rows that were deleted."""

    samples: ClassifierOutputs | None
    """Samples that were added or corrected, as they are now; None if nothing changed."""
    rows: NDArray[np.int64]
    versions: set[str]
    deleted: set[int]
    last: int
    """Number of the last change, for the next call."""


class CalibrationStore:
    """A durable home of labelled samples in one file, for several threads and processes.

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
        self.version = _check_version(version) or ""
        self.path = check_path(path)
        if self.path.name == ":memory:" or str(self.path).startswith("file:"):
            raise InvalidInputError("path", "must be the name of a file on disk", got=str(self.path))
        self._lock, self._is_closed = threading.RLock(), False
        if not self.path.exists():
            self._create()
        elif self.path.is_file() and self.path.stat().st_size == 0:  # SQLite would take it for a new database
            raise self._damaged("it is empty")
        options: dict[str, Any] = {"timeout": BUSY_SECONDS, "isolation_level": None, "check_same_thread": False}
        with self._own_errors():
            self._database = sqlite3.connect(self.path, **options)
        try:
            with suppress(StoreBusyError):  # a new store has it; another process may be about to switch
                self._rows("PRAGMA journal_mode = WAL")
            self._rows("PRAGMA synchronous = FULL")
            self._rows("PRAGMA secure_delete = ON")
            with self.transaction("DEFERRED"):
                self._check_format()
                self._check_integrity()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------ changes

    @contextmanager
    def transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """Make several changes together: all of them if the context ends, none if it raises.

        Other threads and processes see the changes, and they are on disk, when the context has ended. Inside another
        transaction, it is a part of it. ``kind`` is that of SQLite: "DEFERRED" for reading alone.

        Examples
        --------
        >>> import kcal
        >>> sample = kcal.ClassifierOutputs([[0.1, 0.2]], labels=["artefact"], ids=["eeg-18"])
        >>> with kcal.CalibrationStore("eeg.db") as store, store.transaction():
        ...     ids = store.append(sample)
        ...     store.correct(ids, ["seizure"])
        """
        with self._lock:
            is_part = self._in_transaction
            self._rows("SAVEPOINT part" if is_part else f"BEGIN {kind}")
            try:
                yield
                self._rows("RELEASE part" if is_part else "COMMIT")
            except BaseException:
                if self._in_transaction:  # SQLite may have rolled back by itself
                    for statement in ("ROLLBACK TO part", "RELEASE part") if is_part else ("ROLLBACK",):
                        self._rows(statement)
                raise

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
        columns = _columns_of(outputs, times)
        with self.transaction():
            ids = self._new_ids(len(columns[0])) if outputs.ids is None else _plain_ids(outputs.ids, len(columns[0]))
            records = [(*values, self.version) for values in zip(ids, *columns, strict=True)]
            self._check_kinds(records[0])
            for record, known in zip(records, self.contains(ids), strict=True):
                if known:
                    remedy = "Change labels with correct()."
                    raise InvalidInputError("ids", "must be new", got=f"{record[0]!r} again", remedy=remedy)
                self._rows(f"INSERT INTO samples ({COLUMNS.removeprefix('row, ')}) VALUES (?,?,?,?,?,?,?,?)", record)
                self._seal(record[0])
        return ids

    def correct(self, ids: Sequence[Any], labels: Any) -> None:
        """Replace the labels of samples, or add late ones."""
        names = _plain_ids(ids)
        new = _plain_labels(labels, len(names))
        with self.transaction():
            for label in new[:1]:
                self._check_label(label)
            for name, label in zip(names, new, strict=True):
                if not self._read("id = ?", (name,)):
                    raise _unknown_id(name)
                self._rows("UPDATE samples SET label = ? WHERE id = ?", (label, name))
                self._seal(name)

    def delete(self, ids: Sequence[Any]) -> None:
        """Delete samples; :meth:`vacuum` then removes the last of their bytes from the file."""
        with self.transaction():
            for name, known in zip(_plain_ids(ids), self.contains(ids), strict=True):
                if not known:
                    raise _unknown_id(name)
                self._rows("DELETE FROM samples WHERE id = ?", (name,))

    def vacuum(self) -> None:
        """Rewrite the file: it then holds no byte of deleted samples and is as small as possible."""
        with self._lock:
            if self._in_transaction:
                raise InvalidInputError("vacuum", "must be called outside a transaction")
            self._rows("VACUUM")
            if self._number("PRAGMA wal_checkpoint(TRUNCATE)"):
                expected = "must not be read by another process during vacuum"
                raise InvalidInputError("path", expected, got=str(self.path), remedy="Call vacuum again later.")

    # ------------------------------------------------------------ reading

    def __len__(self) -> int:
        """Return the number of samples, with and without labels."""
        return self._number("SELECT count(*) FROM samples")

    def samples(self, *, labelled: bool = True, version: str | None = None) -> ClassifierOutputs:
        """Return all samples in the order of their arrival; by default those with labels, of any model version.

        With ``labelled=False`` the labels are None if no sample has one, and an array of objects, None where a label is
        missing, if some have.
        """
        return _as_outputs(self._select(labelled, version))

    def contains(self, ids: Sequence[Any]) -> list[bool]:
        """Return for each id whether a sample has it."""
        return [version is not None for version in self.versions_of(ids)]

    def versions_of(self, ids: Sequence[Any]) -> list[str | None]:
        """Return for each id the model version of its sample; None if no sample has it."""
        found = (self._rows("SELECT version FROM samples WHERE id = ?", (name,)) for name in _plain_ids(ids))
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

    def changes(self, since: int = 0, *, version: str | None = None) -> Changes:
        """Return what changed after the change number ``since``, of any or of one model version."""
        since = check_integer(since, "since", minimum=0, maximum=MAX_INTEGER)
        changed = "SELECT DISTINCT row FROM changes WHERE number > ?"
        with self.transaction("DEFERRED"):
            last = self.last_change
            rows = {row for (row,) in self._rows(changed, (since,))}
            records = self._read(f"row IN ({changed}) ORDER BY row", (since,))
        labelled = [record for record in records if record[4] is not None and version in (None, record[8])]
        samples, places = (
            _as_outputs(labelled) if labelled else None,
            np.array([r[0] for r in labelled], dtype=np.int64),
        )
        deleted = rows - {record[0] for record in records}
        return Changes(samples, places, {record[8] for record in labelled}, deleted, last)

    # ------------------------------------------------------------ calibrators

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
        records = self._select(True, version)
        self.warn_versions({record[8] for record in records}, version)
        return fit_on(calibrator, _as_outputs(records), training, classes=classes)

    def follow(
        self,
        calibrator: Calibrator,
        *,
        classes: Any = None,
        version: str | None = None,
        keep_others: bool = False,
    ) -> StoreSync:
        """Return an object whose ``update()`` brings what changed here to a KCal or a KCalBlend.

        Predictions go on while another thread calls it. ``classes`` are those of the first fit, as in ``fit``;
        ``version`` chooses the samples of one model version. With ``keep_others`` samples of the calibrator that were
        never here stay: the store holds additional ones.
        """
        return StoreSync(self, calibrator, classes=classes, version=version, keep_others=keep_others)

    def warn_versions(self, versions: set[str], chosen: str | None = None) -> None:
        """Warn if samples are of several model versions or, unless one was ``chosen``, of another than the store's."""
        expected = {self.version} if self.version and chosen is None else set()
        if len(versions | expected) < 2:
            return
        listed = ", ".join(sorted(map(repr, versions)))
        own = f"; the store was opened for {self.version!r}" if expected else ""
        message = f"The samples are outputs of the model versions {listed}{own}."
        warn(f"{message} Outputs of two networks do not compare.", KcalWarning, remedy="Pass version= to choose one.")

    # ------------------------------------------------------------ the file

    def close(self) -> None:
        """Close the file; a store that is closed stays so."""
        with self._lock:
            self._is_closed = True
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"CalibrationStore({str(self.path)!r})"

    def _create(self) -> None:
        """Make an empty store under another name and link it, whole, to its own, unless another process was faster."""
        target = Path(os.path.realpath(self.path))
        temporary = target.with_name(f".{secrets.token_hex(8)}.db")
        try:
            with self._own_errors(), closing(sqlite3.connect(temporary)) as database:
                own = (f"PRAGMA application_id = {APPLICATION}", f"PRAGMA user_version = {FORMAT}")
                database.executescript(";".join((*SCHEMA, "INSERT INTO totals VALUES (0, 0, 0)", *own)))
                database.execute("PRAGMA journal_mode = WAL")
            with suppress(FileExistsError):
                os.link(temporary, target)
        except OSError as error:
            raise self._unusable(error) from error
        finally:
            temporary.unlink(missing_ok=True)

    def _check_format(self) -> None:
        """Raise if the file is a database, but not a store in the format of this version."""
        application, found = (self._number(f"PRAGMA {name}") for name in ("application_id", "user_version"))
        if application != APPLICATION:
            raise FileFormatError(f"{self.path} is a database, but not a calibration store.")
        if found != FORMAT:
            remedy = "Upgrade kcal." if found > FORMAT else "Append its samples to a new store."
            raise FileFormatError(f"{self.path} has the format {found}; this kcal reads {FORMAT}. {remedy}")

    def _check_integrity(self) -> None:
        """Raise if the file is not as it was written: pages, indexes, tables, samples and changes."""
        problem = self._rows("PRAGMA integrity_check(1)")[0][0]
        if problem != "ok":
            raise self._damaged(problem)
        if not set(SCHEMA) <= {statement for (statement,) in self._rows("SELECT sql FROM sqlite_master")}:
            raise self._damaged("its tables or triggers are not those of a store")
        total = 0
        for record in self._each(f"SELECT {COLUMNS}, checksum FROM samples"):
            self._check_record(record)
            total = (total + record[-1]) % MODULUS
        n_changes, last, changes = self._rows(
            "SELECT count(*), coalesce(max(number), 0), coalesce(sum(row), 0) FROM changes"
        )[0]
        if last != n_changes or self._rows("SELECT * FROM totals") != [(total, n_changes, changes)]:
            raise self._damaged("samples or changes are missing")

    def _check_record(self, record: Record) -> None:
        """Raise if a record, which ends with its checksum, is not as it was written."""
        if _checksum(record[:-1]) != record[-1]:
            raise self._damaged(f"the checksum of the sample in row {record[0]} does not match")

    def _seal(self, name: Any) -> None:
        """Store the checksum of a sample that was added or changed, as it reads now; the change is logged."""
        record = self._rows(f"SELECT {COLUMNS} FROM samples WHERE id = ?", (name,))[0]
        self._rows("UPDATE samples SET checksum = ? WHERE row = ?", (_checksum(record), record[0]))

    def _read(self, condition: str, values: Sequence[Any] = ()) -> list[Record]:
        """Return the records of samples that fulfil a condition, checked and without their checksums."""
        records = self._rows(f"SELECT {COLUMNS}, checksum FROM samples WHERE {condition}", values)
        for record in records:
            self._check_record(record)
        return [record[:-1] for record in records]

    def _select(self, labelled: bool, version: str | None) -> list[Record]:
        conditions = "(? IS NULL OR version = ?)" + (" AND label IS NOT NULL" if labelled else "")
        return self._read(f"{conditions} ORDER BY row", [_check_version(version)] * 2)

    def _check_kinds(self, new: Record) -> None:
        """Raise if the first of new samples has other columns, or of another kind, than those of the store."""
        names = ("ids", "embeddings", "logits", "labels", "groups")
        for known in self._rows('SELECT id, embedding, logits, NULL, "group" FROM samples LIMIT 1'):
            for name, old, value in zip(names, known, new[:5], strict=True):
                if _kind(old) != _kind(value) and name != "labels":
                    raise InvalidInputError(
                        f"outputs.{name}", f"must be {_kind(old)}, as in the store", got=_kind(value)
                    )
        self._check_label(new[3])

    def _check_label(self, label: Any) -> None:
        """Raise if labels, of which this is the first, are text in the store and numbers now, or the other way."""
        for (known,) in self._rows("SELECT label FROM samples WHERE label IS NOT NULL LIMIT 1"):
            if label is not None and _kind(known) != _kind(label):
                raise InvalidInputError("labels", f"must be {_kind(known)}, as in the store", got=_kind(label))

    def _new_ids(self, n_samples: int) -> list[Any]:
        """Return ids that no sample of the store has, of the type of the others; inside a transaction."""
        largest = self._rows("SELECT max(id) FROM samples")[0][0]
        if largest is None or isinstance(largest, str):
            return [uuid.uuid4().hex for _ in range(n_samples)]
        first = max(int(largest) + 1, 0)
        return list(range(first, first + n_samples))

    def _each(self, query: str, values: Sequence[Any] = ()) -> Iterator[Record]:
        """Yield the rows of a statement. While it is open, another process's writes are not seen."""
        with self._lock, self._own_errors():
            yield from self._database.execute(query, values)

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Record]:
        """Run a statement and return all of its rows, read before another thread may use the connection."""
        return list(self._each(query, values))

    def _number(self, query: str) -> int:
        return int(self._rows(query)[0][0])

    @property
    def _in_transaction(self) -> bool:
        return not self._is_closed and self._database.in_transaction

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Turn errors of SQLite into those of kcal."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # a message may hold a part of a damaged file
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if self._is_closed:
                raise InvalidInputError("store", "is closed", remedy="Open it again.") from error
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise StoreBusyError(f"Another process holds the store {self.path}. Try again later.") from error
            if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
                raise self._unusable(error) from error
            raise self._damaged(f"it is not a calibration store, or was changed ({error})") from error

    def _damaged(self, what: str) -> FileFormatError:
        remedy = "Restore it from a backup, or delete it and append the samples to a new store."
        return FileFormatError(f"{self.path} is damaged: {what}. {remedy}")

    def _unusable(self, error: Exception) -> InvalidInputError:
        expected = "must be a file that can be written, in a folder in which files can be made"
        return InvalidInputError("path", expected, got=f"{self.path} ({error})")


def _checksum(record: Record) -> int:
    """Return the checksum of a sample, a number below 2**62: of the values of all columns, and of their types."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(repr([len(value) if isinstance(value, bytes) else value for value in record]).encode())
    for value in record:
        if isinstance(value, bytes):
            digest.update(value)
    return int.from_bytes(digest.digest(), "big") % MODULUS


def _kind(value: Any) -> str:
    """Return what the values of a column are, by one of them."""
    if value is None:
        return "left out"
    if isinstance(value, bytes):
        return f"matrices of {len(value) // 4:,} columns"  # single precision
    return "text" if isinstance(value, str) else "numbers"


def _columns_of(outputs: ClassifierOutputs, times: Any) -> list[list[Any]]:
    """Return the values of the columns of new samples, from the embedding to the time."""
    if not isinstance(outputs, ClassifierOutputs):
        raise InvalidInputError("outputs", "must be a kcal.ClassifierOutputs", got=shown(outputs))
    matrices = {name: _blobs(getattr(outputs, name), name) for name in ("embeddings", "logits")}
    given = {name: blobs for name, blobs in matrices.items() if blobs is not None}
    if not given:
        raise InvalidInputError("outputs", "must have embeddings or logits", got="neither")
    n_samples = len(next(iter(given.values())))
    for name, blobs in given.items():
        if len(blobs) != n_samples:
            raise InvalidInputError(f"outputs.{name}", f"must have {n_samples:,} rows", got=f"{len(blobs):,}")
    none = [None] * n_samples
    labels, groups, weights = outputs.labels, outputs.groups, outputs.weights
    if weights is not None:
        check_weights(weights, n_samples)  # scaled there, as given here
    moments = np.full(n_samples, time.time()) if times is None else to_numbers(times, "times").astype(np.float64)
    if moments.shape != (n_samples,) or not np.isfinite(moments).all():
        raise InvalidInputError("times", f"must be {n_samples:,} finite numbers", got=shown(times))
    return [
        *(none if blobs is None else blobs for blobs in matrices.values()),
        none if labels is None else _plain_labels(labels, n_samples),
        none if groups is None else _check_integers(check_group_names(groups, n_samples).tolist(), "outputs.groups"),
        [1.0] * n_samples if weights is None else check_nonnegative(weights, n_samples, "sample_weight").tolist(),
        moments.tolist(),
    ]


def _blobs(matrix: Any, name: str) -> list[bytes] | None:
    """Return the rows of a matrix as they are stored: in single precision, little endian."""
    if matrix is None:
        return None
    checked = check_matrix(matrix, f"outputs.{name}", logits=name == "logits").cpu().float().numpy()
    return [row.astype("<f4").tobytes() for row in checked]


def _matrix(blobs: Sequence[bytes | None]) -> NDArray[np.float32] | None:
    present = [blob for blob in blobs if blob is not None]
    if len(present) < len(blobs):
        return None
    return np.frombuffer(b"".join(present), dtype="<f4").reshape(len(present), -1).astype(np.float32)


def _as_outputs(records: Sequence[Record]) -> ClassifierOutputs:
    """Return records as arrays; labels are objects if some are missing, and None if all are."""
    if not records:
        raise InvalidInputError("store", "must hold samples with labels", got="none")
    _, ids, embeddings, logits, labels, groups, weights, *_ = zip(*records, strict=True)
    missing = labels.count(None)
    return ClassifierOutputs(
        embeddings=_matrix(embeddings),
        logits=_matrix(logits),
        labels=None if missing == len(labels) else np.array(labels, dtype=object if missing else None),
        groups=None if groups[0] is None else np.array(groups),
        weights=None if set(weights) == {1.0} else np.array(weights),
        ids=np.array(ids),
    )


def _plain_ids(ids: Any, n_samples: int | None = None) -> list[Any]:
    """Return ids as Python's text or integers, which SQLite can hold; by default any number of them."""
    array = to_array(ids, "ids")
    checked = check_ids(array, array.size if n_samples is None else n_samples)
    names = checked.tolist() if checked.dtype.kind == "U" else [int(name) for name in checked.tolist()]
    for given, name in zip(checked.tolist(), names, strict=True):
        if given != name:
            raise InvalidInputError("ids", "must be text or integers below 2**63", got=str(given))
    return _check_integers(names, "ids")


def _check_integers(values: list[Any], name: str) -> list[Any]:
    """Return values; raise if an integer is too large for SQLite."""
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise InvalidInputError(name, "must be text or numbers below 2**63", got=str(value))
    return values


def _plain_labels(labels: Any, n_samples: int) -> list[Any]:
    """Return labels as Python's text or numbers; booleans become 0 and 1."""
    checked = check_labels(labels, n_samples, "labels")
    plain: list[Any] = (checked.astype(np.int64) if checked.dtype.kind == "b" else checked).tolist()
    return _check_integers(plain, "labels")


def _check_version(version: Any) -> str | None:
    """Return a model version, or None for any."""
    if not (version is None or isinstance(version, str)):
        raise InvalidInputError("version", "must be text", got=shown(version))
    return version


def _unknown_id(name: Any) -> InvalidInputError:
    return InvalidInputError("ids", "must be ids of samples in the store", got=repr(name))


class StoreSync:
    """Keeps the samples of a calibrator those of a store; made by :meth:`CalibrationStore.follow`.

    A sample of the calibrator is known by its id and by the row of the store that it came from: an id that was deleted
    and appended again is another sample. A sample that is not in the store is forgotten. A deletion thus reaches the
    calibrator although the store keeps nothing of what was deleted, not even its id. With ``keep_others`` a sample that
    was never in the store stays; one that was deleted before the first update cannot be told from it.

    The calibrator is unfitted, or was fitted with ids of the store: saved and loaded again, it goes on. Then samples
    whose embeddings and labels it has are left as they are. If its ``updates`` limit the samples that it keeps, those
    that came to the store before the oldest that it has count as evicted, and do not return.
    """

    def __init__(
        self,
        store: CalibrationStore,
        calibrator: Calibrator,
        *,
        classes: Any = None,
        version: str | None = None,
        keep_others: bool = False,
    ) -> None:
        if not (isinstance(calibrator, Calibrator) and calibrator.tags.learns_online):
            expected = "must be one that learns online: KCal or KCalBlend"
            raise InvalidInputError("calibrator", expected, got=shown(calibrator))
        self.calibrator: Any = calibrator
        self.store, self.keep_others = store, keep_others
        self.classes, self.version = classes, _check_version(version)
        self.since = 0
        """Number of the last change of the store that the calibrator has seen."""
        self._versions: set[str] = set()  # of the samples so far
        self._rows: dict[Any, int] = {}  # of the samples that the calibrator has, or had and evicted
        self._check_calibrator()

    def update(self, *, search: bool = True) -> int:
        """Apply what changed in the store since the last call; return the number of samples that changed.

        An unfitted calibrator is fitted as soon as there are labelled samples. Predictions follow at once; then a
        search (of a blend: a fit) is made if it is due or, without ``search``, left for ``calibrator.refresh()``.
        """
        self._check_calibrator()
        changes = self.store.changes(self.since, version=self.version)
        if not changes.versions <= self._versions:
            self._versions |= changes.versions
            self.store.warn_versions(self._versions, self.version)
        unchanged = self._adopt(changes) if self.since == 0 else set()
        erased = {name for name, row in self._rows.items() if row in changes.deleted}
        self._rows = {name: row for name, row in self._rows.items() if name not in erased}
        own = self._own_ids()
        gone = own & erased if self.keep_others else own - self._rows.keys()
        is_majority = 2 * len(gone) > len(own)
        if (gone or erased) and not is_majority:
            self._forget(gone)
        taken = self._take(changes, unchanged)
        if is_majority:  # afterwards: predictions never lack samples
            self._forget(gone - taken)
        self.since = changes.last
        if self._is_fitted:
            with suppress(KcalError):  # too few samples may be left: then predictions raise
                self.calibrator.refresh(search=False)  # no reader has to, nor waits for a search
                self.calibrator.refresh(search=search)
        return len(gone | taken)

    def _check_calibrator(self) -> None:
        """Raise if the calibrator is fitted and cannot be updated, or if its samples are not of the store."""
        if not self._is_fitted:
            return
        state = online_state(self.calibrator)  # raises if the samples cannot be updated
        if self.since == 0 and not state.has_own_ids:
            expected = "must be unfitted, or fitted with ids of the store"
            remedy = "Fit it with store.fit(calibrator), or pass ids= to fit."
            raise InvalidInputError("calibrator", expected, got="one that was fitted without ids", remedy=remedy)

    def _adopt(self, changes: Changes) -> set[Any]:
        """Find the rows of the samples that a fitted calibrator has; return the ids of those with the same labels."""
        self._rows = {}
        samples = changes.samples
        if samples is None or not self._is_fitted:
            return set()
        own: Any = online_samples(self.calibrator)
        labels = dict(zip(own.ids.tolist(), own.labels.tolist(), strict=True))
        names = samples.ids.tolist()
        is_known = np.array([name in labels for name in names])
        same = is_known & was_fitted_on(self.calibrator, samples.matrix(self.calibrator.inputs))
        kept = same | (self._evicted(changes.rows, samples.labels, same) & ~is_known)
        self._rows = {name: row for name, row, keep in zip(names, changes.rows.tolist(), kept, strict=True) if keep}
        given = zip(names, samples.labels.tolist(), strict=True)
        return {name for name, label in given if name in labels and labels[name] == label}

    def _evicted(self, rows: NDArray[np.int64], labels: NDArray[Any], same: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which samples are older than the oldest that the calibrator has, of all or of their class."""
        options, evicted = self.calibrator.updates, np.zeros(len(rows), dtype=np.bool_)
        if options is None or not same.any():
            return evicted
        if options.max_samples < inf:
            evicted |= rows < rows[same].min()
        if options.max_per_class is not None:
            for label in np.unique(labels[same]):
                of_class = labels == label
                evicted |= of_class & (rows < rows[of_class & same].min())
        return evicted

    def _own_ids(self) -> set[Any]:
        """Return the ids of the samples that the calibrator has."""
        return set(online_ids(self.calibrator)) if self._is_fitted else set()

    def _forget(self, gone: set[Any]) -> None:
        """Forget samples, and every trace of those that were evicted or replaced."""
        if self._is_fitted:
            self.calibrator.forget(list(gone & self._own_ids()))

    def _take(self, changes: Changes, unchanged: set[Any]) -> set[Any]:
        """Add samples of new rows, and correct the labels of known ones; return the ids of both."""
        samples = changes.samples
        if samples is None:
            return set()
        names, rows = samples.ids.tolist(), changes.rows.tolist()
        known = self._own_ids()
        is_new = np.array([self._rows.get(name) != row for name, row in zip(names, rows, strict=True)])
        corrected = ~is_new & np.array([name in known and name not in unchanged for name in names])
        if corrected.any():
            chosen = samples.select(corrected)
            self.calibrator.correct(chosen.ids, chosen.labels)
        if is_new.any():
            update_on(self.calibrator, samples.select(is_new), classes=self.classes)
            online_state(self.calibrator)  # raises if the fit left no samples that can be updated
            self._rows |= {name: row for name, row, new in zip(names, rows, is_new, strict=True) if new}
        return {name for name, changed in zip(names, is_new | corrected, strict=True) if changed}

    @property
    def _is_fitted(self) -> bool:
        return bool(self.calibrator.__sklearn_is_fitted__())
