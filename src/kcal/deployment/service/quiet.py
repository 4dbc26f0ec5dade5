"""Computations whose warnings the page has no use for: what they would say is in the results."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from kcal.errors import KcalWarning

_LOCK = threading.Lock()


@contextmanager
def without_warnings() -> Iterator[None]:
    """Ignore the warnings of kcal; one thread at a time, because the filters of warnings are those of the process."""
    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore", KcalWarning)
        yield
