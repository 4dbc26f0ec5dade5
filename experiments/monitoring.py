"""What predictions tell without labels: class frequencies and performance, where frequencies change and by patient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from experiments.output import metric_entry, number_entry
from experiments.shift import UNIFORM, presumed_frequencies, ratios_of, thinned
from experiments.study import (
    Fitted,
    Measurements,
    Study,
    StudyOutput,
    TaskSetting,
    Values,
    Variant,
    by_row_and_group,
)
from kcal.benchmark.methods import pool_outputs, predict_columns
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tables import NO_VALUE
from kcal.benchmark.tasks import Split
from kcal.metrics import accuracy, multiclass_brier_loss, negative_log_likelihood
from kcal.monitoring import adjust_prior, estimate_performance, estimate_prior

Floats = NDArray[np.float64]
METHODS = ("ts", "kcal", "kcal-blend")
RATIOS = (1.0, 1 / 10, 10.0, UNIFORM)
ESTIMATES = (
    "none",
    "known",
    "em, strength 0",
    "em",
    "em, shrunken",
    "moments",
    "corrected-em",
    "corrected-em, shrunken",
)
DEFAULT = {"ts": "corrected-em, shrunken", "kcal": "corrected-em, shrunken", "kcal-blend": "em, shrunken"}
"""What estimate_prior does for each method with all that is there."""
METRICS = {"accuracy": accuracy, "negative_log_likelihood": negative_log_likelihood,
           "multiclass_brier_loss": multiclass_brier_loss}  # fmt: skip
CHUNK, N_CHUNKS = 500, 40
"""Rows of a chunk whose performance is estimated, and how many chunks are drawn per shift."""
SUM_WEIGHT = 1e3
"""Weight of the equation that frequencies sum to 1, beside those of the moments."""
N_DRAWS = 1_000
"""Rows of a sample whose class frequencies are estimated."""
UNADJUSTED, ADJUSTED, RULE = "as they are", "prior estimated", "NannyML's rule"


@dataclass(frozen=True, eq=False)
class Known:
    """Predictions for calibration rows, their labels and, if rows were split by them, their groups."""

    probs: Floats
    labels: NDArray[np.int64]
    groups: NDArray[Any] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of estimate_prior."""
        return {
            "calibration_probs": self.probs,
            "calibration_labels": self.labels,
            "calibration_groups": self.groups,
        }


def variants(setting: TaskSetting) -> Mapping[str, Variant]:
    return {name: setting.variant(name, measure=partial(without_labels, setting, name)) for name in METHODS}


def without_labels(setting: TaskSetting, method: str, fitted: Fitted, split: Split) -> Values:
    """Return losses and errors by estimate of the prior, and shares of intervals that hold, lists over the shifts."""
    n_classes = len(setting.task.classes)
    frequencies = presumed_frequencies(fitted, setting.task.pool.labels[split.calibration], n_classes)
    known = calibration_predictions(setting, method, fitted, split)
    every = setting.task.pool.groups[split.test] if setting.by_group and setting.task.pool.groups is not None else None
    probs = fitted.probs.astype(np.float64) / fitted.probs.sum(axis=1, keepdims=True)
    values: dict[str, list[float]] = {}
    for ratio in shifts_of(setting):
        kept = thinned(fitted.labels, ratio, n_classes, [setting.seed, split.index])
        groups = None if every is None else every[kept]
        parts = prior_losses(probs[kept], fitted.labels[kept], frequencies, known, groups)
        generator = np.random.default_rng([setting.seed, split.index, 1])
        parts |= interval_coverage(probs, fitted.labels, kept, frequencies, known, generator)
        parts |= performance_coverage(probs[kept], fitted.labels[kept], frequencies, known, groups, generator)
        for name, value in parts.items():
            values.setdefault(name, []).append(value)
    return {"ratios": list(shifts_of(setting)), **values}


def shifts_of(setting: TaskSetting) -> tuple[float, ...]:
    return tuple(ratio for ratio in RATIOS if ratio in ratios_of(setting))


def calibration_predictions(setting: TaskSetting, method: str, fitted: Fitted, split: Split) -> Known | None:
    """Return predictions for calibration rows, of KCal leaving out each row (patient); none of the blend."""
    if method == "kcal-blend":
        return None
    rows = pool_outputs("", setting.task, split.calibration, by_group=setting.by_group, labelled=True)
    assert rows.labels is not None
    if method == "kcal":
        kept = fitted.calibrator.support_indices_
        left_out = np.zeros((len(kept), len(setting.task.classes)))
        left_out[:, fitted.calibrator.classes_] = fitted.calibrator.leave_one_out_proba_
        return Known(left_out, rows.labels[kept], None if rows.groups is None else rows.groups[kept])
    unlabelled = pool_outputs("", setting.task, split.calibration)
    probs = predict_columns(fitted.calibrator, unlabelled, len(setting.task.classes))
    return Known(probs.astype(np.float64), rows.labels, rows.groups)


def estimates_of(probs: Floats, frequencies: Floats, known: Known | None, groups: Any) -> dict[str, Floats]:
    """Return class frequencies by the way they are estimated."""
    plain = estimate_prior(probs, reference=frequencies, groups=groups)
    found = {
        "em, strength 0": estimate_prior(probs, reference=frequencies, strength=0).prior,
        "em": plain.prior,
        "em, shrunken": plain.shrunken,
    }
    if known is not None:
        with_labels = partial(estimate_prior, probs, groups=groups, **known.options)
        corrected = with_labels()
        found |= {"moments": by_moments(probs, known), "corrected-em": corrected.prior}
        found["corrected-em, shrunken"] = corrected.shrunken
    return found


def by_moments(probs: Floats, known: Known) -> Floats:
    """Return frequencies π ≥ 0, Σ π = 1, with the smallest ‖Σ_k π_k·(mean prediction of class k) − mean prediction‖².

    The mean of a class includes the mean of all predictions as one of its samples.
    """
    own = np.eye(probs.shape[1])[known.labels]
    means = (own.T @ known.probs + known.probs.mean(axis=0)) / (own.sum(axis=0) + 1.0)[:, None]
    equations = np.vstack([means.T, SUM_WEIGHT * np.ones(len(means))])
    solution, _ = nnls(equations, np.append(probs.mean(axis=0), SUM_WEIGHT), maxiter=100 * len(means))
    return np.asarray(solution / solution.sum())


def prior_losses(
    probs: Floats, labels: NDArray[np.int64], frequencies: Floats, known: Known | None, groups: Any
) -> dict[str, float]:
    """Return the log-loss of predictions corrected by each estimate, and its distance from the frequencies, Σ |·|."""
    truth = np.bincount(labels, minlength=len(frequencies)) / len(labels)
    priors = {"none": frequencies, "known": truth, **estimates_of(probs, frequencies, known, groups)}
    values = {}
    for name, prior in priors.items():
        values[f"loss, {name}"] = negative_log_likelihood(adjust_prior(probs, prior, frequencies), labels)
        values[f"error, {name}"] = float(np.abs(prior - truth).sum())
    return values


def interval_coverage(
    probs: Floats,
    labels: NDArray[np.int64],
    kept: NDArray[np.intp],
    frequencies: Floats,
    known: Known | None,
    generator: np.random.Generator,
) -> dict[str, float]:
    """Return the share of 95 % intervals that hold the frequencies which samples are drawn with, with replacement."""
    target = np.bincount(labels[kept], minlength=len(frequencies)) / len(kept)
    by_class = [np.flatnonzero(labels == k) for k in range(len(frequencies))]
    hits = []
    for _ in range(max(4, N_CHUNKS // len(frequencies))):
        counts = generator.multinomial(N_DRAWS, target)
        rows = np.concatenate([generator.choice(by_class[k], size=n) for k, n in enumerate(counts) if n])
        options: dict[str, Any] = {"reference": frequencies}
        if known is not None:
            options = known.options
        found = estimate_prior(probs[rows], **options)
        hits.append((found.low <= target) & (target <= found.high))
    return {"prior interval": float(np.mean(hits))}


def performance_coverage(
    probs: Floats,
    labels: NDArray[np.int64],
    frequencies: Floats,
    known: Known | None,
    groups: Any,
    generator: np.random.Generator,
) -> dict[str, float]:
    """Return the shares of intervals that hold what the labels of a chunk give, and their mean widths.

    NannyML's rule is mean confidence ± 3 standard errors of the accuracy of a reference of the same size; the
    reference is the whole test part.
    """
    name = "em, shrunken" if known is None else "corrected-em, shrunken"
    adjusted = adjust_prior(probs, estimates_of(probs, frequencies, known, groups)[name], frequencies)
    values: dict[str, list[float]] = {}
    for _ in range(N_CHUNKS):
        rows = generator.permutation(len(labels))[:CHUNK]
        for title, every in ((UNADJUSTED, probs), (ADJUSTED, adjusted)):
            chunk = every[rows]
            found = estimate_performance(chunk)
            for metric, function in METRICS.items():
                value, low, high = getattr(found, metric)
                truth = function(chunk, labels[rows])
                values.setdefault(f"{title}, {metric}", []).append(low <= truth <= high)
                values.setdefault(f"{title}, {metric}, bias", []).append(value - truth)
            values.setdefault(f"{title}, width", []).append(found.accuracy.high - found.accuracy.low)
        correct = probs.argmax(axis=1) == labels
        reach = 3 * correct.std() / np.sqrt(len(rows))
        error = probs[rows].max(axis=1).mean() - correct[rows].mean()
        values.setdefault(f"{RULE}, accuracy", []).append(abs(error) <= reach)
        values.setdefault(f"{RULE}, width", []).append(2 * reach)
    return {key: float(np.mean(each)) for key, each in values.items()}


def show(measured: Measurements) -> StudyOutput:
    """Return a table of losses, one of errors, one of prior intervals and one of performance intervals."""
    losses, errors, priors, performance = [], [], [], []
    for label, by_method in measured.items():
        for method, values in by_method.items():
            ratios = values["ratios"][0].tolist()
            for place, ratio in enumerate(ratios):
                name = Entry(f"{label}, {shift_name(ratio)}, {method}")
                losses.append((name, *(_entry(values, f"loss, {each}", place) for each in ESTIMATES)))
                errors.append((name, *(_entry(values, f"error, {each}", place) for each in ESTIMATES[2:])))
                covered = number_entry(values["prior interval"][:, place], scale=100, digits=1)
                priors.append((name, covered))
                performance.append((name, *_performance_entries(values, place)))
    note = (
        "“10 times”: the first class is kept 10 times as often as the last; “1/10” the reverse. Default: "
        f"{DEFAULT['ts']} with calibration predictions, otherwise {DEFAULT['kcal-blend']}."
    )
    width = "; ".join(("95 % intervals of chunks of 500 rows", "NannyML's rule is three standard errors, not two"))
    heading = (
        "accuracy, as they are", "accuracy, prior estimated", "log-loss, prior estimated", "Brier, prior estimated",
        "NannyML's rule", "width, points", "NannyML's, points",
    )  # fmt: skip
    return StudyOutput(
        (
            Table("losses", "NLL by prior", ("", *ESTIMATES), tuple(losses), note),
            Table("errors", "Σ |estimated − true frequency|", ("", *ESTIMATES[2:]), tuple(errors)),
            Table("intervals", "Frequencies inside their 95 % interval, %", ("", "covered"), tuple(priors)),
            Table("performance", "Performance inside its 95 % interval, %", ("", *heading), tuple(performance), width),
        )
    )


def _entry(values: Mapping[str, Floats], name: str, place: int) -> Entry:
    return number_entry(values[name][:, place]) if name in values else Entry(NO_VALUE)


def _performance_entries(values: Mapping[str, Floats], place: int) -> tuple[Entry, ...]:
    covered = (
        f"{UNADJUSTED}, accuracy", f"{ADJUSTED}, accuracy", f"{ADJUSTED}, negative_log_likelihood",
        f"{ADJUSTED}, multiclass_brier_loss", f"{RULE}, accuracy",
    )  # fmt: skip
    shown = [Entry(f"{100 * values[name][:, place].mean():.1f}") for name in covered]
    widths = [metric_entry(values[f"{title}, width"][:, place], "accuracy") for title in (ADJUSTED, RULE)]
    return (*shown, *(entry._replace(text=entry.text.split("±")[0]) for entry in widths))


def shift_name(ratio: float) -> str:
    return {1.0: "as it is", 1 / 10: "1/10", 10.0: "10 times", UNIFORM: "uniform"}[ratio]


STUDY = Study("monitoring", "Without labels: class frequencies and performance", variants, show, by_row_and_group)
