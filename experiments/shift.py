"""Class frequencies that differ between calibration and test, corrected by known and estimated priors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.lines import Panel
from experiments.output import LOG_LOSS, METRIC_LABELS, metric_entry, spread_line
from experiments.study import Fitted, Measurements, Study, StudyOutput, TaskSetting, Values, Variant, main_metrics
from kcal.benchmark.results import MAIN_METRICS
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tasks import Split
from kcal.monitoring import adjust_prior

METHODS = ("uncal", "ts", "dircal", "kcal", "kcal-blend")
DRAWN = ("ts", "kcal", "kcal-blend")
RATIOS = (1 / 20, 1 / 10, 1 / 5, 1 / 2, 1.0, 2.0, 5.0, 10.0, 20.0)
"""How much more often the last class is kept than the first."""
UNIFORM = 0.0
"""In place of a ratio: all classes are equally frequent."""
TABLE_RATIOS = (1.0, 1 / 10, 10.0, UNIFORM)
UNEVEN = 1.5
"""Ratio of the most frequent class to the rarest one at which a task is also tested with uniform classes."""
ENOUGH = 200
"""Test samples below which a table warns."""
KNOWN, ESTIMATED = ", prior known", ", prior estimated"
PRIORS = ("", KNOWN, ESTIMATED)


def variants(setting: TaskSetting) -> Mapping[str, Variant]:
    """Return the methods; each is fitted once per split and tested under every shift."""
    return {name: setting.variant(name, measure=partial(under_shifts, setting)) for name in METHODS}


def under_shifts(setting: TaskSetting, fitted: Fitted, split: Split) -> Values:
    """Return metrics by prior, and sample counts, each a list over the ratios."""
    n_classes, seed = len(setting.task.classes), [setting.seed, split.index]
    frequencies = presumed_frequencies(fitted, setting.task.pool.labels[split.calibration], n_classes)
    present = np.bincount(setting.task.pool.labels, minlength=n_classes) > 0
    values: dict[str, list[float]] = {"ratios": list(ratios_of(setting)), "samples": [], "rarest": []}
    for ratio in ratios_of(setting):
        kept = thinned(fitted.labels, ratio, n_classes, seed)
        labels = fitted.labels[kept]
        values["samples"].append(float(len(kept)))
        values["rarest"].append(float(np.bincount(labels, minlength=n_classes)[present].min()))
        for prior, probs in by_prior(fitted.probs[kept], labels, frequencies).items():
            for name, value in main_metrics(probs, labels).items():
                values.setdefault(f"{name}{prior}", []).append(value)
    return values


def ratios_of(setting: TaskSetting) -> tuple[float, ...]:
    """Return the shifts of a task; uniform classes only if its classes are not about equally frequent."""
    counts = np.bincount(setting.task.pool.labels)
    return (*RATIOS, UNIFORM) if counts.max() > UNEVEN * counts[counts > 0].min() else RATIOS


def presumed_frequencies(fitted: Fitted, labels: NDArray[np.int64], n_classes: int) -> NDArray[np.float64]:
    """Return the class frequencies that predictions assume: a method's own, or those of the calibration set."""
    own = getattr(fitted.calibrator, "frequencies_", None)
    counts = np.bincount(labels, minlength=n_classes)
    return np.asarray(counts / counts.sum() if own is None else own)


def thinned(labels: NDArray[np.int64], ratio: float, n_classes: int, seed: int | list[int]) -> NDArray[np.intp]:
    """Return sorted places in ``labels`` where class k is kept with a share ∝ ratio^(k/(K − 1)), K classes.

    The most favoured class is kept whole. ``UNIFORM`` keeps as many samples of each class as the rarest one has.
    """
    counts = np.bincount(labels, minlength=n_classes)
    if ratio == UNIFORM:
        kept = np.minimum(counts, counts[counts > 0].min())
    else:
        weights = ratio ** (np.arange(n_classes) / (n_classes - 1))
        kept = np.rint(counts * weights / weights.max()).astype(np.intp)
    generator = np.random.default_rng(seed)
    drawn = [generator.permutation(np.flatnonzero(labels == k))[: kept[k]] for k in range(n_classes)]
    return np.sort(np.concatenate(drawn))


def estimated_prior(
    probs: NDArray[Any], frequencies: NDArray[np.float64], *, tolerance: float = 1e-5, rounds: int = 1000
) -> NDArray[np.float64]:
    """Return the class frequencies of unlabelled samples: prior ← mean of p · prior / frequency, normalised by row.

    Expectation maximisation (Saerens, Latinne and Decaestecker, 2002), from the frequencies of the calibration set
    until the prior changes by less than ``tolerance`` in total.
    """
    ratios = np.divide(probs, frequencies, out=np.zeros(probs.shape), where=frequencies > 0)
    ratios = ratios[ratios.any(axis=1)]
    prior = np.asarray(frequencies, dtype=np.float64)
    for _ in range(rounds):
        before, prior = prior, prior * (ratios.T @ (1 / (ratios @ prior))) / len(ratios)
        if np.abs(prior - before).sum() < tolerance:
            break
    return np.asarray(prior / prior.sum())


def by_prior(
    probs: NDArray[Any], labels: NDArray[np.int64], frequencies: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """Return probabilities without a prior, with the true one of the labels, and with one estimated without them."""
    truth = np.bincount(labels, minlength=len(frequencies)) / len(labels)
    wide = probs.astype(np.float64)
    return {
        "": wide,
        KNOWN: adjust_prior(wide, truth, frequencies),
        ESTIMATED: adjust_prior(wide, estimated_prior(wide, frequencies), frequencies),
    }


def show(measured: Measurements) -> StudyOutput:
    """Return an overview, a table per task and tabled shift, and the log-loss by severity."""
    tables, overview, panels = [], [], []
    for label, by_method in measured.items():
        ratios = by_method[METHODS[0]]["ratios"][0].tolist()
        tables += [_table(label, by_method, ratios, ratio) for ratio in TABLE_RATIOS if ratio in ratios]
        for severity, prior, title in [(1.0, "", "as it is"), *((10.0, prior, f"10 times{prior}") for prior in PRIORS)]:
            losses = [both_orders(by_method[name][f"{LOG_LOSS}{prior}"], ratios, severity) for name in METHODS]
            overview.append((Entry(f"{label}, {title}"), *(metric_entry(loss, LOG_LOSS) for loss in losses)))
        severities = [ratio for ratio in RATIOS if ratio >= 1]
        lines = [
            spread_line(
                f"{name}{prior}",
                severities,
                [both_orders(by_method[name][f"{LOG_LOSS}{prior}"], ratios, at) for at in severities],
            )
            for prior in ("", KNOWN)
            for name in DRAWN
        ]
        panels.append(Panel(label, "most ÷ least favoured class, both orders", "NLL", tuple(lines), x_log=True))
    note = (
        "“10 times”: the first class is kept 10 times as often as the last, or the last as the first; the mean of both."
    )
    first = Table("overview", "NLL where class frequencies change", ("task", *METHODS), tuple(overview), note)
    return StudyOutput((first, *tables), tuple(panels))


def both_orders(values: NDArray[np.float64], ratios: list[float], severity: float) -> NDArray[np.float64]:
    """Return values, (n_splits,), averaged over the shift that favours the last class and its reverse."""
    return np.asarray((values[:, ratios.index(severity)] + values[:, ratios.index(1 / severity)]) / 2)


def _table(label: str, by_method: Mapping[str, Any], ratios: list[float], ratio: float) -> Table:
    place = ratios.index(ratio)
    rows = tuple(
        (Entry(f"{method}{prior}"), *(metric_entry(values[f"{name}{prior}"][:, place], name) for name in MAIN_METRICS))
        for method, values in by_method.items()
        for prior in PRIORS
    )
    samples, rarest = (int(by_method[METHODS[0]][name][:, place].min()) for name in ("samples", "rarest"))
    note = f"At least {samples:,} test samples per split, {rarest:,} of the rarest class."
    note += " Too few to draw conclusions." if samples < ENOUGH else ""
    return Table("shift", f"{label}: {_shift_name(ratio)}", ("method", *METRIC_LABELS), rows, note)


def _shift_name(ratio: float) -> str:
    if ratio == UNIFORM:
        return "tested with all classes equally frequent"
    if ratio == 1:
        return "tested with its own class frequencies"
    favoured, other = ("last", "first") if ratio > 1 else ("first", "last")
    return f"tested with the {favoured} class kept {max(ratio, 1 / ratio):g} times as often as the {other}"


STUDY = Study("shift", "Other class frequencies", variants, show)
