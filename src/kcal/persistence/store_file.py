"""The SQLite file of a calibration store: its tables, transactions, and errors in the words of kcal."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from kcal.errors import FileFormatError, InvalidInputError, KcalError
from kcal.files import check_path

FORMAT = 1
APPLICATION = 0x6B63616C  # "kcal"
BUSY_SECONDS = 30.0
"""How long a call waits for another process that writes."""
SCHEMA = """
CREATE TABLE samples (
    row INTEGER PRIMARY KEY AUTOINCREMENT,
    id NOT NULL UNIQUE,
    embedding BLOB,
    logits BLOB,
    label,
    "group",
    weight REAL NOT NULL,
    time REAL NOT NULL,
    version TEXT NOT NULL
);
CREATE TABLE changes (number INTEGER PRIMARY KEY AUTOINCREMENT, row INTEGER NOT NULL);
CREATE TABLE widths (name TEXT PRIMARY KEY, width INTEGER NOT NULL);
CREATE TRIGGER added AFTER INSERT ON samples BEGIN INSERT INTO changes (row) VALUES (new.row); END;
CREATE TRIGGER corrected AFTER UPDATE ON samples BEGIN INSERT INTO changes (row) VALUES (new.row); END;
CREATE TRIGGER deleted AFTER DELETE ON samples BEGIN INSERT INTO changes (row) VALUES (old.row); END;
"""


class StoreBusyError(KcalError, TimeoutError):
    """Raise if another process held the store for longer than a call waits."""


class StoreFile:
    """A file that several threads and processes may use; what it reports as done is on disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = check_path(path)
        self._lock, self._is_closed = threading.RLock(), False
        if not self.path.parent.is_dir():
            raise InvalidInputError("path", "must lie in an existing folder", got=str(self.path))
        with self._translated():
            self._database = sqlite3.connect(
                self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self._begin_write_ahead_log()
        self._run("PRAGMA synchronous = FULL")
        self._run("PRAGMA secure_delete = ON")
        with self._transaction():
            application, found = (self._number(f"PRAGMA {name}") for name in ("application_id", "user_version"))
            tables = self._number("SELECT count(*) FROM sqlite_master")
            if tables == 0:
                for statement in SCHEMA.strip().split(";\n"):
                    self._run(statement)
                self._run(f"PRAGMA application_id = {APPLICATION}")
                self._run(f"PRAGMA user_version = {FORMAT}")
            elif application != APPLICATION:
                raise FileFormatError(f"{self.path} is a database, but not a calibration store.")
            elif found != FORMAT:
                raise FileFormatError(f"{self.path} has the format {found}; this version of kcal reads {FORMAT}.")

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
        except sqlite3.Error as error:
            if self._is_closed:
                raise InvalidInputError("store", "is closed", remedy="Open it again.") from error
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise StoreBusyError(f"Another process holds the store {self.path}. Try again later.") from error
            if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
                expected = "must be a file that can be written, in a folder in which files can be made"
                raise InvalidInputError("path", expected, got=f"{self.path} ({error})") from error
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
