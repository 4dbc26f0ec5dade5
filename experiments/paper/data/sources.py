"""What a data set needs: where it is had, what its folder looks like, and the function that prepares it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import scipy.io
from numpy.typing import NDArray

from experiments.paper.prepared import PreparedData
from kcal.errors import FileFormatError, KcalError, KcalWarning


class Prepare(Protocol):
    """Read a source and write it into a folder as prepared data."""

    def __call__(self, source: Path, out: Path, *, seed: int, show: bool | None) -> PreparedData: ...


@dataclass(frozen=True)
class Layout:
    """Where a data set is had and what its files look like.

    Attributes
    ----------
    title : str
        Name in full.
    home : str
        Where its owners distribute it.
    tree : str
        The folder to pass, a line for each file.
    """

    title: str
    home: str
    tree: str

    def missing(self, source: Path, what: str) -> MissingDataError:
        """Return the error for a file that is not there."""
        return MissingDataError(source, what, self)

    def existing(self, source: Path, *names: str) -> Path:
        """Return the first of these files or folders that is there."""
        for name in names:
            if (source / name).exists():
                return source / name
        raise self.missing(source, " or ".join(names))


class MissingDataError(KcalError):
    """Raise for a source without a file of its data set; the message shows the folder as it should be."""

    def __init__(self, source: Path, what: str, layout: Layout) -> None:
        super().__init__(
            f"{source} has no {what}. {layout.title} is available from {layout.home}.\n"
            f"The folder looks like this:\n{layout.tree}"
        )


class SkippedWarning(KcalWarning):
    """A recording was left out because it lacks a signal."""


@dataclass(frozen=True)
class DataSet:
    """One entry of the table of data sets."""

    name: str
    layout: Layout
    prepare: Prepare


def unreadable(path: Path, reason: str) -> FileFormatError:
    """Return the error for a file that is not what it should be."""
    return FileFormatError(f"{path}: {reason}.")


def read_matlab(path: Path, *names: str) -> tuple[NDArray[Any], ...]:
    """Return variables of a MATLAB file of version 4 to 7."""
    try:
        content = scipy.io.loadmat(path, variable_names=list(names))
        return tuple(content[name] for name in names)
    except OSError:
        raise
    except Exception as error:  # the reader raises anything on damaged bytes
        raise unreadable(path, f"it is not a MATLAB file with {' and '.join(names)} ({error})") from error


def class_index(classes: Iterable[str]) -> Callable[[str, Path], int]:
    """Return a function from a name of a class, and the file that it is in, to its index."""
    index = {name: number for number, name in enumerate(classes)}

    def of(name: str, path: Path) -> int:
        if name not in index:
            raise unreadable(path, f"class {name!r} is none of {', '.join(index)}")
        return index[name]

    return of
