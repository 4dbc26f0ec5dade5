"""Processes of a run: a lock that keeps two runs out of one folder, and workers that end with their parent."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import joblib

from kcal.errors import InvalidInputError
from kcal.threads import one_thread

LOCK_FILE = "run.lock"
CHECK_SECONDS = 0.5
"""Time between two checks of a worker whether its parent is alive."""


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which the operating system releases when the process ends, however it ends."""
    path = folder / LOCK_FILE
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        try:
            _lock(descriptor)
        except OSError:
            owner = os.pread(descriptor, 20, 0).decode(errors="replace").strip() if hasattr(os, "pread") else ""
            got = f"{folder}, in use by process {owner or '(unknown)'}"
            remedy = "Wait until that run ends, or choose another folder."
            raise InvalidInputError("folder", "must not be in use by another run", got=got, remedy=remedy) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, 1_000_000, os.SEEK_SET)  # beyond the process number, which others may read
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


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
    yield from parallel(joblib.delayed(_on_one_thread)(function, call) for call in calls)


def _on_one_thread(function: Callable[..., Any], call: tuple[Any, ...]) -> Any:
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
