"""Worker processes that end with their parent."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import joblib

from kcal.threads import one_thread

CHECK_SECONDS = 0.5
"""Time between two checks of a worker whether its parent is alive."""


class Parallel(Protocol):
    """A way to run calls side by side."""

    def __call__(self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], *, jobs: int) -> Iterator[Any]:
        """Yield the results of calls as they finish, of ``jobs`` at a time."""


def in_parallel(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], *, jobs: int) -> Iterator[Any]:
    """Yield the results of calls as they finish; with one job, of this process."""
    if not calls:
        return
    parallel = joblib.Parallel(
        n_jobs=min(jobs, len(calls)),
        batch_size=1,  # a run that is killed loses only the calls in progress
        return_as="generator_unordered",
        initializer=end_with_parent,
        initargs=(os.getpid(),),
    )
    yield from parallel(joblib.delayed(on_one_thread)(function, call) for call in calls)


def on_one_thread(function: Callable[..., Any], call: tuple[Any, ...]) -> Any:
    """Return the result of a call that uses one thread."""
    with one_thread():
        return function(*call)


def end_with_parent(parent: int) -> None:
    """Let this worker end soon after its parent: a parent that is killed cannot stop its workers.

    The parent is polled. A signal at its death (prctl) would come too early, because Linux sends it when the thread
    ends that started the worker.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(CHECK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
