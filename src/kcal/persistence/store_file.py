"""The SQLite file of a calibration store: its tables, checksums, transactions, and errors in the words of kcal.

Every sample has a checksum of all that a reader gets of it. The table of totals has the sum of these checksums modulo
2**62, which a lost, added or replaced sample changes, and the number and the sum of the entries of the log of changes.
Triggers keep the totals at constant cost per change. They depend on the samples that are there, not on erased ones.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from kcal.errors import FileFormatError, InvalidInputError, KcalError
from kcal.files import check_path, write_whole

FORMAT = 2
APPLICATION = 0x6B63616C  # "kcal"
BUSY_SECONDS = 30.0
"""How long a call waits for another process that writes."""
COLUMNS = 'row, id, embedding, logits, label, "group", weight, time, version'
MODULUS = 2**62
"""Of checksums and their sum: SQLite's integers are below 2**63."""
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


class StoreBusyError(KcalError, TimeoutError):
    """Raise if another process held the store for longer than a call waits."""


class StoreFile:
    """A file that several threads and processes may use; what it reports as done is on disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = check_path(path)
        self._lock, self._is_closed = threading.RLock(), False
        if str(self.path) == ":memory:" or str(self.path).startswith("file:"):
            remedy = "SQLite would keep the samples in memory or elsewhere."
            raise InvalidInputError("path", "must be the name of a file on disk", got=str(self.path), remedy=remedy)
        if not self.path.parent.is_dir():
            raise InvalidInputError("path", "must lie in an existing folder", got=str(self.path))
        with self._translated():
            if not self.path.exists():
                self._create()
            elif self.path.is_file() and self.path.stat().st_size == 0:  # SQLite would take it for a new database
                raise self._damaged("it is empty")
            self._database = sqlite3.connect(
                self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        try:
            self._begin_write_ahead_log()
            self._run("PRAGMA synchronous = FULL")
            self._run("PRAGMA secure_delete = ON")
            with self._transaction("DEFERRED"):
                self._check_format()
                self._check_integrity()
        except BaseException:
            self.close()
            raise

    def _create(self) -> None:
        """Make an empty store under another name and link it, whole, to its own, unless another process was faster."""
        with closing(sqlite3.connect(":memory:")) as database:
            for statement in SCHEMA:
                database.execute(statement)
            database.execute("INSERT INTO totals VALUES (0, 0, 0)")
            database.commit()
            database.execute(f"PRAGMA application_id = {APPLICATION}")
            database.execute(f"PRAGMA user_version = {FORMAT}")
            content = database.serialize()
        target = Path(os.path.realpath(self.path))
        temporary = target.with_name(f".{secrets.token_hex(8)}.db")
        try:
            write_whole(temporary, content)
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
        if found < FORMAT:
            raise FileFormatError(
                f"{self.path} has the format {found} of an earlier version of kcal, without checksums; this one reads "
                f"{FORMAT}. Read its samples with that version and append them to a new store."
            )
        if found > FORMAT:
            raise FileFormatError(f"{self.path} has the format {found}; this kcal reads {FORMAT}. Upgrade kcal.")

    def _check_integrity(self) -> None:
        """Raise if the file is not as it was written: pages, indexes, tables, samples and changes."""
        problem = self._rows("PRAGMA integrity_check(1)")[0][0]
        if problem != "ok":
            raise self._damaged(problem)
        if not set(SCHEMA) <= {statement for (statement,) in self._rows("SELECT sql FROM sqlite_master")}:
            raise self._damaged("its tables or triggers are not those of a store")
        total = 0
        with self._translated():
            for record in self._database.execute(f"SELECT {COLUMNS}, checksum FROM samples"):
                self._check_record(record)
                total = (total + record[-1]) % MODULUS
        n_changes, last, changes = self._rows(
            "SELECT count(*), coalesce(max(number), 0), coalesce(sum(row), 0) FROM changes"
        )[0]
        if last != n_changes or self._rows("SELECT * FROM totals") != [(total, n_changes, changes)]:
            raise self._damaged("samples or changes are missing")

    def _check_record(self, record: Sequence[Any]) -> None:
        """Raise if a record of the table of samples, which ends with its checksum, is not as it was written."""
        if checksum(record[:-1]) != record[-1]:
            raise self._damaged(f"the checksum of the sample in row {record[0]} does not match")

    def _read(self, condition: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the records of samples that fulfil a condition, checked and without their checksums."""
        records = self._rows(f"SELECT {COLUMNS}, checksum FROM samples WHERE {condition}", values)
        for record in records:
            self._check_record(record)
        return [record[:-1] for record in records]

    def _seal(self, name: Any) -> None:
        """Store the checksum of a sample that was added or changed, as it reads now; the change is logged."""
        record = self._rows(f"SELECT {COLUMNS} FROM samples WHERE id = ?", (name,))[0]
        self._run("UPDATE samples SET checksum = ? WHERE row = ?", (checksum(record), record[0]))

    def _damaged(self, what: str) -> FileFormatError:
        remedy = "Restore it from a backup, or delete it and append the samples to a new store."
        return FileFormatError(f"{self.path} is damaged: {what}. {remedy}")

    def _unusable(self, error: Exception) -> InvalidInputError:
        expected = "must be a file that can be written, in a folder in which files can be made"
        return InvalidInputError("path", expected, got=f"{self.path} ({error})")

    def _begin_write_ahead_log(self) -> None:
        """Switch to the write-ahead log; SQLite does not wait by itself where two processes create one file."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                with self._translated():
                    self._database.execute("PRAGMA journal_mode = WAL")
                return
            except StoreBusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn errors of SQLite into those of kcal, but for that of an id that is there already."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except (sqlite3.Error, UnicodeDecodeError) as error:  # a message may hold a part of a damaged file
            if self._is_closed:
                raise InvalidInputError("store", "is closed", remedy="Open it again.") from error
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise StoreBusyError(f"Another process holds the store {self.path}. Try again later.") from error
            if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
                raise self._unusable(error) from error
            if code == sqlite3.SQLITE_CORRUPT:
                raise self._damaged(str(error)) from error
            raise FileFormatError(f"{self.path} is not a calibration store, or cannot be used ({error}).") from error

    def close(self) -> None:
        """Close the file; a store that is closed stays so."""
        with self._lock:
            self._is_closed = True
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement and return the number of rows that it changed."""
        with self._lock, self._translated():
            return self._database.execute(statement, values).rowcount

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query, read before another thread may use the connection.

        A query that is still open holds the state of the file that it began with, and no transaction can begin on it
        once another process has written.
        """
        with self._lock, self._translated():
            return self._database.execute(query, values).fetchall()

    def _number(self, query: str) -> int:
        return int(self._rows(query)[0][0])

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction has begun on this connection."""
        with self._lock, self._translated():
            return self._database.in_transaction

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """Do all or nothing, alone among writers; inside another transaction, as a part of it."""
        with self._lock:
            is_part = self.is_in_transaction
            self._run("SAVEPOINT part" if is_part else f"BEGIN {kind}")
            try:
                yield
                self._run("RELEASE part" if is_part else "COMMIT")
            except BaseException:
                if not self._is_closed and self._database.in_transaction:  # SQLite may have rolled back by itself
                    self._run("ROLLBACK TO part" if is_part else "ROLLBACK")
                    if is_part:
                        self._run("RELEASE part")
                raise


def checksum(record: Sequence[Any]) -> int:
    """Return the checksum of a sample, a number below 2**62: of the values of all columns, and of their types."""
    blobs = [value for value in record if isinstance(value, bytes)]
    digest = hashlib.blake2b(digest_size=8)
    digest.update(repr([len(value) if isinstance(value, bytes) else value for value in record]).encode())
    for blob in blobs:
        digest.update(blob)
    return int.from_bytes(digest.digest(), "big") % MODULUS
