"""Checks of single options: integers, numbers, choices, flags and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from kcal.errors import InvalidInputError

if TYPE_CHECKING:
    import torch

MAX_SHOWN = 80
"""Characters of a value in an error message, at most."""


def check_seed(seed: Any) -> int:
    """Return the seed; raise if it is not an integer from 0 to 2⁶⁴ − 1, the range of torch and numpy."""
    return check_integer(seed, "seed", minimum=0, maximum=2**64 - 1)


def check_integer(value: Any, name: str, *, minimum: int, maximum: int, expected: str = "") -> int:
    """Return an integer; raise if ``value`` is not one or is out of bounds, which ``expected`` can put in words."""
    if isinstance(value, Integral) and not isinstance(value, bool | np.bool_) and minimum <= int(value) <= maximum:
        return int(value)
    expected = expected or f"must be an integer from {minimum:,} to {maximum:,}"
    raise InvalidInputError(name, expected, got=shown(value))


def check_number(
    value: Any, name: str, *, minimum: float, maximum: float = inf, exclusive: bool = False, expected: str = ""
) -> float:
    """Return a finite number; raise if ``value`` is not one or is out of bounds (which ``exclusive`` excludes)."""
    if isinstance(value, Real) and not isinstance(value, bool | np.bool_):
        try:
            number = float(value)
        except OverflowError:
            number = inf
        if isfinite(number) and (minimum < number < maximum if exclusive else minimum <= number <= maximum):
            return number
    if maximum == inf:
        bounds = f"greater than {minimum:g}" if exclusive else f"of at least {minimum:g}"
    else:
        bounds = f"{'strictly ' if exclusive else ''}between {minimum:g} and {maximum:g}"
    raise InvalidInputError(name, expected or f"must be a number {bounds}", got=shown(value))


def check_choice(value: Any, name: str, choices: Sequence[str]) -> str:
    """Return one of several words; raise if ``value`` is none of them."""
    if isinstance(value, str) and value in choices:
        return value
    raise InvalidInputError(name, f"must be one of {', '.join(map(repr, choices))}", got=shown(value))


def check_flag(value: Any, name: str) -> bool:
    """Return a truth value; raise if ``value`` is anything but True or False."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise InvalidInputError(name, "must be True or False", got=shown(value))


def check_device(device: Any) -> torch.device:
    """Return a device of torch; raise if there is none of this name, or if it cannot hold numbers."""
    import torch

    try:
        place = torch.device(device)
        torch.zeros(1, device=place).cpu()
    except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError, ImportError) as error:
        expected = 'must be a device of this machine, such as "cpu" or "cuda:0"'
        raise InvalidInputError("device", expected, got=shown(device)) from error
    return place


def shown(value: Any) -> str:
    """Return a short description of a value for an error message."""
    try:
        shape = getattr(value, "shape", None)
    except RuntimeError:  # a nested tensor
        shape = None
    if isinstance(shape, tuple):
        return f"{type(value).__name__} of shape {tuple(shape)}"
    if isinstance(value, str | int | float | list | tuple | dict | np.generic | None):
        try:
            text = repr(value)
        except ValueError:  # an integer of too many digits
            return f"a very long {type(value).__name__}"
        return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
    return f"an object of type {type(value).__name__}"
