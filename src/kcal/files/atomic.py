"""Write files completely or not at all: to a temporary file in the same folder first, then rename."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kcal.errors import InvalidInputError
from kcal.validation import shown

_LONGEST_SUFFIX = 20
"""Longer suffixes are not kept in the temporary name, which might exceed the limit of the file system."""


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, name: str = "path") -> Iterator[Path]:
    """Yield the path of a temporary file that replaces ``path`` when the block ends without an error.

    The temporary file lies in the folder of ``path``, ends in the same suffix and has an unpredictable name. On any
    error it is removed and ``path`` stays as it was. Errors about it, and about files and folders whose names begin
    with its name, are raised as errors about ``path``. A symbolic link is followed: its target is replaced. An existing
    file keeps its mode; a new one has the mode that the umask gives. ``name`` is that of the argument in errors.
    """
    given = check_path(path, name)
    try:
        target = _check_target(given, name)
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        temporary = _create_beside(target, 0o666 if mode is None else 0o600)
    except OSError as error:
        raise _about(given, error) from error
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and _is_own(error.filename, temporary):
            raise _about(given, error) from error
        raise


def write_whole(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write ``content`` to a file with :func:`atomic_path`; return the path."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
    return check_path(path)


def check_path(path: Any, name: str = "path") -> Path:
    """Return a path with ``~`` expanded; raise if ``path`` is not text or a path."""
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidInputError(name, "must be the name of a file, as text or a pathlib.Path", got=shown(path))
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # "~someone" whose home is unknown
        raise InvalidInputError(name, "must be in a known home folder if it begins with ~", got=shown(text)) from error


def _check_target(path: Path, name: str) -> Path:
    """Return the file that is to be replaced, symbolic links followed; raise if there can be none."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InvalidInputError(name, "must be the name of a file", got=f"the folder {path}")
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise InvalidInputError(name, "must be the name of a regular file", got=str(path))
    if not target.parent.is_dir():
        raise InvalidInputError(
            name, "must be in an existing folder", got=str(path), remedy=f"Make the folder {target.parent} first."
        )
    return target


def _create_beside(target: Path, mode: int) -> Path:
    """Create an empty file of an unpredictable name; the kernel applies the umask to ``mode``."""
    suffix = target.suffix if len(target.suffix) <= _LONGEST_SUFFIX else ""
    temporary = target.parent / f".{secrets.token_hex(8)}{suffix}"
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    return temporary


def _is_own(filename: Any, temporary: Path) -> bool:
    """Return whether an error is about the temporary file, one whose name begins with its name, or no file at all."""
    return filename is None or str(filename).startswith(str(temporary))


def _about(path: Path, error: OSError) -> OSError:
    """Return the error with the path that the caller asked for in place of the temporary one."""
    return OSError(error.errno, error.strerror or str(error), str(path))
