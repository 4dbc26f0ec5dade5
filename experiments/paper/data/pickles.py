"""Read pickles of arrays and lists without running anything that is in them.

A pickle is a program that may call any function by name. Here the only names it may use are the three that rebuild a
numpy array, and none of them is numpy's own: they are replaced by functions that accept what an array needs and nothing
else. Any other name ends the reading with an error.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from kcal.errors import FileFormatError

_ARRAY_TYPE = object()
"""Stands for numpy.ndarray: it can be passed on, but not called."""


def read_pickle(path: Path) -> dict[str, Any]:
    """Return the dictionary of a pickle made of arrays, dictionaries, lists, text and numbers.

    Text of Python 2, as in CIFAR's files, is read as Latin-1. Keys that are bytes become text.
    """
    try:
        with path.open("rb") as stream:
            content = _Restricted(stream).load()
    except FileFormatError:
        raise
    except OSError:
        raise
    except Exception as error:  # the unpickler raises anything on damaged bytes
        raise FileFormatError(f"{path}: it is no readable pickle ({type(error).__name__}: {error}).") from error
    if not isinstance(content, dict):
        raise FileFormatError(f"{path}: a dictionary is expected; it holds {type(content).__name__}.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


class _Restricted(pickle.Unpickler):
    """An unpickler that knows three names."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream, encoding="latin1")
        self.file = getattr(stream, "name", "the pickle")

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): _empty_array,
            ("numpy._core.multiarray", "_reconstruct"): _empty_array,
            ("numpy", "ndarray"): _ARRAY_TYPE,
            ("numpy", "dtype"): _number_type,
        }
        if (module, name) not in allowed:
            raise FileFormatError(
                f"{self.file}: the pickle asks to run {module}.{name}, which data have no need of; nothing was run."
            )
        return allowed[module, name]


def _empty_array(kind: Any, shape: Any, code: Any) -> NDArray[Any]:
    """Return the empty array that a pickle of an array begins with; its state then sets shape, type and values."""
    if kind is not _ARRAY_TYPE or tuple(shape) != (0,):
        raise FileFormatError("the pickle rebuilds something other than an array; nothing was run.")
    return np.empty(0, np.int8)


def _number_type(code: Any, *flags: Any) -> np.dtype[Any]:
    """Return a type of numbers."""
    text = code.decode("latin1") if isinstance(code, bytes) else str(code)
    if text.strip("<>|=")[:1] not in set("buif"):
        raise FileFormatError(f"the pickle holds an array of type {text!r}, not of numbers; nothing was run.")
    return np.dtype(text)
