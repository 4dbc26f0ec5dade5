"""Check the parameters of a KCal, when it is fitted and when it is loaded."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from kcal.errors import InvalidInputError
from kcal.kernels import get_kernel
from kcal.projection import ARCHITECTURES, check_dimension, check_projection, get_recipe
from kcal.validation import check_integer, check_number, shown

MAX_FOLDS = 10**6


def check_parameters(parameters: dict[str, Any]) -> None:
    """Raise if a parameter of a KCal is invalid; the prior is checked with the classes."""
    get_kernel(parameters["kernel"])
    get_recipe(parameters["recipe"])
    check_learned_projection(parameters["projection"], parameters["dimension"])
    smoothing = check_number(parameters["smoothing"], "smoothing", minimum=0, maximum=1)
    if smoothing == 1:
        raise InvalidInputError("smoothing", "must be less than 1", got="1")
    if parameters["folds"] is not None:
        check_integer(parameters["folds"], "folds", minimum=2, maximum=MAX_FOLDS)
    _check_bandwidth(parameters["bandwidth"], parameters["bandwidth_reference"])
    for name in ("bandwidth_interval", "bandwidth_reference"):
        _check_pair(parameters[name], name)
    interval = parameters["bandwidth_interval"]
    if interval is not None and not interval[0] < interval[1]:
        raise InvalidInputError("bandwidth_interval", "must be (low, high) with 0 < low < high", got=shown(interval))


def check_learned_projection(projection: Any, dimension: Any) -> None:
    """Raise if ``projection`` is invalid, or if ``dimension`` does not apply to it."""
    check_projection(projection)
    check_dimension(dimension)
    if dimension != "auto" and not (isinstance(projection, str) and projection in ARCHITECTURES):
        raise InvalidInputError(
            "dimension", f"applies to the projections {', '.join(ARCHITECTURES)} only", remedy='Leave it at "auto".'
        )


def _check_bandwidth(bandwidth: Any, reference: Any) -> None:
    if isinstance(bandwidth, str) and bandwidth in ("cv", "rule"):
        if bandwidth == "rule" and reference is None:
            raise InvalidInputError("bandwidth", '"rule" needs bandwidth_reference=(b, count of the rarest class)')
        return
    try:
        check_number(bandwidth, "bandwidth", minimum=0, maximum=inf, exclusive=True)
    except InvalidInputError as error:
        raise InvalidInputError(
            "bandwidth", 'must be "cv", "rule" or a positive number', got=shown(bandwidth)
        ) from error


def _check_pair(pair: Any, name: str) -> None:
    if pair is None:
        return
    expected = "must be a pair of two positive, finite numbers"
    if isinstance(pair, np.ndarray) or not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InvalidInputError(name, expected, got=shown(pair))
    try:
        for number in pair:
            check_number(number, name, minimum=0, maximum=inf, exclusive=True)
    except InvalidInputError as error:
        raise InvalidInputError(name, expected, got=shown(pair)) from error
