"""What is left of a calibration where the field is not like the calibration set: new groups, new class frequencies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kcal.benchmark.entrants import Entrant, train_for
from kcal.benchmark.reshuffles import Reshuffle, reshuffles_by_group, reshuffles_by_row
from kcal.benchmark.results import MEASURES
from kcal.benchmark.studies import frequencies
from kcal.benchmark.studies.measuring import fit_quietly, shown_metrics
from kcal.benchmark.studies.study import SHOWN, Study, StudyWatch, counted, mean_entry, metric_label, unwatched
from kcal.benchmark.tables import Entry, Table
from kcal.benchmark.tasks import Task, can_be_dealt_by_group

METHODS = ("uncal", "ts", "vector", "platt", "isotonic", "dircal", "sms", "kcal", "kcal-blend")
"""That are tested on new groups."""
ABOUT = (
    "How calibration holds where the field differs from the calibration set. Groups: calibrated on some groups, tested "
    "on others, beside as many rows dealt at random. Class frequencies: each test set is thinned, without drawing any "
    "sample twice, so that the share kept of a class grows or falls geometrically from the first class to the last; "
    "the calibration set stays as it is. “Prior known” corrects by Bayes' rule, p_k · (frequency in the test set) / "
    "(frequency in the calibration set), which for KCal and its blend is the parameter prior: the frequencies of the "
    "test set are taken as something that the user knows of the field. They are all that comes from the test labels. "
    "“Prior estimated” finds them from each method's own predictions for the unlabelled test set by expectation "
    "maximisation (Saerens, Latinne and Decaestecker, 2002); that presumes probabilities that are calibrated in every "
    "class, and can do harm where they are not. All methods, the uncalibrated network too, are corrected from the "
    "frequencies of the calibration set, the blend from what it takes them for (frequencies_). Uneven frequencies make "
    "a task easier for those who know them: compare methods under one shift, rather than one method under several."
)


@dataclass(frozen=True, eq=False)
class Groups:
    """A task's metrics on rows dealt at random and on new groups; (n_reshuffles,) by metric and method."""

    task: str
    by_rows: dict[str, dict[str, NDArray[np.float64]]]
    by_groups: dict[str, dict[str, NDArray[np.float64]]]

    def lost(self, metric: str, method: str) -> NDArray[np.float64]:
        """Return how much worse new groups are than rows, whichever way is better."""
        worse = self.by_groups[metric][method] - self.by_rows[metric][method]
        return -worse if MEASURES[metric].better == "higher" else worse

    def tables(self) -> tuple[Table, ...]:
        """Return metrics by rows, metrics by groups, and what is lost between them."""
        heading = ("method", *(metric_label(name) for name in SHOWN))
        tables = []
        for values, title in ((self.by_rows, "rows dealt at random"), (self.by_groups, "tested on new groups")):
            rows = tuple(
                (Entry(method), *(mean_entry(values[name][method], name) for name in SHOWN)) for method in METHODS
            )
            tables.append(Table("groups", f"{self.task}: {title}", heading, rows))
        rows = tuple((Entry(method), *(_signed(self.lost(name, method), name) for name in SHOWN)) for method in METHODS)
        note = (
            "New groups against rows, with as many samples to calibrate and to test; + is worse, whatever the metric."
        )
        return (*tables, Table("lost", f"{self.task}: lost from rows to new groups", heading, rows, note))


def study_shift(tasks: Iterable[Task], *, reshuffles: int = 10, seed: int = 0, watch: StudyWatch = unwatched) -> Study:
    """Test on new groups, where a task has groups, and on class frequencies that have changed."""
    tables: list[Table] = []
    shifted = []
    for task in tasks:
        if can_be_dealt_by_group(task):
            groups = measure_groups(
                task,
                n_reshuffles=reshuffles,
                seed=seed,
                watch=lambda done, total, title=f"{task.name}, groups": watch(title, done, total),  # type: ignore[misc]
            )
            tables += groups.tables()
        total = reshuffles * len(frequencies.METHODS)
        found = frequencies.measure_frequencies(
            task,
            n_reshuffles=reshuffles,
            seed=seed,
            watch=lambda done, title=task.name, total=total: watch(title, done, total),  # type: ignore[misc]
        )
        tables += found.tables()
        shifted.append(found)
    panels = tuple(each.panel() for each in shifted)
    every = (frequencies.overview(shifted), *tables)
    about = counted(ABOUT, reshuffles)
    return Study("shift", "When the field is not like the calibration set", about, every, panels)


def measure_groups(
    task: Task, *, n_reshuffles: int, seed: int, watch: Callable[[int, int], None] = lambda done, total: None
) -> Groups:
    """Calibrate on some groups and test on others; and on rows, as many of them, whatever their group."""
    assert task.pool.groups is not None
    dealt = reshuffles_by_group(task.pool.groups, task.calibration_share, n_reshuffles, seed)
    alike = [as_many_rows(deal, seed) for deal in dealt]
    found = []
    done = 0
    for deals, by_group in ((alike, False), (dealt, True)):
        values = {name: {method: np.full(len(deals), np.nan) for method in METHODS} for name in SHOWN}
        for method in METHODS:
            entrant = Entrant(method, seed, train_for(method, task, seed=seed, by_group=by_group))
            for place, deal in enumerate(deals):
                fitted = fit_quietly(entrant, task, deal.calibration, by_group=by_group)
                measured = shown_metrics(entrant, fitted, task, deal.test)
                for name in SHOWN:
                    values[name][method][place] = measured[name]
                done += 1
                watch(done, 2 * len(dealt) * len(METHODS))
        found.append(values)
    return Groups(task.name, *found)


def as_many_rows(deal: Reshuffle, seed: int) -> Reshuffle:
    """Return a reshuffle by rows with as many rows to calibrate and to test, so that only who they are differs."""
    n_samples = len(deal.calibration) + len(deal.test)
    return reshuffles_by_row(n_samples, len(deal.calibration) / n_samples, deal.index + 1, seed)[deal.index]


def _signed(values: NDArray[np.float64], metric: str) -> Entry:
    entry = mean_entry(values, metric)
    return entry if entry.text.startswith("-") else Entry(f"+{entry.text}")
