"""What a blend's parameters, and the columns of its logits, may be."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from kcal.calibrators.blend.network import PARTNERS
from kcal.calibrators.holdout import check_folds
from kcal.errors import InvalidInputError

if TYPE_CHECKING:
    from kcal.calibrators.blend.estimator import KCalBlend


WIDEST_SCALE = 1000
"""Beyond, and below one over it, a bandwidth tells nothing."""
LEAST_BACKGROUND = 1e-20
"""That single precision can spread over classes, however rare."""


def check_blend_parameters(blend: KCalBlend) -> None:
    """Refuse a parameter that cannot be meant."""
    if blend.folds is None or blend.folds == 1:
        raise InvalidInputError(f"folds must be an integer of at least 2; got {blend.folds!r}.")
    check_folds(blend.folds)
    check_scales(blend.bandwidth_factors)
    if not isinstance(blend.network_calibrator, str) or blend.network_calibrator not in PARTNERS:
        raise InvalidInputError(f"network_calibrator must be one of {PARTNERS}; got {blend.network_calibrator!r}.")
    if not is_number(blend.bias) or blend.bias < 0:
        raise InvalidInputError(f"bias must be a number of at least 0; got {blend.bias!r}.")
    if not is_number(blend.sharpness) or blend.sharpness < 0:
        raise InvalidInputError(f"sharpness must be a number of at least 0; got {blend.sharpness!r}.")
    if not (isinstance(blend.background, str) and blend.background == "cv") and not (
        is_number(blend.background) and LEAST_BACKGROUND <= blend.background <= 1  # type: ignore[operator]
    ):
        raise InvalidInputError(
            f'background must be "cv" or a number from {LEAST_BACKGROUND:g} to 1; got {blend.background!r}.'
        )
    if not is_number(blend.fallback_quantile) or not 0 <= blend.fallback_quantile < 1:
        raise InvalidInputError(
            f"fallback_quantile must be a share, at least 0 and below 1; got {blend.fallback_quantile!r}."
        )


def is_number(value: Any) -> bool:
    """Say whether a value is a finite number."""
    return isinstance(value, Real) and not isinstance(value, bool) and bool(np.isfinite(float(value)))


def check_scales(bandwidth_factors: Any) -> tuple[float, ...]:
    """Return the bandwidth_factors, ascending; refuse what is none."""
    try:
        found = () if isinstance(bandwidth_factors, str) else tuple(sorted(float(scale) for scale in bandwidth_factors))
    except (TypeError, ValueError):
        found = ()
    names = {name_of_scale(scale) for scale in found}
    within = all(1 / WIDEST_SCALE <= scale <= WIDEST_SCALE for scale in found)
    if not found or not within or 1.0 not in found or len(names) != len(found):
        raise InvalidInputError(
            f"bandwidth_factors must be a sequence of positive numbers, 1 among them, such as (0.5, 1, 2); "
            f"from 1/{WIDEST_SCALE} to {WIDEST_SCALE}, and different in their first three digits; "
            f"got {bandwidth_factors!r}."
        )
    return found


def name_of_scale(scale: float) -> str:
    """Return how a bandwidth, in units of the best one, is called."""
    return f"{scale:.3g}"


def names_of(logits: Any) -> list[str]:
    """Return what the columns of a table are called; nothing of an array."""
    return [str(name) for name in getattr(logits, "columns", [])]


def check_names(logits: Any, known: list[str]) -> None:
    """Refuse a table whose columns are others than those of the fit, or in another order."""
    names = names_of(logits)
    if names and known and names != known:
        raise InvalidInputError(
            f"the columns of logits must be those of the fit, in the same order: {', '.join(known)}; "
            f"got {', '.join(names)}."
        )
