"""What a seed and the parameters of a KCal may be, checked when a calibrator is fitted and when it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from kcal.calibrators.holdout import check_folds
from kcal.calibrators.kcal.training_set import check_projection
from kcal.errors import InvalidInputError
from kcal.kernels import get_kernel
from kcal.projection import ARCHITECTURES, choose_dimension, get_recipe
from kcal.validation import check_seed

if TYPE_CHECKING:
    from kcal.calibrators.kcal.estimator import KCal


def check_parameters(calibrator: KCal) -> None:
    """Refuse a parameter that cannot be meant."""
    get_kernel(calibrator.kernel)
    get_recipe(calibrator.recipe)
    _refuse_arrays(calibrator, "projection", "dimension", "bandwidth")
    check_projection(calibrator.projection)
    if calibrator.dimension != "auto" and calibrator.projection not in ARCHITECTURES:
        raise InvalidInputError('dimension applies to the projections "skip" and "linear"; leave it at "auto".')
    if calibrator.dimension != "auto":
        choose_dimension(calibrator.dimension, 1, 1)
    check_seed(calibrator.seed)
    if not (isinstance(calibrator.smoothing, Real) and 0 <= calibrator.smoothing < 1):
        raise InvalidInputError(f"smoothing must be at least 0 and less than 1; got {calibrator.smoothing!r}.")
    if calibrator.folds is not None:
        check_folds(calibrator.folds)
    _check_bandwidth(calibrator)
    _check_prior_numbers(calibrator.prior)


def _check_bandwidth(calibrator: KCal) -> None:
    b = calibrator.bandwidth
    if not _is_positive(b) and not (isinstance(b, str) and b in ("cv", "rule")):
        raise InvalidInputError(f'bandwidth must be "cv", "rule" or a positive number; got {b!r}.')
    for name in ("bandwidth_interval", "bandwidth_reference"):
        pair = getattr(calibrator, name)
        if pair is not None and not (isinstance(pair, tuple | list) and len(pair) == 2):
            raise InvalidInputError(f"{name} must be a pair of numbers; got {pair!r}.")
        if pair is not None and not all(_is_positive(number) for number in pair):
            raise InvalidInputError(f"{name} must be two positive, finite numbers; got {pair!r}.")
    if b == "rule" and calibrator.bandwidth_reference is None:
        raise InvalidInputError('bandwidth="rule" needs bandwidth_reference=(b, count of the rarest class).')


def _check_prior_numbers(prior: Any) -> None:
    """Refuse a prior that holds anything but numbers; how many, and which, depends on the classes."""
    if prior is None or isinstance(prior, str):
        return
    shares = list(prior.values()) if isinstance(prior, Mapping) else prior
    try:
        np.asarray(shares, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"prior must be one number a class, such as [0.7, 0.2, 0.1]; got {prior!r}.") from error


def _refuse_arrays(calibrator: KCal, *names: str) -> None:
    """Refuse arrays for what is one word or number, before a comparison of them fails."""
    for name in names:
        value = getattr(calibrator, name)
        if isinstance(value, np.ndarray):
            raise InvalidInputError(f"{name} must be a single value; got an array of shape {value.shape}.")


def _is_positive(number: Any) -> bool:
    try:
        return isinstance(number, Real) and not isinstance(number, bool) and isfinite(number) and float(number) > 0
    except OverflowError:  # a whole number that is too large for floating point
        return False
