"""A calibrator in sync with a store: what is appended, corrected and deleted there reaches it."""

from __future__ import annotations

import threading
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators import Calibrator, update_on
from kcal.errors import InvalidInputError, KcalError, KcalWarning, warn
from kcal.validation import check_number, shown

if TYPE_CHECKING:
    from kcal.persistence.store import CalibrationStore, StoredSamples


class StoreSync:
    """Keeps the samples of a calibrator those of a store; made by :meth:`CalibrationStore.follow`.

    A sample of the calibrator is known by its id and by the row of the store that it came from: an id that was deleted
    and appended again is another sample. A sample that is not in the store is forgotten. A deletion thus reaches the
    calibrator although the store keeps nothing of what was deleted, not even its id. With ``keep_others`` a sample that
    was never in the store stays; one that was deleted before the first update cannot be told from it.

    The calibrator is unfitted, or was fitted with ids of the store: saved and loaded again, it goes on. Then samples
    whose embeddings and labels it has are left as they are. If its ``updates`` limit the samples that it keeps, those
    that came to the store before the oldest that it has count as evicted, and do not return.

    As a context manager it updates the calibrator from a thread of its own, ``every`` so many seconds; predictions go
    on meanwhile. Without ``every``, call :meth:`update`. If an update of the thread fails, it warns, keeps the error in
    ``error`` and tries again at the next interval; an error that lasts is raised where the context ends.
    """

    def __init__(
        self,
        store: CalibrationStore,
        calibrator: Calibrator,
        every: float | None,
        *,
        classes: Any = None,
        version: str | None = None,
        keep_others: bool = False,
    ) -> None:
        if not (isinstance(calibrator, Calibrator) and calibrator.learns_online):
            expected = "must be one that learns online: KCal or KCalBlend"
            raise InvalidInputError("calibrator", expected, got=shown(calibrator))
        if every is not None:
            check_number(every, "every", minimum=0, exclusive=True)
        self.calibrator: Any = calibrator
        self.store, self.every, self.keep_others = store, every, keep_others
        self.classes, self.version = classes, version
        self.since = 0
        """Number of the last change of the store that the calibrator has seen."""
        self.error: Exception | None = None
        """Error of the latest update by the thread; None if it succeeded."""
        self._versions: set[str] = set()  # of the samples so far
        self._rows: dict[Any, int] = {}  # of the samples that the calibrator has, or had and evicted
        self._stop, self._thread = threading.Event(), threading.Thread()
        self._check_calibrator()

    def update(self, *, search: bool = True) -> int:
        """Apply what changed in the store since the last call; return the number of samples that changed.

        An unfitted calibrator is fitted as soon as there are labelled samples. Predictions follow at once; then a
        search (of a blend: a fit) is made if it is due or, without ``search``, left for ``calibrator.refresh()``.
        """
        self._check_calibrator()
        samples, deleted, last = self.store.changes(self.since, version=self.version)
        self._warn_new_versions(samples)
        unchanged = self._adopt(samples) if self.since == 0 else set()
        gone, erased = self._deleted(set(deleted.tolist()))
        self._rows = {name: row for name, row in self._rows.items() if name not in erased}
        is_majority = self._is_fitted and 2 * len(gone) > len(self.calibrator.current_ids_)
        if erased and not is_majority:
            self._forget(gone)
        taken = set() if samples is None else self._take(samples, unchanged)
        if erased and is_majority:  # afterwards: predictions never lack samples
            self._forget(gone - taken)
        self.since = last
        if self._is_fitted:
            with suppress(KcalError):  # too few samples may be left: then predictions raise
                self.calibrator.refresh(search=False)  # no reader has to, nor waits for a search
                self.calibrator.refresh(search=search)
        return len(gone | taken)

    def _check_calibrator(self) -> None:
        """Raise if the calibrator is fitted and cannot be updated, or if its samples are not of the store."""
        if not self._is_fitted:
            return
        _ = self.calibrator.has_groups_  # raises if the samples cannot be updated
        if self.since == 0 and not self.calibrator.has_own_ids_:
            expected = "must be unfitted, or fitted with ids of the store"
            remedy = "Fit it with store.fit(calibrator), or pass ids= to fit."
            raise InvalidInputError("calibrator", expected, got="one that was fitted without ids", remedy=remedy)

    def _warn_new_versions(self, samples: StoredSamples | None) -> None:
        versions = set() if samples is None else set(samples.versions.tolist())
        if not versions <= self._versions:
            self._versions |= versions
            self.store.warn_versions(self._versions, self.version)

    def _adopt(self, samples: StoredSamples | None) -> set[Any]:
        """Find the rows of the samples that a fitted calibrator has; return the ids of those with the same labels."""
        self._rows = {}
        if samples is None or not self._is_fitted:
            return set()
        own = self.calibrator.samples_
        labels = dict(zip(own.ids.tolist(), own.labels.tolist(), strict=True))
        names = samples.outputs.ids.tolist()
        is_known = np.array([name in labels for name in names])
        same = is_known & self.calibrator.was_fitted_on(samples.outputs.matrix(self.calibrator.inputs))
        kept = same | (self._evicted(samples, same) & ~is_known)
        self._rows = {name: row for name, row, keep in zip(names, samples.rows.tolist(), kept, strict=True) if keep}
        given = zip(names, samples.outputs.labels.tolist(), strict=True)
        return {name for name, label in given if name in labels and labels[name] == label}

    def _evicted(self, samples: StoredSamples, same: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which samples are older than the oldest that the calibrator has, of all or of their class."""
        options, rows, labels = self.calibrator.updates, samples.rows, samples.outputs.labels
        evicted = np.zeros(len(rows), dtype=np.bool_)
        if options is None or not same.any():
            return evicted
        if options.max_samples < inf:
            evicted |= rows < rows[same].min()
        if options.max_per_class is not None:
            for label in np.unique(labels[same]):
                of_class = labels == label
                evicted |= of_class & (rows < rows[of_class & same].min())
        return evicted

    def _deleted(self, rows: set[int]) -> tuple[set[Any], set[Any]]:
        """Return the ids of samples that the store no longer has: those of the calibrator, and with evicted ones."""
        if not self._is_fitted or not (rows or self.since == 0):
            return set(), set()
        absent = rows if self.keep_others else {None, *rows}
        gone = {name for name in self.calibrator.current_ids_ if self._rows.get(name) in absent}
        return gone, gone | {name for name, row in self._rows.items() if row in rows}

    def _forget(self, gone: set[Any]) -> None:
        """Forget samples, and every trace of those that were evicted or replaced."""
        self.calibrator.forget([name for name in self.calibrator.current_ids_ if name in gone])

    def _take(self, samples: StoredSamples, unchanged: set[Any]) -> set[Any]:
        """Add samples of new rows, and correct the labels of known ones; return the ids of both."""
        names, rows = samples.outputs.ids.tolist(), samples.rows.tolist()
        known = set(self.calibrator.current_ids_) if self._is_fitted else set()
        is_new = np.array([self._rows.get(name) != row for name, row in zip(names, rows, strict=True)])
        corrected = ~is_new & np.array([name in known and name not in unchanged for name in names])
        if corrected.any():
            chosen = samples.outputs.select(corrected)
            self.calibrator.correct(chosen.ids, chosen.labels)
        if is_new.any():
            update_on(self.calibrator, samples.outputs.select(is_new), classes=self.classes)
            _ = self.calibrator.has_groups_  # raises if the fit left no samples that can be updated
            self._rows |= {name: row for name, row, new in zip(names, rows, is_new, strict=True) if new}
        return {name for name, changed in zip(names, is_new | corrected, strict=True) if changed}

    @property
    def _is_fitted(self) -> bool:
        return bool(self.calibrator.__sklearn_is_fitted__())

    def __enter__(self) -> Self:
        self.update()
        self.error = None
        if self.every is not None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="kcal-sync", daemon=True)
            self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stop.wait(self.every):
            try:
                self.update()
                self.error = None
            except Exception as error:  # kept, and raised where the context ends if it lasts
                is_first, self.error = self.error is None, error
                if is_first:
                    with suppress(KcalWarning):  # where warnings are errors, they must not end the thread
                        warn(f"A sync could not update its calibrator, and tries again: {error}", KcalWarning)

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self.error is not None and error[0] is None:
            raise self.error
