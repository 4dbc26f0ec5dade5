"""Check the parameters of a blend, when it is fitted and when it is loaded."""

from __future__ import annotations

from typing import Any

from kcal.calibrators.kcal.parameters import MAX_FOLDS, check_learned_projection
from kcal.errors import InvalidInputError
from kcal.projection import ARCHITECTURES, TrainedProjection, get_recipe
from kcal.validation import check_choice, check_integer, check_number, shown

MAX_FACTOR = 1000.0
MAX_SPREAD = 1e6
MIN_BACKGROUND = 1e-20
"""Smallest background that single precision can spread over classes, however rare."""


def check_blend_parameters(parameters: dict[str, Any]) -> None:
    """Raise if a parameter of a blend is invalid; the prior is checked with the classes."""
    projection = parameters["projection"]
    if isinstance(projection, str) and projection in ARCHITECTURES:
        check_learned_projection(projection, parameters["dimension"])
    elif projection is not None and not isinstance(projection, TrainedProjection):
        expected = f"must be {', '.join(map(repr, ARCHITECTURES))}, a TrainedProjection or None"
        raise InvalidInputError("projection", expected, got=shown(projection))
    get_recipe(parameters["recipe"])
    check_factors(parameters["bandwidth_factors"])
    check_choice(parameters["network_calibrator"], "network_calibrator", ("auto", "ts", "sms"))
    check_integer(parameters["folds"], "folds", minimum=2, maximum=MAX_FOLDS)
    for name in ("bias", "sharpness"):
        check_number(parameters[name], name, minimum=0, maximum=MAX_SPREAD)
    check_number(parameters["fallback_quantile"], "fallback_quantile", minimum=0, maximum=0.999)
    background = parameters["background"]
    if not (isinstance(background, str) and background == "cv"):
        try:
            check_number(background, "background", minimum=MIN_BACKGROUND, maximum=1)
        except InvalidInputError as error:
            expected = f'must be "cv" or a number from {MIN_BACKGROUND:g} to 1'
            raise InvalidInputError("background", expected, got=shown(background)) from error


def check_factors(factors: Any) -> tuple[float, ...]:
    """Return the bandwidth factors in ascending order."""
    try:
        values = () if isinstance(factors, str) else tuple(sorted(float(factor) for factor in factors))
    except (TypeError, ValueError, OverflowError):
        values = ()
    within = all(1 / MAX_FACTOR <= value <= MAX_FACTOR for value in values)
    if not within or 1.0 not in values or len({f"{value:.3g}" for value in values}) != len(values):
        raise InvalidInputError(
            "bandwidth_factors",
            f"must be a sequence of numbers from {1 / MAX_FACTOR:g} to {MAX_FACTOR:g} that differ in their first three "
            "digits, 1 among them",
            got=shown(factors),
            remedy="Pass (0.5, 1, 2), for example.",
        )
    return values
