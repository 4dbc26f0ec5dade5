"""Files: written completely or not at all, locks of folders, arrays in npz files, and csv cells that are text.

A file is written to a temporary name in the same folder, then renamed.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EACCES
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from kcal.errors import FileFormatError, InvalidInputError
from kcal.validation import shown

LOCK_FILE = "run.lock"
MAX_SUFFIX = 20
"""Longer suffixes are not kept in the temporary name, which might exceed the limit of the file system."""
MAX_EXPANSION, MIN_CHECKED_BYTES = 200, 2**28
"""Arrays of more bytes than this must not be more than 200 times as large as they are in the file."""
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""First characters by which spreadsheet programs take a cell for a formula."""
TEXT_MARK = "'"


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, name: str = "path") -> Iterator[Path]:
    """Yield the path of a temporary file that replaces ``path`` when the block ends without an error.

    The temporary file lies in the folder of ``path``, ends in the same suffix and has an unpredictable name. On any
    error it is removed and ``path`` stays as it was. Errors about it, and about files and folders whose names begin
    with its name, are raised as errors about ``path``. A symbolic link is followed: its target is replaced. An existing
    file keeps its mode; a new one has the mode that the umask gives. ``name`` is that of the argument in errors.
    """
    given = check_path(path, name)
    target = Path(os.path.realpath(given))
    suffix = target.suffix if len(target.suffix) <= MAX_SUFFIX else ""
    temporary = target.with_name(f".{secrets.token_hex(8)}{suffix}")
    try:
        check_target(given, name)
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666 if mode is None else 0o600))
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(target)
    except OSError as error:
        about = str(error.filename or temporary)
        if error.errno and (about.startswith(str(temporary)) or about == str(target)):
            raise OSError(error.errno, error.strerror or str(error), str(given)) from error
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_whole(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write ``content`` to a file with :func:`atomic_path`; return the path."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
    return check_path(path)


def check_path(path: Any, name: str = "path") -> Path:
    """Return a path with ``~`` expanded; raise if ``path`` is not text or a path."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidInputError(name, "must be the name of a file, as text or a pathlib.Path", got=shown(path))
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # "~someone" whose home is unknown
        raise InvalidInputError(name, "must be in a known home folder if it begins with ~", got=shown(text)) from error


def check_target(path: str | os.PathLike[str], name: str = "path") -> None:
    """Raise if a file could not be written or replaced; symbolic links are followed."""
    given = check_path(path, name)
    target = Path(os.path.realpath(given))
    if target.is_symlink() or (target.exists() and not target.is_file()):
        got = f"the folder {given}" if target.is_dir() else f"{given}, which is not a regular file"
        raise InvalidInputError(name, "must be the name of a file", got=got)
    if not target.parent.is_dir():
        remedy = f"Make the folder {target.parent} first."
        raise InvalidInputError(name, "must be in an existing folder", got=str(given), remedy=remedy)
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(EACCES, os.strerror(EACCES), str(given))


@contextmanager
def locked_folder(folder: Path, name: str = LOCK_FILE, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a folder, a file ``name``, which the operating system releases however the process ends.

    While another process holds it, this raises, or waits with ``wait`` (on Windows for 10 seconds).
    """
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        try:
            _lock(descriptor, wait)
        except OSError:
            owner = os.pread(descriptor, 20, 0).decode(errors="replace").strip() if hasattr(os, "pread") else ""
            expected, got = "must not be in use by another run", f"{folder}, in use by process {owner or '(unknown)'}"
            remedy = "Wait until that run ends, or choose another folder."
            raise InvalidInputError("output folder", expected, got=got, remedy=remedy) from None
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


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays by name to a compressed npz file, whole or not at all; raise for arrays of Python objects.

    ``numpy.savez_compressed`` pickles objects, and before numpy 2.1 cannot be told not to.
    """
    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                npy.write_array(entry, np.asanyarray(array), allow_pickle=False)


def array_names(path: Path) -> tuple[str, ...]:
    """Return the names of the arrays of an npz file."""
    with zipfile.ZipFile(path) as archive:
        return tuple(name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy"))


def read_array(path: Path, name: str | None = None) -> NDArray[Any]:
    """Return an array of an npz file by its name, or that of an npy file.

    No pickle is read, and an array that is declared far larger than what the file holds of it raises before memory is
    allocated. numpy, zipfile and zlib raise almost any error on damaged files.
    """
    if name is None:
        with path.open("rb") as stream:
            return _read_stream(stream, *[path.stat().st_size] * 2)
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as stream:
        info = archive.getinfo(f"{name}.npy")
        return _read_stream(stream, info.file_size, info.compress_size)


def _read_stream(stream: IO[bytes], n_bytes: int, n_stored: int) -> NDArray[Any]:
    """Return the array of an npy stream of ``n_bytes``, of which a compressed file holds ``n_stored``."""
    read_header = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    if dtype.hasobject:
        raise FileFormatError(
            "contains Python objects, which are not read because that could run code. Convert it first: "
            "array.astype(str) for names, array.astype(float) for numbers."
        )
    size = prod(shape) * dtype.itemsize
    if size > n_bytes or size > max(MIN_CHECKED_BYTES, MAX_EXPANSION * n_stored):
        raise FileFormatError(f"declares {size:,} bytes, and the file holds {n_stored:,} for it.")
    stream.seek(0)
    array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return array


def with_mark(text: str) -> str:
    """Return a csv cell with a mark before it if spreadsheets would run it as a formula, or if it looks marked."""
    return f"{TEXT_MARK}{text}" if text.lstrip(TEXT_MARK).startswith(FORMULA_STARTS) else text


def without_mark(text: str) -> str:
    """Return a cell or a column name as it was before :func:`with_mark`."""
    return text[1:] if text.startswith(TEXT_MARK) and with_mark(text) != text else text
