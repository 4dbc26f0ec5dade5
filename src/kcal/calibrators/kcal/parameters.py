"""Check the parameters of KCal and of the blend, when they are fitted and when they are loaded."""

from __future__ import annotations

import sys
from typing import Any

from kcal.errors import InvalidInputError
from kcal.projection import ARCHITECTURES, check_dimension, check_projection
from kcal.validation import check_number, shown


def check_learned_projection(projection: Any, dimension: Any) -> None:
    """Raise if ``projection`` is invalid, or if ``dimension`` does not apply to it."""
    check_projection(projection)
    check_dimension(dimension)
    if dimension != "auto" and not (isinstance(projection, str) and projection in ARCHITECTURES):
        raise InvalidInputError(
            "dimension", f"applies to the projections {', '.join(ARCHITECTURES)} only", remedy='Leave it at "auto".'
        )


def check_bandwidth(bandwidth: Any, reference: Any) -> None:
    """Raise if a bandwidth is not "cv", "published", "rule" (which needs a reference) or a positive number."""
    if isinstance(bandwidth, str) and bandwidth == "rule" and reference is None:
        raise InvalidInputError("bandwidth", '"rule" needs bandwidth_reference=(b, size of the rarest class)')
    if not (isinstance(bandwidth, str) and bandwidth in ("cv", "published", "rule")):
        expected = 'must be "cv", "published", "rule" or a positive number'
        check_number(bandwidth, "bandwidth", minimum=sys.float_info.min, expected=expected)


def check_pair(pair: Any, name: str) -> None:
    """Raise if a pair is not a tuple or list of two positive numbers."""
    if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(map(is_number, pair))):
        raise InvalidInputError(name, "must be a pair of two positive, finite numbers", got=shown(pair))


def is_number(value: Any, minimum: float = sys.float_info.min, maximum: float = sys.float_info.max) -> bool:
    """Return whether ``value`` is a number within bounds, by default a positive one."""
    try:
        check_number(value, "", minimum=minimum, maximum=maximum)
    except InvalidInputError:
        return False
    return True
