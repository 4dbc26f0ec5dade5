"""Parameters that are fields of a dataclass, each declared with its check.

>>> from dataclasses import dataclass
>>> from kcal.validation import check_integer, parameter
>>> @dataclass
... class Training:
...     steps: int = parameter(400, check_integer, minimum=1, maximum=1000)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields
from functools import partial
from typing import Any


def parameter(default: Any, check: Callable[..., Any], **bounds: Any) -> Any:
    """Declare a field of a dataclass, with the function that checks its value by name and ``bounds``."""
    return field(default=default, metadata={"check": partial(check, **bounds)})


def checked_parameters(owner: Any) -> dict[str, Any]:
    """Return the checked values of the declared fields, by name; raise if one is invalid.

    The default, such as "auto" or None, needs no check.
    """
    values = {}
    for declared in fields(owner):
        if "check" in declared.metadata:
            value = getattr(owner, declared.name)
            is_default = type(value) is type(declared.default) and value == declared.default
            values[declared.name] = value if is_default else declared.metadata["check"](value, declared.name)
    return values
