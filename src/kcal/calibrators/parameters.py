"""What the parameters of a KCal may be, checked when it is fitted and when it is loaded."""

from __future__ import annotations

from math import isfinite
from numbers import Integral, Real
from typing import TYPE_CHECKING

from kcal.calibrators.training_set import check_projection
from kcal.errors import InvalidInputError
from kcal.kernels import get_kernel
from kcal.projection import ARCHITECTURES, choose_dimension, get_recipe

if TYPE_CHECKING:
    from kcal.calibrators.kcal import KCal


def check_parameters(calibrator: KCal) -> None:
    """Refuse a parameter that cannot be meant."""
    get_kernel(calibrator.kernel)
    get_recipe(calibrator.recipe)
    check_projection(calibrator.projection)
    if calibrator.dimension != "auto" and calibrator.projection not in ARCHITECTURES:
        raise InvalidInputError('dimension applies to the projections "skip" and "linear"; leave it at "auto".')
    if calibrator.dimension != "auto":
        choose_dimension(calibrator.dimension, 1)
    if not isinstance(calibrator.seed, Integral) or calibrator.seed < 0:
        raise InvalidInputError(f"seed must be an integer of at least 0; got {calibrator.seed!r}.")
    for name in ("bandwidth_interval", "bandwidth_reference"):
        pair = getattr(calibrator, name)
        if pair is not None and not (isinstance(pair, tuple | list) and len(pair) == 2):
            raise InvalidInputError(f"{name} must be a pair of numbers; got {pair!r}.")
    if not (isinstance(calibrator.smoothing, Real) and 0 <= calibrator.smoothing < 1):
        raise InvalidInputError(f"smoothing must be at least 0 and less than 1; got {calibrator.smoothing!r}.")
    if calibrator.bandwidth == "rule" and calibrator.bandwidth_reference is None:
        raise InvalidInputError('bandwidth="rule" needs bandwidth_reference=(b, count of the rarest class).')
    b = calibrator.bandwidth
    is_number = isinstance(b, Real) and not isinstance(b, bool) and isfinite(b) and b > 0
    if not is_number and not (isinstance(b, str) and b in ("cv", "rule")):
        raise InvalidInputError(f'bandwidth must be "cv", "rule" or a positive number; got {calibrator.bandwidth!r}.')
