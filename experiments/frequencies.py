"""Class frequencies that differ between calibration and test: how they are made, corrected for and estimated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal import metrics
from kcal.benchmark.entrants import Entrant, train_for
from kcal.benchmark.reshuffles import reshuffles_by_row
from kcal.benchmark.studies.measuring import fit_quietly, predict_quietly
from kcal.benchmark.studies.study import SHOWN, Panel, mean_entry, metric_label, spread_line
from kcal.benchmark.tables import Entry, Table
from kcal.benchmark.tasks import Task
from kcal.calibrators import Calibrator, KCalBlend
from kcal.calibrators.prior import apply_prior

METHODS = ("uncal", "ts", "dircal", "kcal", "kcal-blend")
DRAWN = ("ts", "kcal", "kcal-blend")
"""The uncalibrated network would stretch the axes, and more lines would share colours; tables hold them."""
RATIOS = (1 / 20, 1 / 10, 1 / 5, 1 / 2, 1.0, 2.0, 5.0, 10.0, 20.0)
"""How much more often the last class is kept than the first."""
TABLED = (1.0, 1 / 10, 10.0)
UNEVEN = 1.5
"""The most frequent class over the rarest one: tasks beyond are also tested with all classes equally frequent."""
ENOUGH = 200
"""Samples of a test set; below, the table says that they are too few."""
KNOWN, ESTIMATED = ", prior known", ", prior estimated"
PRIORS = ("", KNOWN, ESTIMATED)


@dataclass(frozen=True, eq=False)
class Shifted:
    """A task's metrics under each shift, (n_shifts, n_reshuffles) by name of the entry; a ratio of None is uniform."""

    task: str
    ratios: tuple[float | None, ...]
    values: dict[str, dict[str, NDArray[np.float64]]]  # by metric, then by entry: the method and its prior
    samples: NDArray[np.intp]  # (n_shifts, n_reshuffles)
    rarest: NDArray[np.intp]  # samples of the rarest class of the pool

    def tables(self) -> tuple[Table, ...]:
        """Return a table a shift of those that are tabled."""
        shown = [ratio for ratio in (*TABLED, None) if ratio in self.ratios]
        return tuple(self._table(self.ratios.index(ratio)) for ratio in shown)

    def _table(self, place: int) -> Table:
        rows = tuple(
            (
                Entry(f"{method}{prior}"),
                *(mean_entry(self.values[name][f"{method}{prior}"][place], name) for name in SHOWN),
            )
            for method in METHODS
            for prior in PRIORS
        )
        low, rarest = int(self.samples[place].min()), int(self.rarest[place].min())
        note = f"At least {low:,} test samples a reshuffle, {rarest:,} of the rarest class."
        if low < ENOUGH:
            note = f"{note} That is too few to go by."
        title = f"{self.task}: {_shift_name(self.ratios[place])}"
        return Table("shift", title, ("method", *(metric_label(name) for name in SHOWN)), rows, note)

    def both_ways(self, metric: str, entry: str, severity: float) -> NDArray[np.float64]:
        """Return a metric, (n_reshuffles,), averaged over the shift that favours the last class and its reverse."""
        found = self.values[metric][entry]
        return np.asarray((found[self.ratios.index(severity)] + found[self.ratios.index(1 / severity)]) / 2)

    def panel(self) -> Panel:
        """Return the log-loss by severity, without and with the known prior."""
        metric = "negative_log_likelihood"
        severities = [ratio for ratio in RATIOS if ratio >= 1]
        lines = tuple(
            spread_line(entry, severities, np.array([self.both_ways(metric, entry, at) for at in severities]), metric)
            for entry in (f"{method}{prior}" for prior in ("", KNOWN) for method in DRAWN)
        )
        label = "most ÷ least favoured class, both orders"
        return Panel(self.task, label, metric_label(metric), lines, x_log=True)


def overview(found: Sequence[Shifted]) -> Table:
    """Return the log-loss of all tasks as they are, and under the shift of the tables."""
    metric, severity = "negative_log_likelihood", max(TABLED)
    shown = [(1.0, "", "as it is"), *((severity, prior, f"{severity:g} times{prior}") for prior in PRIORS)]
    rows = tuple(
        (
            Entry(f"{each.task}, {title}"),
            *(mean_entry(each.both_ways(metric, f"{method}{prior}", at), metric) for method in METHODS),
        )
        for each in found
        for at, prior, title in shown
    )
    note = (
        f"“{severity:g} times”: the first class is kept {severity:g} times as often as the last, or the last as the "
        "first; the mean of both, so that it matters less which classes are hard."
    )
    return Table("overview", "NLL where class frequencies change", ("task", *METHODS), rows, note)


def measure_frequencies(
    task: Task, *, n_reshuffles: int, seed: int, watch: Callable[[int], None] = lambda _: None
) -> Shifted:
    """Fit once a reshuffle, then test on parts of its test set that have other class frequencies."""
    counts = np.bincount(task.pool.labels, minlength=len(task.classes))
    uneven = counts.max() > UNEVEN * counts[counts > 0].min()
    ratios: tuple[float | None, ...] = (*RATIOS, None) if uneven else RATIOS
    deals = reshuffles_by_row(len(task.pool.labels), task.calibration_share, n_reshuffles, seed)
    shape = (len(ratios), len(deals))
    values = {
        name: {f"{each}{prior}": np.full(shape, np.nan) for each in METHODS for prior in PRIORS} for name in SHOWN
    }
    n_classes = len(task.classes)
    parts = [
        [deal.test[thinned(task.pool.labels[deal.test], ratio, n_classes, [seed, deal.index])] for deal in deals]
        for ratio in ratios
    ]
    for number, method in enumerate(METHODS):
        entrant = Entrant(method, seed, train_for(method, task, seed=seed, by_group=False))
        for column, deal in enumerate(deals):
            fitted = fit_quietly(entrant, task, deal.calibration)
            probabilities = predict_quietly(entrant, fitted, task, deal.test)
            presumed = presumed_frequencies(fitted, task.pool.labels[deal.calibration], n_classes)
            for row, part in enumerate(parts):
                kept = np.isin(deal.test, part[column])
                labels = task.pool.labels[part[column]]
                for prior, found in _by_prior(probabilities[kept], labels, presumed).items():
                    for name in SHOWN:
                        values[name][f"{method}{prior}"][row, column] = found[name]
            watch(number * len(deals) + column + 1)
    sizes = np.array([[np.bincount(task.pool.labels[rows], minlength=n_classes) for rows in part] for part in parts])
    return Shifted(task.name, ratios, values, sizes.sum(axis=2), sizes[:, :, counts > 0].min(axis=2))


def presumed_frequencies(calibrator: Calibrator, labels: NDArray[np.int64], n_classes: int) -> NDArray[np.float64]:
    """Return the class frequencies that predictions presume: the calibration set's, or what a blend made of them."""
    if isinstance(calibrator, KCalBlend):
        return calibrator.frequencies_
    counts = np.bincount(labels, minlength=n_classes)
    return np.asarray(counts / counts.sum())


def thinned(labels: NDArray[np.int64], ratio: float | None, n_classes: int, seed: int | list[int]) -> NDArray[np.intp]:
    """Return places in ``labels``, ascending, where class k is kept with share ∝ ratio^(k/(K − 1)), K classes.

    The class that is favoured most is kept whole. A ratio of None leaves as many samples of each class as the rarest
    one has. Nothing is drawn twice.
    """
    counts = np.bincount(labels, minlength=n_classes)
    if ratio is None:
        kept = np.minimum(counts, counts[counts > 0].min())
    else:
        weights = ratio ** (np.arange(n_classes) / (n_classes - 1))
        kept = np.rint(counts * weights / weights.max()).astype(np.intp)
    generator = np.random.default_rng(seed)
    drawn = [generator.permutation(np.flatnonzero(labels == k))[: kept[k]] for k in range(n_classes)]
    return np.sort(np.concatenate(drawn))


def with_prior(
    probabilities: NDArray[Any], prior: NDArray[np.float64], frequencies: NDArray[np.float64]
) -> NDArray[Any]:
    """Return p_k · prior_k / frequency_k, normalised: Bayes' rule for class frequencies that have changed."""
    return np.asarray(apply_prior(torch.from_numpy(np.asarray(probabilities)), prior, frequencies).numpy())


def estimated_prior(
    probabilities: NDArray[Any], frequencies: NDArray[np.float64], *, tolerance: float = 1e-5, rounds: int = 1000
) -> NDArray[np.float64]:
    """Return the class frequencies of unlabelled samples: prior ← mean of p · prior / frequency, normalised by row.

    It is the expectation maximisation of Saerens, Latinne and Decaestecker (2002), from the frequencies of the
    calibration set until the prior moves by less than ``tolerance`` in all.
    """
    seen = frequencies > 0
    ratios = np.divide(probabilities, frequencies, out=np.zeros(probabilities.shape), where=seen)
    ratios = ratios[ratios.any(axis=1)]  # what only classes without calibration samples explain tells nothing
    prior = np.asarray(frequencies, dtype=np.float64)
    for _ in range(rounds):
        before, prior = prior, prior * (ratios.T @ (1 / (ratios @ prior))) / len(ratios)
        if np.abs(prior - before).sum() < tolerance:
            break
    return np.asarray(prior / prior.sum())


def _by_prior(
    probabilities: NDArray[Any], labels: NDArray[np.int64], frequencies: NDArray[np.float64]
) -> dict[str, dict[str, float]]:
    """Return metrics without a prior, with the true one of these labels, and with one that has not seen them."""
    truth = np.bincount(labels, minlength=len(frequencies)) / len(labels)
    wide = probabilities.astype(np.float64)
    found = {
        "": wide,
        KNOWN: with_prior(wide, truth, frequencies),
        ESTIMATED: with_prior(wide, estimated_prior(wide, frequencies), frequencies),
    }
    return {prior: metrics.evaluate(corrected, labels).as_dict() for prior, corrected in found.items()}


def _shift_name(ratio: float | None) -> str:
    if ratio is None:
        return "tested with all classes equally frequent"
    if ratio == 1:
        return "tested with the class frequencies that it has"
    favoured, other = ("last", "first") if ratio > 1 else ("first", "last")
    return f"tested with the {favoured} class kept {max(ratio, 1 / ratio):g} times as often as the {other}"
