"""A calibrator that follows a store: what is appended, corrected and deleted there reaches it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators import Calibrator, update_on
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError
from kcal.validation import check_number, shown

if TYPE_CHECKING:
    from kcal.persistence.store import CalibrationStore


class Follower:
    """Keeps the samples of a calibrator those of a store; made by :meth:`CalibrationStore.follow`.

    Samples are identified by their ids. A sample of the calibrator that is not in the store is forgotten, so that a
    deletion reaches the calibrator although the store keeps nothing of what was deleted, not even its id.

    As a context manager it updates the calibrator from a thread of its own, ``every`` so many seconds; predictions go
    on meanwhile. Without ``every``, call :meth:`update`.
    """

    def __init__(self, store: CalibrationStore, calibrator: Calibrator, every: float | None) -> None:
        if not (isinstance(calibrator, Calibrator) and calibrator.learns_online):
            expected = "must be one that learns online: KCal or KCalBlend"
            raise InvalidInputError("calibrator", expected, got=shown(calibrator))
        if every is not None:
            check_number(every, "every", minimum=0, exclusive=True)
        self.store, self.calibrator, self.every = store, calibrator, every
        self.since = 0
        """Number of the last change of the store that the calibrator has seen."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def update(self) -> int:
        """Apply what changed in the store since the last call; return the number of samples that changed.

        An unfitted calibrator is fitted as soon as there are labelled samples.
        """
        samples, deleted, last = self.store.changes(self.since)
        n_changed = 0 if samples is None else self._take(samples.outputs)
        if len(deleted) or self.since == 0:
            n_changed += self._forget_deleted()
        self.since = last
        return n_changed

    def _take(self, samples: ClassifierOutputs) -> int:
        """Add new samples, and correct the labels of known ones."""
        known: set[Any] = set()
        if self._is_fitted:
            known = set(self._live.current_ids_)
        is_known = np.array([name in known for name in np.asarray(samples.ids).tolist()])
        if is_known.any():
            corrected = _some(samples, is_known)
            self._live.correct(corrected.ids, corrected.labels)
        if not is_known.all():
            update_on(self.calibrator, _some(samples, ~is_known))
        return len(is_known)

    def _forget_deleted(self) -> int:
        if not self._is_fitted:
            return 0
        present = set(self.store.ids())
        gone = [name for name in self._live.current_ids_ if name not in present]
        if gone:
            self._live.forget(gone)
        return len(gone)

    @property
    def _live(self) -> Any:
        return self.calibrator

    @property
    def _is_fitted(self) -> bool:
        return self.calibrator.__sklearn_is_fitted__()

    def __enter__(self) -> Self:
        self.update()
        if self.every is not None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="kcal-follower", daemon=True)
            self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stop.wait(self.every):
            try:
                self.update()
            except Exception as error:  # raised where the context ends
                self._error = error
                return

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None and error[0] is None:
            raise self._error


def _some(samples: ClassifierOutputs, chosen: NDArray[np.bool_]) -> ClassifierOutputs:
    parts = {name: np.asarray(values)[chosen] for name, values in vars(samples).items() if values is not None}
    return ClassifierOutputs(**parts)
