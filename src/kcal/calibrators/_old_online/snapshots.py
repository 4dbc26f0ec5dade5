"""Fitted attributes and methods that follow the latest snapshot of a calibrator that lives on."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


class LatestAttribute:
    """A fitted attribute: the calibrator's own or, once it lives on, that of its latest snapshot."""

    def __init__(self, *, complete: bool) -> None:
        self.complete = complete

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, calibrator: Any, owner: type | None = None) -> Any:
        if calibrator is None:
            return self
        stream = vars(calibrator).get("_stream")
        if stream is None:
            raise AttributeError(f"{type(calibrator).__name__!r} object has no attribute {self.name!r}")
        return getattr(stream.complete() if self.complete else stream.latest(), self.name)


def latest(*, complete: bool = False) -> Any:
    """Declare a fitted attribute that updates change; ``complete`` for one that predictions do not need."""
    return LatestAttribute(complete=complete)


def on_latest(method: Method) -> Method:
    """Let a method compute with the latest snapshot from its beginning to its end: what predictions need."""

    @wraps(method)
    def call(calibrator: Any, *args: Any, **options: Any) -> Any:
        return method(calibrator.frozen(complete=False), *args, **options)

    return call  # type: ignore[return-value]


def on_snapshot(method: Method) -> Method:
    """Let a method compute with the latest snapshot from its beginning to its end."""

    @wraps(method)
    def call(calibrator: Any, *args: Any, **options: Any) -> Any:
        return method(calibrator.snapshot(), *args, **options)

    return call  # type: ignore[return-value]


def on_base(method: Method) -> Method:
    """Let a method compute with the calibrator without samples, which has all that a fit fixed for good."""

    @wraps(method)
    def call(calibrator: Any, *args: Any, **options: Any) -> Any:
        stream = vars(calibrator).get("_stream")
        return method(calibrator if stream is None else stream.base, *args, **options)

    return call  # type: ignore[return-value]


def copy_with(calibrator: Any, **attributes: Any) -> Any:
    """Return a calibrator with the same attributes, but for those that are given."""
    copy = object.__new__(type(calibrator))
    vars(copy).update(vars(calibrator))  # in one step, whatever other threads do
    vars(copy).update(attributes)
    return copy
