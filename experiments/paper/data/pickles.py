"""Read pickles of arrays and lists without running anything that is in them.

A pickle is a program that may call any function by name and set the state of what it made. Here the only names are the
three that a pickled array uses, and none stands for numpy's own: they make plain descriptions, from which the array is
built by ``np.frombuffer``. Any other name ends the reading with an error.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from kcal.errors import FileFormatError


def read_pickle(path: Path) -> dict[str, Any]:
    """Return the dictionary of a pickle whose values are arrays, lists, text and numbers.

    Text of Python 2, as in CIFAR's files, is read as Latin-1. Keys that are bytes become text.
    """
    try:
        with path.open("rb") as stream:
            content = _Restricted(stream).load()
    except (FileFormatError, OSError):
        raise
    except Exception as error:  # the unpickler raises anything on damaged bytes
        raise FileFormatError(f"{path}: it is not a readable pickle ({type(error).__name__}: {error}).") from error
    if not isinstance(content, dict):
        raise FileFormatError(f"{path}: a dictionary is expected; it holds {type(content).__name__}.")
    return {
        key.decode("latin1") if isinstance(key, bytes) else str(key): value.values if type(value) is _Array else value
        for key, value in content.items()
    }


class _Restricted(pickle.Unpickler):
    """An unpickler that knows the names of an array."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream, encoding="latin1")
        self.file = stream.name

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise FileFormatError(
                f"{self.file}: the pickle asks to run {module}.{name}, which data have no need of; nothing was run."
            )
        return _NAMES[module, name]


class _Name:
    """What a name stands for; unlike a class or a function it has no state that a pickle could change."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it changes the meaning of a name")


class _NumberTypeName(_Name):
    """Stands for numpy.dtype."""

    __slots__ = ()

    def __call__(self, code: Any, *flags: Any) -> _NumberType:
        return _NumberType(_text(code))


class _ReconstructName(_Name):
    """Stands for numpy's function that makes the empty array with which a pickled array begins."""

    __slots__ = ()

    def __call__(self, kind: Any, shape: Any, code: Any) -> _Array:
        if kind is not _ARRAY:
            raise pickle.UnpicklingError("it rebuilds something other than an array")
        return _Array()


class _NumberType:
    """Type of the numbers of an array; its state has the order of bytes."""

    __slots__ = ("dtype",)

    def __init__(self, code: str) -> None:
        if code.strip("<>|=")[:1] not in tuple("buif"):
            raise pickle.UnpicklingError(f"it holds an array of type {code!r}, not of numbers")
        self.dtype: np.dtype[Any] = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        self.dtype = self.dtype.newbyteorder(_text(state[1]))  # type: ignore[arg-type]


class _Array:
    """An array; its state is (version, shape, type, whether columns come first, bytes)."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: NDArray[Any] = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, is_fortran, content = state
        data = content.encode("latin1") if isinstance(content, str) else content
        if type(kind) is not _NumberType or not isinstance(data, bytes):
            raise pickle.UnpicklingError("it holds an array of something other than numbers")
        self.values = np.frombuffer(data, kind.dtype).reshape(shape, order="F" if is_fortran else "C")


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


_ARRAY = _Name()
_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _ReconstructName(),
    ("numpy._core.multiarray", "_reconstruct"): _ReconstructName(),
    ("numpy", "ndarray"): _ARRAY,
    ("numpy", "dtype"): _NumberTypeName(),
}
