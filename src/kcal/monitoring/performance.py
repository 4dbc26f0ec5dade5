"""Performance on unlabelled samples, as calibrated probabilities expect it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from kcal.errors import InvalidInputError
from kcal.metrics import METRICS
from kcal.monitoring.betting import Floats, check_named_probs, sum_by_group
from kcal.validation import (
    ALMOST_ZERO,
    check_choice,
    check_groups,
    check_number,
)

if TYPE_CHECKING:
    import pandas

Index = NDArray[np.int64]

MAX_SHOWN = 50
TITLES = {name: METRICS[name].description for name in ("accuracy", "negative_log_likelihood", "multiclass_brier_loss")}

MAX_VALUES = {"accuracy": 1.0, "negative_log_likelihood": np.inf, "multiclass_brier_loss": np.inf}


class Estimate(NamedTuple):
    """An expected value and its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class PerformanceEstimate:
    """Expected performance on unlabelled samples.

    Attributes
    ----------
    accuracy, negative_log_likelihood, multiclass_brier_loss : Estimate
        Expected value and interval.
    recall, precision : array, (n_classes, 3)
        Of each class: expected value, low and high end. Without predictions of a class its precision is nan, without
        any probability its recall.
    counts : array, (n_classes,)
        Expected number of samples of each class.
    """

    accuracy: Estimate
    negative_log_likelihood: Estimate
    multiclass_brier_loss: Estimate
    recall: Floats = field(repr=False)
    precision: Floats = field(repr=False)
    counts: Floats = field(repr=False)
    classes: NDArray[Any] = field(repr=False)
    n_samples: int
    confidence: float
    target: str

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas DataFrame with one row per metric, and per class for recall and precision."""
        import pandas

        rows: dict[tuple[str, Any], Any] = {(name, ""): getattr(self, name) for name in TITLES}
        for name in ("recall", "precision"):
            rows |= {(name, label): row for label, row in zip(self.classes.tolist(), getattr(self, name), strict=True)}
        index = pandas.MultiIndex.from_tuples(rows, names=["metric", "class"])
        return pandas.DataFrame([tuple(row) for row in rows.values()], index=index, columns=["value", "low", "high"])

    def __str__(self) -> str:
        title = f"{self.n_samples:,} samples without labels, {len(self.classes):,} classes"
        table = self.to_frame().rename(TITLES, level="metric")
        lines = table.to_string(index_names=False, max_rows=MAX_SHOWN, float_format="{:.5f}".format)
        return f"{title}, {100 * self.confidence:.6g} % intervals\n{lines}"


def estimate_performance(
    probs: ArrayLike,
    *,
    classes: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    target: str = "rows",
    confidence: float = 0.95,
) -> PerformanceEstimate:
    """Estimate accuracy, log-loss, Brier loss, recall and precision of unlabelled samples from calibrated predictions.

    If probabilities are calibrated, the labels of the rows are as if drawn from them, and every metric has a known
    expectation and variance: a row of predictions p is right with probability max p, its log-loss is −Σ p·log p on
    average, its Brier loss (1 − Σ p²)/K, the mean over K
    classes. Where class frequencies have changed, correct the predictions first
    (:func:`estimate_prior`, ``with_prior``). What changes otherwise, predictions cannot tell.

    Parameters
    ----------
    probs
        Calibrated probabilities, (n_samples, n_classes), or (n_samples,) of the second of two classes.
    classes
        The label of every column, for display.
    groups
        Patients, recordings, (n_samples,), with target "population": whole groups are drawn from it.
    target : "rows" or "population"
        What the intervals are to contain: the value that the labels of these rows would give, or that of the
        population which the rows, or groups, are drawn from, independently. Neither includes the error of the
        calibration.
    confidence
        Of the intervals, which are normal ones.
    """
    checked, names = check_named_probs(probs, classes)
    check_choice(target, "target", ("rows", "population"))
    if groups is not None and target != "population":
        expected, remedy = 'apply to target="population" only', "Leave them out: labels are drawn row by row."
        raise InvalidInputError("groups", expected, got=f"target={target!r}", remedy=remedy)
    if target == "population" and len(checked) < 2:
        raise InvalidInputError("probs", "must have at least two rows for intervals of the population", got="1")
    codes = None if groups is None else check_groups(groups, len(checked), minimum=2)
    confidence = check_number(confidence, "confidence", minimum=0, maximum=1, exclusive=True)
    quantile = float(ndtri(0.5 + confidence / 2))
    means, variances = row_moments(checked)
    overall = {
        name: _estimate(
            means[name], None if target == "population" else variances[name], codes, quantile, highest=MAX_VALUES[name]
        )
        for name in TITLES
    }
    recall, precision = _by_class(checked, target, codes, quantile)
    counts = checked.sum(axis=0)
    return PerformanceEstimate(
        **overall,
        recall=recall,
        precision=precision,
        counts=counts,
        classes=names,
        n_samples=len(checked),
        confidence=confidence,
        target=target,
    )


def row_moments(probs: Floats) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return mean and variance of each metric over the labels of each row, (n_samples,), by name."""
    n_classes, top, squares = probs.shape[1], probs.max(axis=1), (probs**2).sum(axis=1)
    logs = np.log(np.maximum(probs, ALMOST_ZERO))
    entropies = -(probs * logs).sum(axis=1)
    means = {
        "accuracy": top,
        "negative_log_likelihood": entropies,
        "multiclass_brier_loss": (1.0 - squares) / n_classes,
    }
    variances = {
        "accuracy": top * (1.0 - top),
        "negative_log_likelihood": (probs * logs**2).sum(axis=1) - entropies**2,
        "multiclass_brier_loss": 4.0 * ((probs**3).sum(axis=1) - squares**2) / n_classes**2,
    }
    return means, variances


def _estimate(
    means: Floats, variances: Floats | None, groups: Index | None, quantile: float, *, highest: float
) -> Estimate:
    """Return the mean and its interval, by the variances of labels, or by the spread of the rows or their groups."""
    value = float(means.mean())
    spread = _spread((means - value)[:, None], groups)[0] if variances is None else variances.sum()
    reach = quantile * float(np.sqrt(max(spread, 0.0))) / len(means)
    return Estimate(value, max(value - reach, 0.0), min(value + reach, highest))


def _spread(deviations: Floats, groups: Index | None) -> Floats:
    """Return Σ_g (Σ_{i in g} deviation_i)² of each column, (n_columns,); without groups every row is one."""
    sums = deviations if groups is None else sum_by_group(deviations, groups)
    return np.asarray((sums**2).sum(axis=0))


def _by_class(probs: Floats, target: str, groups: Index | None, quantile: float) -> tuple[Floats, Floats]:
    """Return recall and precision of each class, (n_classes, 3): a ratio of sums and the delta method.

    With c = 1 where class k is predicted, recall is Σ c·y / Σ y and precision Σ c·y / Σ c: a row changes them by
    (c − recall)·y / Σ p and c·(y − precision) / Σ c.
    """
    predicted = np.eye(probs.shape[1])[probs.argmax(axis=1)]
    hits, counts, n_predicted = (predicted * probs).sum(axis=0), probs.sum(axis=0), predicted.sum(axis=0)
    noise = probs * (1.0 - probs) if target == "rows" else None
    results = []
    for totals, is_recall in ((counts, True), (n_predicted, False)):
        value = np.divide(hits, totals, out=np.full(len(totals), np.nan), where=totals > 0)
        factors = predicted - np.nan_to_num(value) if is_recall else predicted
        if noise is not None:
            spread = (factors**2 * noise).sum(axis=0)
        else:
            centre = 0.0 if is_recall else np.nan_to_num(value)
            spread = _spread(factors * (probs - centre), groups)
        reach = quantile * np.divide(np.sqrt(spread), totals, out=np.full(len(totals), np.nan), where=totals > 0)
        results.append(np.column_stack([value, np.maximum(value - reach, 0.0), np.minimum(value + reach, 1.0)]))
    return results[0], results[1]
