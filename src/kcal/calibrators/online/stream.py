"""One writer at a time, any number of readers: samples that change, and the frozen calibrators that predict.

Readers take the latest snapshot, a fitted calibrator that no update changes. After an update the first reader makes a
new one, in time O(n·d), as a prediction takes; meanwhile the others use the one before. The thread that made the
latest update waits for it, so that it sees what it did. No reader waits if the writer makes the snapshot: ``latest()``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from kcal.calibrators.online.rows import SampleLog, SampleRows
from kcal.errors import KcalError

Frozen = TypeVar("Frozen")


@dataclass(frozen=True, eq=False)
class Snapshot(Generic[Frozen]):
    """A fitted calibrator for the samples of a view, and the one without samples that the next is made from."""

    calibrator: Frozen
    base: Frozen


@dataclass(frozen=True, eq=False)
class Published(Generic[Frozen]):
    """What readers see, replaced in one assignment."""

    rows: SampleRows
    author: int  # thread of the latest update
    base: Frozen
    made_of: SampleRows | None = None  # samples of the snapshot; others than ``rows`` after an update
    latest: Frozen | None = None
    complete: Frozen | None = None


class Stream(Generic[Frozen]):
    """Samples that change, and snapshots of them.

    Parameters
    ----------
    base : calibrator
        A fitted calibrator without samples.
    log : SampleLog
        Its samples.
    make : callable
        Returns the snapshot for a base and a view of samples.
    finish : callable
        Returns a snapshot's calibrator with what predictions do not need.
    first : calibrator, optional
        The fitted calibrator with these samples: the first snapshot.
    """

    def __init__(
        self,
        base: Frozen,
        log: SampleLog,
        make: Callable[[Frozen, SampleRows], Snapshot[Frozen]],
        finish: Callable[[Frozen, SampleRows], Frozen],
        first: Frozen | None = None,
    ) -> None:
        self._log, self._make, self._finish = log, make, finish
        made_of, author = None if first is None else log.view, threading.get_ident()
        self._published: Published[Frozen] = Published(log.view, author, base, made_of, first, first)
        self._begin()

    def _begin(self) -> None:
        self._writing, self._making = threading.RLock(), threading.Lock()
        self._swapping = threading.Lock()  # held for an assignment only, so that readers need not wait for a writer

    @property
    def base(self) -> Frozen:
        """The fitted calibrator without samples."""
        return self._published.base

    @property
    def has_groups(self) -> bool:
        """Whether the samples have groups."""
        return self._published.rows.groups is not None

    @property
    def ids(self) -> list[Any]:
        """Identifiers of the samples."""
        names: list[Any] = self._published.rows.names().tolist()
        return names

    @contextmanager
    def update(self) -> Iterator[SampleLog]:
        """Change the log; readers see all of it afterwards, or nothing if an error is raised before a change."""
        with self._writing:
            try:
                yield self._log
            finally:
                self._publish()

    def _publish(self) -> None:
        """Show the rows of the log; after an erasure nothing that was made of earlier rows is left."""
        before, rows, author = self._published, self._log.view, threading.get_ident()
        if rows is before.rows:
            return
        if rows.n_erasures == before.rows.n_erasures:
            with self._swapping:
                self._published = replace(self._published, rows=rows, author=author)
            return
        published = Published(rows, author, before.base)
        with suppress(KcalError):  # too few samples may be left: then predictions raise
            published = self._with_snapshot(published)  # meanwhile readers use the one before
        with self._swapping:
            self._published = published

    def _with_snapshot(self, published: Published[Frozen]) -> Published[Frozen]:
        made = self._make(published.base, published.rows)
        return replace(published, base=made.base, made_of=published.rows, latest=made.calibrator, complete=None)

    def _current(self) -> Published[Frozen]:
        """Return the latest snapshot with its samples; make it if another thread does not, or if there is none."""
        published = self._published
        if published.made_of is published.rows:
            return published
        waits = published.latest is None or published.author == threading.get_ident()
        if not self._making.acquire(blocking=waits):
            return published
        try:
            return self._remake()
        finally:
            self._making.release()

    def _remake(self) -> Published[Frozen]:
        """Make a snapshot of the present samples and show it, unless samples were erased meanwhile."""
        while True:
            before = self._published
            if before.made_of is before.rows:
                return before
            made = self._with_snapshot(before)
            with self._swapping:
                now = self._published
                if now.rows.n_erasures == before.rows.n_erasures:
                    self._published = replace(made, rows=now.rows, author=now.author)
                    return made

    def latest(self) -> Frozen:
        """Return the latest snapshot, as far as predictions need it."""
        latest = self._current().latest
        assert latest is not None
        return latest

    def complete(self) -> Frozen:
        """Return the latest snapshot with everything that a fitted calibrator has."""
        current = self._current()
        if current.complete is not None:
            return current.complete
        assert current.latest is not None
        assert current.made_of is not None
        complete = self._finish(current.latest, current.made_of)
        with self._swapping:
            if self._published.latest is current.latest:
                self._published = replace(self._published, complete=complete)
        return complete

    def change_base(self, change: Callable[[Frozen], Frozen]) -> None:
        """Replace the calibrator without samples, and with it the snapshots."""
        with self._making, self._writing, self._swapping:
            published = self._published
            self._published = Published(published.rows, published.author, change(published.base))

    def __getstate__(self) -> dict[str, Any]:
        """Return the samples of one moment without snapshots, which are made again."""
        published = self._published
        bare = Published(published.rows, published.author, published.base)
        return {"_published": bare, "_make": self._make, "_finish": self._finish}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()
        self._log = SampleLog(self._published.rows)
        self._published = replace(self._published, rows=self._log.view)
