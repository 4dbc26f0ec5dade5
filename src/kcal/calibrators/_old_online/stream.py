"""One writer at a time, any number of readers: samples that change, and the frozen calibrators that predict.

Readers take the latest snapshot, a fitted calibrator that no update changes. After an update the first reader makes a
new one, in time O(n·d), as a prediction takes; meanwhile the others use the one before. The thread that made the
latest update waits for it, so that it sees what it did. No reader waits if the writer makes the snapshot: ``latest()``.

A search that is due takes much longer than a snapshot. It can be left for later: ``latest(search=False)`` gives the
snapshot with the present samples and the parameters of the last search, as between two searches.
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
    """A fitted calibrator for the samples of a view, and the one without samples that the next is made from.

    If a search is due, the calibrator has the parameters of the last one; ``search()`` returns the snapshot after it.
    """

    calibrator: Frozen
    base: Frozen
    search: Callable[[], Snapshot[Frozen]] | None = None


@dataclass(frozen=True, eq=False)
class Published(Generic[Frozen]):
    """What readers see, replaced in one assignment."""

    rows: SampleRows
    author: int  # thread of the latest update
    base: Frozen
    made_of: SampleRows | None = None  # samples of the snapshot; others than ``rows`` after an update
    latest: Frozen | None = None
    complete: Frozen | None = None
    search: Callable[[], Snapshot[Frozen]] | None = None  # the one that is due for the snapshot

    def has_snapshot(self, *, search: bool) -> bool:
        """Return whether there is a snapshot of the present samples, with ``search`` one for which none is due."""
        return self.made_of is self.rows and not (search and self.search is not None)

    def with_snapshot(self, made: Snapshot[Frozen]) -> Published[Frozen]:
        """Return this with a snapshot of its samples."""
        return Published(self.rows, self.author, made.base, self.rows, made.calibrator, search=made.search)


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
    def is_search_due(self) -> bool:
        """Whether the latest snapshot waits for a search."""
        return self._published.search is not None

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
            published = published.with_snapshot(self._make(before.base, rows))  # readers use the one before meanwhile
        with self._swapping:
            self._published = published

    def _current(self, *, search: bool = True) -> Published[Frozen]:
        """Return the latest snapshot with its samples; make it if another thread does not, or if there is none."""
        published = self._published
        if published.has_snapshot(search=search):
            return published
        waits = published.latest is None or published.author == threading.get_ident()
        if not self._making.acquire(blocking=waits):
            return published
        try:
            return self._remake(search=search)
        finally:
            self._making.release()

    def _remake(self, *, search: bool) -> Published[Frozen]:
        """Make a snapshot of the present samples and show it, unless samples were erased meanwhile."""
        while True:
            before = self._published
            if before.has_snapshot(search=search):
                return before
            made = before
            if not made.has_snapshot(search=False):
                made = made.with_snapshot(self._make(made.base, made.rows))
            if search and made.search is not None:
                made = made.with_snapshot(made.search())
            with self._swapping:
                now = self._published
                if now.rows.n_erasures == before.rows.n_erasures:
                    self._published = replace(made, rows=now.rows, author=now.author)
                    return made

    def latest(self, *, search: bool = True) -> Frozen:
        """Return the latest snapshot, as far as predictions need it; without ``search``, one that is due waits."""
        latest = self._current(search=search).latest
        assert latest is not None
        return latest

    def complete(self, *, search: bool = True) -> Frozen:
        """Return the latest snapshot with everything that a fitted calibrator has."""
        current = self._current(search=search)
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
