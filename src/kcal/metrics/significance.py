"""Two tests of "the mean is higher" over reshuffles: pooled as published, and corrected for shared samples."""

import math
import operator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr

from kcal.errors import InvalidInputError

# Standard errors below this share of the values are rounding, and so are differences of that size.
ROUNDING = 1e-12


@dataclass(frozen=True)
class ReshuffleSummary:
    """Mean and standard deviation (ddof = 1; nan for a single value) over reshuffles."""

    mean: float
    std: float
    n_reshuffles: int

    def __str__(self) -> str:
        return f"{self.mean:.5f} ± {self.std:.5f}"


Reshuffles = ArrayLike | ReshuffleSummary
Checked = NDArray[np.float64] | ReshuffleSummary


def pooled_t_test(first: Reshuffles, second: Reshuffles) -> float:
    """One-sided p-value of "the mean of first is higher", unpaired: t = (x̄ − ȳ) / √(s²·(1/n + 1/m)).

    s² = ((n − 1)·s_x² + (m − 1)·s_y²) / (n + m − 2) is the pooled variance, with n + m − 2 degrees of freedom.
    Without variance the p-value is next to 0 or 1, or 0.5 for equal means; nan for one value on each side.
    """
    return pooled_p_value(check_reshuffles(first, "first"), check_reshuffles(second, "second"))


def corrected_resampled_t_test(first: ArrayLike, second: ArrayLike, *, n_calibration: int, n_test: int) -> float:
    """One-sided p-value of "the mean of first is higher", paired: t = d̄ / √(s_d²·(1/J + n_test/n_calibration)).

    d are the differences over J reshuffles, with J − 1 degrees of freedom. The plain paired test has only 1/J;
    the second term accounts for the samples that reshuffles share (Nadeau and Bengio, "Inference for the
    generalization error", 2003). Without variance the p-value is next to 0 or 1, or 0.5 for equal means;
    nan for J = 1.
    """
    share = check_sizes(n_calibration, n_test)
    return corrected_p_value(check_reshuffles(first, "first"), check_reshuffles(second, "second"), share)


def pooled_p_value(first: Checked, second: Checked) -> float:
    """Compute `pooled_t_test` of checked values."""
    x, y = summarize(first), summarize(second)
    freedom = x.n_reshuffles + y.n_reshuffles - 2
    if freedom == 0:
        return float("nan")
    squares = sum((s.n_reshuffles - 1) * s.std**2 for s in (x, y) if s.n_reshuffles > 1)
    standard_error = math.sqrt(squares / freedom * (1 / x.n_reshuffles + 1 / y.n_reshuffles))
    return _upper_tail(x.mean - y.mean, standard_error, freedom, scale=max(abs(x.mean), abs(y.mean)))


def corrected_p_value(first: Checked, second: Checked, share: float) -> float:
    """Compute `corrected_resampled_t_test` of checked values; share is n_test / n_calibration."""
    if isinstance(first, ReshuffleSummary) or isinstance(second, ReshuffleSummary):
        raise InvalidInputError(
            "the corrected test pairs the values of each reshuffle, and got a summary. "
            "Pass arrays, or leave out n_calibration and n_test."
        )
    if first.shape != second.shape:
        raise InvalidInputError(
            "the corrected test needs the same reshuffles for every method; "
            f"got {first.shape[0]} and {second.shape[0]} values. Leave out n_calibration and n_test otherwise."
        )
    n = first.shape[0]
    if n == 1:
        return float("nan")
    differences = first - second
    standard_error = float(differences.std(ddof=1)) * math.sqrt(1 / n + share)
    scale = float(max(np.abs(first).max(), np.abs(second).max()))
    return _upper_tail(float(differences.mean()), standard_error, n - 1, scale=scale)


def _upper_tail(difference: float, standard_error: float, freedom: int, *, scale: float) -> float:
    """Probability that Student's t exceeds difference / standard error; rounding is no difference."""
    standard_error = max(standard_error, ROUNDING * scale)
    return float(stdtr(freedom, -difference / standard_error)) if standard_error > 0 else 0.5


def summarize(entry: Checked) -> ReshuffleSummary:
    """Return mean and standard deviation."""
    if isinstance(entry, ReshuffleSummary):
        return entry
    std = float(entry.std(ddof=1)) if entry.shape[0] > 1 else float("nan")
    return ReshuffleSummary(float(entry.mean()), std, int(entry.shape[0]))


def check_reshuffles(entry: Reshuffles | None, name: str) -> Checked:
    """Check one number for each reshuffle, or a summary of them."""
    if isinstance(entry, ReshuffleSummary):
        good = entry.n_reshuffles >= 1 and math.isfinite(entry.mean) and (entry.std >= 0 or entry.n_reshuffles == 1)
        if not good:
            raise InvalidInputError(f"{name} must have a finite mean, a std of at least 0 and a count; got {entry!r}.")
        return entry
    try:
        array = np.asarray(entry, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{name} must be one number for each reshuffle; got {entry!r}.") from None
    if array.ndim != 1 or array.shape[0] == 0:
        raise InvalidInputError(f"{name} must be one number for each reshuffle; got shape {array.shape}.")
    if not np.isfinite(array).all():
        position = int(np.argmin(np.isfinite(array)))
        raise InvalidInputError(
            f"{name} must be finite; got {array[position]} at position {position}. "
            "Pass None for a method that has no value."
        )
    return array


def check_sizes(n_calibration: int | None, n_test: int | None) -> float:
    """Check both sizes and return n_test / n_calibration."""
    try:
        sizes = [operator.index(size) for size in (n_calibration, n_test)]  # type: ignore[arg-type]
    except TypeError:
        sizes = [0]
    if min(sizes) < 1:
        raise InvalidInputError(
            "n_calibration and n_test must both be whole numbers, at least 1, the samples fitted on and measured on "
            f"in each reshuffle; got {n_calibration!r} and {n_test!r}."
        )
    return sizes[1] / sizes[0]
