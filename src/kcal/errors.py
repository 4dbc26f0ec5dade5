"""Exceptions and warnings with structured fields, the function that issues warnings, and safe text for terminals."""

from __future__ import annotations

import contextlib
import inspect
import os
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

_SKIPPED = (f"{Path(__file__).parent}{os.sep}", contextlib.__file__)
"""Files that a warning does not point at: those of the package, and the wrapper of context managers that decorate."""

_left_out: ContextVar[tuple[type[Warning], ...]] = ContextVar("left_out", default=())


class KcalError(Exception):
    """Base class of every error that kcal raises on purpose."""


class InvalidInputError(KcalError, ValueError):
    """Raise for an argument that is not what was expected.

    The message reads "{parameter} {expected}; got {got}. {remedy}", for example
    "folds must be an integer of at least 2; got 1. Pass folds=5."

    Parameters
    ----------
    parameter : str
        Name of the argument, such as "sample_weight" or "logits". The command line replaces it by its option.
    expected : str
        What it must be, beginning with a verb: "must be a positive number".
    got : str, optional
        What was given instead.
    remedy : str, optional
        What to do, as whole sentences.
    """

    def __init__(self, parameter: str, expected: str, *, got: str = "", remedy: str = "") -> None:
        self.parameter = parameter
        self.expected = expected
        self.got = got
        self.remedy = remedy
        text = f"{parameter} {expected}; got {got}" if got else f"{parameter} {expected}"
        text += "" if text.endswith((".", "…")) else "."
        super().__init__(f"{text} {remedy}" if remedy else text)


class FileFormatError(KcalError, ValueError):
    """Raise for a file that is not what it should be: foreign, truncated, corrupt or from a newer kcal."""


class MissingExtraError(KcalError, ImportError):
    """Raise for an optional dependency that is not installed; the message says how to install it."""


class ExportError(KcalError, RuntimeError):
    """Raise if an exported file does not compute what the calibrator computes; the file is not kept."""


class KcalWarning(UserWarning):
    """Base class of every warning of kcal: one filter catches them all.

    Parameters
    ----------
    description : str
        What happened, as whole sentences.
    remedy : str
        What to do about it in Python, as whole sentences. The command line shows its own remedy instead.
    """

    def __init__(self, description: str = "", *, remedy: str = "") -> None:
        self.description = description
        self.remedy = remedy
        super().__init__(f"{description} {remedy}" if remedy else description)


class LeakageWarning(KcalWarning):
    """The same samples are on two sides that must be kept apart: results look better than they are."""


class MissingClassWarning(KcalWarning):
    """A class has no calibration sample."""


class FewSamplesWarning(KcalWarning):
    """There are too few calibration samples for the method."""


class RepresentationWarning(KcalWarning):
    """Logits look like probabilities."""


class IdentifiabilityWarning(KcalWarning):
    """Predictions say too little of the class frequencies that are estimated from them."""


class LoaderWarning(KcalWarning):
    """A loader does not yield every sample in the order of its data set."""


class NetworkWarning(KcalWarning):
    """A calibrator may not belong to the network that it is used with."""


class BandwidthWarning(KcalWarning):
    """The bandwidth search ended at the edge of its interval."""


class ConvergenceWarning(KcalWarning):
    """A solver stopped at a bound or before it converged."""


@contextlib.contextmanager
def without_warnings(category: type[Warning] = Warning) -> Iterator[None]:
    """Leave out the warnings of kcal in this thread, or those of a category, whatever filters there are."""
    token = _left_out.set((*_left_out.get(), category))
    try:
        yield
    finally:
        _left_out.reset(token)


def warn(message: str, category: type[Warning], *, remedy: str = "") -> None:
    """Issue a warning that points at the first caller outside the package; ``remedy`` is for users of Python only."""
    if issubclass(category, _left_out.get()):
        return
    frame, stacklevel = inspect.currentframe(), 1
    while frame is not None and frame.f_back is not None and frame.f_code.co_filename.startswith(_SKIPPED):
        frame, stacklevel = frame.f_back, stacklevel + 1
    warning = category(message, remedy=remedy) if issubclass(category, KcalWarning) else category(message)
    warnings.warn(warning, stacklevel=stacklevel)


def printable(text: object) -> str:
    """Return text with control characters escaped, so that names from files cannot control the terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in str(text)
    )
