"""A served calibrator that follows its store: samples first, a search that is due afterwards."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from kcal.calibrators import Calibrator
from kcal.deployment.service.inference import ServedModel
from kcal.errors import InvalidInputError, KcalError, without_warnings
from kcal.persistence import CalibrationStore
from kcal.threads import threads_for

logger = logging.getLogger("kcal.service")


def with_text_ids(calibrator: Calibrator) -> Calibrator:
    """Return a copy of a calibrator whose samples have text as ids, as predictions have: "row 17" without ids."""
    live: Any = calibrator
    prefix = "row " if live.ids_ is None else ""
    copy: Calibrator = live.snapshot(ids=[f"{prefix}{name}" for name in live.current_ids_])
    return copy


def obstacle_to_following(calibrator: Calibrator) -> str:
    """Return why no samples can be added to a calibrator; empty if they can."""
    if not calibrator.learns_online:
        return f"the method {calibrator.method} does not learn online."
    try:
        _ = calibrator.has_groups_
    except InvalidInputError as error:  # a compressed support
        return str(error)
    return ""


class FollowingCalibrator:
    """The calibrator of a served model, in step with a store; the one that was loaded stays as it was.

    The samples follow in one thread. A search for the bandwidth, or a fit of a blend's weights, that is then due runs
    in another, so that neither a start nor an erasure waits for it. Predictions always come from a snapshot, so that
    none waits for either.

    Parameters
    ----------
    model : ServedModel
        Whose predictor is replaced when the samples have followed.
    store : CalibrationStore
        What is followed.
    additional : bool
        Whether samples of the model that are not in the store stay.
    """

    def __init__(self, model: ServedModel, store: CalibrationStore, *, additional: bool) -> None:
        loaded = model.loaded.calibrator
        assert loaded is not None
        self.model, self.calibrator = model, loaded
        self.obstacle = obstacle_to_following(loaded)
        """Why predictions do not follow the store; empty if they do."""
        self.error = ""
        """Why the latest attempt to follow failed; empty if it succeeded."""
        self.has_groups, self.own_ids = False, frozenset[str]()
        self._follower = None
        self._threads = [ThreadPoolExecutor(1, f"kcal-{name}-{model.name}") for name in ("follow", "search")]
        self._lock, self._showing = threading.Lock(), threading.Lock()
        self._is_closed, self._is_urgent = threading.Event(), threading.Event()
        self._next: Future[None] | None = None
        self._resume_at = 0.0
        if self.obstacle:
            logger.warning("predictions of %s do not follow the feedback: %s", model.name, self.obstacle)
            return
        self.calibrator = with_text_ids(loaded)
        self._follower = store.follow(self.calibrator, keep_others=additional, version=store.version or None)
        self.has_groups = bool(self._live.has_groups_)
        if additional:
            self.own_ids = frozenset(map(str, self._live.current_ids_))
        self._follow()
        self._show()
        self._search_soon()

    @property
    def _live(self) -> Any:
        return self.calibrator

    def follow_soon(self, *, urgent: bool = False) -> Future[None]:
        """Follow the store in the thread; calls that come before it begins share one update.

        Between two updates predictions get the processor for as long as the first one took, unless one is urgent.
        """
        with self._lock:
            if urgent:
                self._is_urgent.set()
            if self._next is None:
                self._next = self._threads[0].submit(self._update)
            return self._next

    def wait(self) -> None:
        """Wait until the updates and the searches that are under way are over."""
        for thread in self._threads:  # an update may begin a search
            thread.submit(int).result()

    def _update(self) -> None:
        self._is_urgent.wait(max(self._resume_at - time.monotonic(), 0.0))
        with self._lock:
            self._next = None
            if not self._is_closed.is_set():
                self._is_urgent.clear()
        start = time.monotonic()
        try:
            self._follow()
            self.error = ""
            self._search_soon()
        except Exception as error:  # the store has the feedback; the next update tries again
            self._report(error)
        self._resume_at = 2 * time.monotonic() - start

    def _follow(self) -> None:
        """Apply what changed in the store; predictions go on with the earlier samples until all is ready."""
        with without_warnings(), threads_for(0):  # its operations are small: two threads would wait for each other
            if self._follower is not None and self._follower.update(search=False):
                self._show()

    def _search_soon(self) -> None:
        if self._follower is not None and self._live.is_search_due_ and not self._is_closed.is_set():
            with suppress(RuntimeError):  # the thread has ended meanwhile
                self._threads[1].submit(self._search)

    def _search(self) -> None:
        try:
            with without_warnings(), threads_for(0):
                if self._live.is_search_due_ and not self._is_closed.is_set():
                    self._live.refresh()
                    self._show()
        except Exception as error:  # predictions go on with the earlier parameters
            self._report(error)

    def _report(self, error: Exception) -> None:
        self.error = str(error) if isinstance(error, KcalError) else type(error).__name__
        logger.error("%s could not follow its store: %s", self.model.name, self.error)

    def _show(self) -> None:
        """Let predictions and the page come from the present samples; one thread at a time, so that none goes back."""
        with self._showing:
            if not self._is_closed.is_set():
                self.model.show(self._live.snapshot(search=False))

    def close(self) -> None:
        """End the threads, when the update and the search that run are over."""
        self._is_closed.set()
        self._is_urgent.set()
        for thread in self._threads:
            thread.shutdown()

    def retire(self) -> None:
        """Close, and let predictions come from the calibrator that was loaded again: it has no sample of the store."""
        self.close()
        with self._showing:
            assert self.model.loaded.calibrator is not None
            self.model.show(self.model.loaded.calibrator)
