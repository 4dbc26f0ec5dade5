"""Two tests of "the mean is higher" over repeated splits: pooled as published, and corrected for shared samples."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr

from kcal.errors import InvalidInputError
from kcal.validation import check_integer, check_number, shown, to_numbers

# Standard errors and differences below this fraction of the values are rounding errors.
ROUNDING = 1e-12
UNPAIRED = "Without n_calibration and n_test, only the pooled test is computed."
MOST_SAMPLES = 10**15


@dataclass(frozen=True)
class SplitSummary:
    """Mean and standard deviation (ddof = 1; nan for a single value) over splits."""

    mean: float
    std: float
    n_splits: int

    def __str__(self) -> str:
        return f"{self.mean:.5f} ± {self.std:.5f}"


SplitValues = ArrayLike | SplitSummary
Checked = NDArray[np.float64] | SplitSummary


def pooled_t_test(first: SplitValues, second: SplitValues) -> float:
    """One-sided p-value of "the mean of first is higher", unpaired: t = (x̄ − ȳ) / √(s²·(1/n + 1/m)).

    s² = ((n − 1)·s_x² + (m − 1)·s_y²) / (n + m − 2) is the pooled variance, with n + m − 2 degrees of freedom.
    Without variance the p-value is next to 0 or 1, or 0.5 for equal means; nan for one value on each side.
    """
    return pooled_p_value(check_splits(first, "first"), check_splits(second, "second"))


def corrected_resampled_t_test(first: ArrayLike, second: ArrayLike, *, n_calibration: int, n_test: int) -> float:
    """One-sided p-value of "the mean of first is higher", paired: t = d̄ / √(s_d²·(1/J + n_test/n_calibration)).

    d are the differences over J splits, with J − 1 degrees of freedom. The plain paired test has only 1/J;
    the second term accounts for the samples that splits share (Nadeau and Bengio, "Inference for the
    generalization error", 2003). Without variance the p-value is next to 0 or 1, or 0.5 for equal means;
    nan for J = 1.
    """
    share = check_sizes(n_calibration, n_test)
    return corrected_p_value(check_splits(first, "first"), check_splits(second, "second"), share)


def pooled_p_value(first: Checked, second: Checked) -> float:
    """Compute `pooled_t_test` of checked values."""
    x, y = summarize(first), summarize(second)
    freedom = x.n_splits + y.n_splits - 2
    if freedom == 0:
        return float("nan")
    squares = sum((s.n_splits - 1) * s.std**2 for s in (x, y) if s.n_splits > 1)
    standard_error = math.sqrt(squares / freedom * (1 / x.n_splits + 1 / y.n_splits))
    return _upper_tail(x.mean - y.mean, standard_error, freedom, scale=max(abs(x.mean), abs(y.mean)))


def corrected_p_value(first: Checked, second: Checked, share: float) -> float:
    """Compute `corrected_resampled_t_test` of checked values; share is n_test / n_calibration."""
    if isinstance(first, SplitSummary) or isinstance(second, SplitSummary):
        raise InvalidInputError("values", "must be arrays for the corrected test", got="a summary", remedy=UNPAIRED)
    if first.shape != second.shape:
        got = f"{len(first)} and {len(second)} values"
        expected = "must have the same splits for every method in the corrected test"
        raise InvalidInputError("values", expected, got=got, remedy=UNPAIRED)
    n = first.shape[0]
    if n == 1:
        return float("nan")
    differences = first - second
    standard_error = float(differences.std(ddof=1)) * math.sqrt(1 / n + share)
    scale = float(max(np.abs(first).max(), np.abs(second).max()))
    return _upper_tail(float(differences.mean()), standard_error, n - 1, scale=scale)


def _upper_tail(difference: float, standard_error: float, freedom: int, *, scale: float) -> float:
    """Return the probability that Student's t exceeds difference / standard error."""
    standard_error = max(standard_error, ROUNDING * scale)
    return float(stdtr(freedom, -difference / standard_error)) if standard_error > 0 else 0.5


def summarize(entry: Checked) -> SplitSummary:
    """Return mean and standard deviation."""
    if isinstance(entry, SplitSummary):
        return entry
    std = float(entry.std(ddof=1)) if entry.shape[0] > 1 else float("nan")
    return SplitSummary(float(entry.mean()), std, int(entry.shape[0]))


def check_splits(entry: Any, name: str) -> Checked:
    """Return one finite number per split, or a summary of them."""
    if isinstance(entry, SplitSummary):
        n = check_integer(entry.n_splits, f"{name}.n_splits", minimum=1, maximum=MOST_SAMPLES)
        check_number(entry.mean, f"{name}.mean", minimum=-inf)
        if n > 1:
            check_number(entry.std, f"{name}.std", minimum=0)
        return entry
    array = to_numbers(entry, name).astype(np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise InvalidInputError(name, "must have one number per split", got=f"shape {array.shape}")
    if not np.isfinite(array).all():
        position = int(np.argmin(np.isfinite(array)))
        got = f"{array[position]} at position {position}"
        raise InvalidInputError(name, "must be finite", got=got, remedy="Pass None for a method without values.")
    return array


def check_mapping(entries: Any, name: str, form: str) -> Mapping[str, Any]:
    """Return a mapping from names, such as {method: values}."""
    if isinstance(entries, Mapping) and all(isinstance(key, str) for key in entries):
        return entries
    raise InvalidInputError(name, "must be a mapping from names", got=shown(entries), remedy=f"Pass {form}.")


def check_sizes(n_calibration: Any, n_test: Any) -> float:
    """Return n_test / n_calibration, the numbers of samples fitted on and tested on in each split."""
    calibration = check_integer(n_calibration, "n_calibration", minimum=1, maximum=MOST_SAMPLES)
    return check_integer(n_test, "n_test", minimum=1, maximum=MOST_SAMPLES) / calibration
