"""Reading arrays from npz and npy files; nothing in a file is ever run."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from kcal.errors import FileFormatError, InvalidInputError

SUFFIXES = (".npz", ".npy", ".parquet", ".csv")

# What numpy, zipfile and zlib raise on files that are not what they should be.
_DAMAGE = (
    ValueError, OSError, EOFError, KeyError, TypeError, SyntaxError, MemoryError, RuntimeError,
    IndexError, OverflowError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def check_readable(path: Path) -> str:
    """Return the suffix of a file that can be read: one of :data:`SUFFIXES`."""
    if path.is_dir():
        raise InvalidInputError(f"{path} is a folder; give the name of a file.")
    if not path.exists():
        raise InvalidInputError(f"{path} does not exist.")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidInputError(f"{path}: the name of a data file must end in {', '.join(SUFFIXES)}.")
    if path.stat().st_size == 0:
        raise FileFormatError(f"{path} is empty.")
    return suffix


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array of an npy file."""
    with path.open("rb") as file:
        stored = _load(path, file)
    if isinstance(stored, NpzFile):
        raise FileFormatError(f"{path} holds several arrays; call it {path.with_suffix('.npz').name}.")
    array: NDArray[Any] = stored
    return array


class ArraysFile:
    """An npz file: arrays by name, read one by one when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb")  # opened here, because numpy leaves damaged files open
        try:
            stored = _load(path, self._file)
            if not isinstance(stored, NpzFile):
                name = path.with_suffix(".npy").name
                raise FileFormatError(f"{path} holds one array without a name; call it {name}.")
        except BaseException:
            self._file.close()
            raise
        self._stored = stored

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the arrays in the file."""
        return tuple(self._stored.files)

    def find(self, name: str, prefixes: Sequence[str] = ("",)) -> NDArray[Any] | None:
        """Return the array of that name, with the first of the prefixes that there is; None where there is none."""
        for prefix in prefixes:
            if f"{prefix}{name}" in self.keys:
                return self._read(f"{prefix}{name}")
        return None

    def get(self, name: str, prefixes: Sequence[str] = ("",)) -> NDArray[Any]:
        """Return the array of that name; its absence is an error that lists what there is."""
        array = self.find(name, prefixes)
        if array is None:
            wanted = " or ".join(f"{prefix}{name}" for prefix in prefixes)
            raise InvalidInputError(
                f"{self.path} has no array called {wanted}; it has {', '.join(self.keys) or 'none at all'}. "
                f"Write it with numpy.savez({str(self.path)!r}, {name}=..., ...)."
            )
        return array

    def close(self) -> None:
        """Close the file."""
        self._stored.close()
        self._file.close()

    def __enter__(self) -> ArraysFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, key: str) -> NDArray[Any]:
        try:
            array: NDArray[Any] = self._stored[key]
        except _DAMAGE as error:
            raise _damaged(self.path, error, f"array {key}") from error
        return array


def _load(path: Path, file: BinaryIO) -> Any:
    try:
        return np.load(file, allow_pickle=False)
    except _DAMAGE as error:
        raise _damaged(path, error, "it") from error


def _damaged(path: Path, error: BaseException, what: str) -> FileFormatError:
    if "Object arrays" in str(error):
        return FileFormatError(
            f"{path}: {what} holds Python objects, which are not read because that could run code. "
            "Convert it first: array.astype(str) for names, array.astype(float) for numbers."
        )
    return FileFormatError(
        f"{path} cannot be read: {what} is truncated, corrupt or no numpy file. Write it again with numpy.savez "
        "or numpy.save."
    )
