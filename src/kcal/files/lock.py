"""A lock that keeps two runs out of one folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kcal.errors import InvalidInputError

LOCK_FILE = "run.lock"


@contextmanager
def locked_folder(folder: Path, name: str = LOCK_FILE, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a folder, a file ``name``, which the operating system releases however the process ends.

    While another process holds it, this raises, or waits with ``wait`` (on Windows for 10 seconds).
    """
    path = folder / name
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        try:
            _lock(descriptor, wait)
        except OSError:
            owner = os.pread(descriptor, 20, 0).decode(errors="replace").strip() if hasattr(os, "pread") else ""
            got = f"{folder}, in use by process {owner or '(unknown)'}"
            remedy = "Wait until that run ends, or choose another folder."
            raise InvalidInputError(
                "output folder", "must not be in use by another run", got=got, remedy=remedy
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int, wait: bool) -> None:
        os.lseek(descriptor, 1_000_000, os.SEEK_SET)  # beyond the process number, which others may read
        msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(descriptor: int, wait: bool) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
