"""Calibration of the confidence in subgroups: sites, devices, sexes, years.

With the shares s_i of the rows (1/n, or their weights over the sum) and the confidences c_i, the gap of a subgroup is

    accuracy − mean confidence = Σ s_i·(o_i − c_i),    o_i = 1 if the top class is right, else 0.

Two hypotheses are tested for each subgroup: "its gap is 0", and "its gap is that of all other samples". A subgroup
differs if both are rejected: a healthy one is not marked because a bad one is among the others. Under both, the rate of
row i is c_i + δ, with δ = 0 or the gap of all samples, and the variance of a gap is Σ s_i²·q_i·(1 − q_i) with
q_i = c_i + δ; with groups, whose rows may err together, the variance of the sums of groups if that is larger. The
p-values are corrected for the number of subgroups by Holm's method: the probability that any subgroup is marked, if all
hypotheses hold, is at most 1 − confidence.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as student

from kcal.errors import InvalidInputError, KcalWarning, warn
from kcal.metrics.binning import sort_event
from kcal.metrics.intervals import estimate_error, measure_gaps
from kcal.metrics.predictions import Binning, Predictions
from kcal.metrics.resampling import Resampling
from kcal.validation import check_groups, check_vector, check_weights

if TYPE_CHECKING:
    import pandas

Array = NDArray[np.float64]
MAX_SUBGROUPS = 1000
MIN_CONTINUOUS = 10
"""Subgroups from which a column of single samples looks continuous."""
RANGES = "Cut numbers into ranges, as by pandas.cut."
MIN_WIDTH = 80
"""Of the lines below a table."""


@dataclass(frozen=True, eq=False)
class SubgroupEvaluation:
    """Accuracy, mean confidence and ECE of each subgroup, sorted by name; arrays are (n_subgroups,)."""

    by: str  # name of the column
    names: NDArray[Any]
    counts: NDArray[np.intp]  # samples
    accuracy: Array
    mean_confidence: Array
    error: Array  # ECE
    debiased: Array  # ECE without the part that chance adds
    low: Array  # ends of the interval of the ECE; nan for a subgroup of a single sample or group
    high: Array
    p_values: Array  # of "accuracy and mean confidence are equal", after Holm's correction
    difference_p_values: Array  # of "the gap is that of all other samples", after Holm's correction
    confidence: float  # of the intervals, and 1 − the level of the tests

    @property
    def gap(self) -> Array:
        """Accuracy minus mean confidence: negative where the confidence is too high."""
        return self.accuracy - self.mean_confidence

    @property
    def direction(self) -> list[str]:
        """Where the mean confidence is so beyond chance, "too high" or "too low"; elsewhere empty."""
        found = self.p_values < 1 - self.confidence
        return [
            ("too high" if gap < 0 else "too low") if mark else "" for gap, mark in zip(self.gap, found, strict=True)
        ]

    @property
    def differs(self) -> NDArray[np.bool_]:
        """Whether the gap is beyond chance, and so is its difference from that of the other samples."""
        level = 1 - self.confidence
        return np.asarray((self.p_values < level) & (self.difference_p_values < level))

    @property
    def has_intervals(self) -> bool:
        """Whether an interval of an ECE is known."""
        return bool(np.isfinite(self.low).any())

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas DataFrame with one row per subgroup."""
        import pandas

        ends = ("debiased", "low", "high") if self.has_intervals else ()
        columns = {"samples": self.counts, "accuracy": self.accuracy, "mean_confidence": self.mean_confidence}
        columns |= {"gap": self.gap, "ECE": self.error} | {name: getattr(self, name) for name in ends}
        tests = ("direction", "p_values", "differs", "difference_p_values")
        columns |= {name: getattr(self, name) for name in tests}
        return pandas.DataFrame(columns, index=pandas.Index(self.names, name=self.by))

    def __str__(self) -> str:
        frame = self.to_frame().drop(columns=["gap", "p_values", "difference_p_values"])
        percentages = [
            name for name in ("accuracy", "mean_confidence", "ECE", "debiased", "low", "high") if name in frame
        ]
        frame[percentages] *= 100
        frame = frame.rename(columns={name: f"{name.replace('_', ' ')}, %" for name in percentages})
        frame["differs"] = np.where(self.differs, "yes", "")
        text = frame.to_string(float_format="{:.2f}".format, na_rep="–")
        return "\n".join([text, *textwrap.wrap(self.note, max(MIN_WIDTH, len(text.partition("\n")[0])))])

    @property
    def note(self) -> str:
        """What the columns of the table are, in words."""
        level, several = f"{100 * (1 - self.confidence):.6g} %", len(self.names) > 1
        ends = (
            f"low and high: {100 * self.confidence:.6g} % interval of the debiased ECE. " if self.has_intervals else ""
        )
        other = "; differs: this gap is not that of the other samples either" if several else ""
        corrected = f", corrected for {len(self.names):,} subgroups by Holm's method" if several else ""
        text = (
            f"{ends}Direction: the mean confidence is too high or too low{other}; beyond chance, at a level of {level}"
        )
        return f"{text}{corrected}."


def evaluate_subgroups(
    predictions: Predictions,
    codes: NDArray[np.int64],
    names: NDArray[Any],
    by: str,
    binning: Binning,
    options: Resampling,
) -> SubgroupEvaluation:
    """Return the calibration of each subgroup; ``codes`` are the subgroup of every row of the predictions."""
    rows = [codes == code for code in range(len(names))]
    parts = [predictions.rows(chosen) for chosen in rows]
    if predictions.groups is not None:
        single = [str(name) for name, part in zip(names, parts, strict=True) if part.n_units == 1]
        if single:
            some = f"{len(single):,} of the {len(names):,} subgroups ({', '.join(single[:5])}) have a single group"
            message = f"{some}: their intervals and tests are nan."
            warn(message, KcalWarning, remedy="Leave groups out if rows are independent.")
    errors = np.array([_estimate(part, binning, options) for part in parts])  # (n_subgroups, 4)
    shift = _gap(predictions, 0.0).value
    gaps = [_gap(part, 0.0) for part in parts]
    alike = [
        _p_value(_gap(part, shift), _gap(predictions.rows(~chosen), shift)) if not chosen.all() else float("nan")
        for part, chosen in zip(parts, rows, strict=True)
    ]
    return SubgroupEvaluation(
        by=by,
        names=names,
        counts=np.array([part.n_samples for part in parts]),
        accuracy=np.array([part.mean(part.correct) for part in parts]),
        mean_confidence=np.array([part.mean(part.confidences.astype(np.float64)) for part in parts]),
        error=errors[:, 0],
        debiased=errors[:, 1],
        low=errors[:, 2],
        high=errors[:, 3],
        p_values=holm([_p_value(gap) for gap in gaps]),
        difference_p_values=holm(alike),
        confidence=options.confidence,
    )


def check_subgroups(by: Any, sample_weight: Any, n_samples: int) -> tuple[NDArray[np.int64], NDArray[Any], str]:
    """Return the code of the subgroup of every row of positive weight, the names of the codes and of the column."""
    values = check_vector(by, n_samples, "by")
    codes = check_groups(values, n_samples, "by")
    if sample_weight is not None:
        present = check_weights(sample_weight, n_samples) > 0
        codes, values = codes[present], values[present]
    found, first, codes = np.unique(codes, return_index=True, return_inverse=True)
    if len(found) > MAX_SUBGROUPS:
        raise InvalidInputError(
            "by", f"must have at most {MAX_SUBGROUPS:,} values", got=f"{len(found):,}", remedy=RANGES
        )
    n_single = int((np.bincount(codes) == 1).sum())
    if len(found) >= MIN_CONTINUOUS and 2 * n_single > len(found):
        warn(f"{n_single:,} of the {len(found):,} subgroups of by have a single sample.", KcalWarning, remedy=RANGES)
    return codes, values[first], str(getattr(by, "name", None) or "subgroup")


def _estimate(part: Predictions, binning: Binning, options: Resampling) -> tuple[float, float, float, float]:
    """Return the ECE of a subgroup, its debiased estimate and the ends of its interval."""
    gaps = measure_gaps([("confidence", sort_event(part, "confidence"))], binning, part.groups)
    error = float(np.abs(gaps.measured).sum())
    if part.n_units < 2:
        return error, float("nan"), float("nan"), float("nan")
    resampling = Resampling(options.confidence, options.resamples, options.seed, part.groups)
    debiased, interval = estimate_error(gaps, resampling)
    return error, debiased, *interval


class Gap(NamedTuple):
    """Accuracy minus mean confidence of some rows."""

    value: float
    variance: float
    step: float  # half of what one sample changes, for the correction of continuity
    freedom: float  # of Student's t: groups − 1, or infinite


def _gap(part: Predictions, shift: float) -> Gap:
    """Return the gap of some rows, and its variance if every rate is the confidence plus ``shift``."""
    shares = part.row_weights / part.row_weights.sum()
    confidences = part.confidences.astype(np.float64)
    residuals = part.correct - confidences
    rates = np.clip(confidences + shift, 0.0, 1.0)
    variance, freedom = float(shares**2 @ (rates * (1 - rates))), np.inf
    if part.groups is not None:
        freedom = part.n_units - 1
        sums = np.bincount(part.groups, weights=shares * (residuals - shift))
        variance = max(variance, float(sums @ sums) * part.n_units / max(freedom, 1))
    return Gap(float(shares @ residuals), variance, 0.5 * float(shares @ shares), freedom)


def _p_value(first: Gap, second: Gap | None = None) -> float:
    """Return the two-sided p-value of "the gap is 0", or of "two gaps are equal"."""
    second = second or Gap(0.0, 0.0, 0.0, np.inf)
    freedom = min(first.freedom, second.freedom)
    if freedom < 1:
        return float("nan")
    distance = abs(first.value - second.value) - first.step - second.step
    if distance <= 0:
        return 1.0
    deviation = np.sqrt(first.variance + second.variance)
    return float(2 * student.sf(distance / deviation, freedom)) if deviation > 0 else 0.0


def holm(p_values: ArrayLike) -> Array:
    """Return p-values corrected for their number by Holm's method: p_(i) times m − i + 1, not below smaller ones."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)[: np.isfinite(p).sum()]  # nan is last
    corrected = np.full(len(p), np.nan)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1.0)
    return corrected
