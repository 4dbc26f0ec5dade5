"""KCal beside KCal without one of its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kcal.benchmark.entrants import Entrant, train_for
from kcal.benchmark.studies.measuring import (
    Values,
    deals_of,
    fit_quietly,
    gathered,
    rows_with_the_best_bold,
    shown_metrics,
)
from kcal.benchmark.studies.study import SHOWN, Study, StudyWatch, counted, metric_label, unwatched
from kcal.benchmark.tables import Table
from kcal.benchmark.tasks import Task

VARIANTS = {
    "uncal": "uncalibrated",
    "kcal": "KCal",
    "kcal-linear": "KCal-Linear",
    "kcal-logits": "KCal-Logits",
    "kcal-untrained": "untrained",
}
"""Entrants, and what tables call them."""
ABOUT = (
    "KCal beside KCal-Linear (a linear projection), KCal-Logits (on the logits in place of the embeddings, their "
    "length kept) and KCal untrained (the kernel over the embeddings as they are, neither projected nor divided by "
    "their length), on the same reshuffles by row. Mean ± standard deviation; bold is the best mean, whatever the "
    "accuracy and however small the lead. Both projections start from the same principal axes: where KCal and "
    "KCal-Linear have the same numbers, every calibration set chose that start over what training made of it."
)


def study_variants(
    tasks: Iterable[Task], *, reshuffles: int = 10, seed: int = 0, watch: StudyWatch = unwatched
) -> Study:
    """Measure every variant on every task."""
    tables = []
    for task in tasks:
        total = reshuffles * len(VARIANTS)
        watch(task.name, 0, total)
        found = measure_variants(
            task,
            n_reshuffles=reshuffles,
            seed=seed,
            watch=lambda done, name=task.name, of=total: watch(name, done, of),  # type: ignore[misc]
        )
        tables.append(variants_table(task.name, found))
    return Study("variants", "KCal without its parts", counted(ABOUT, reshuffles), tuple(tables))


def measure_variants(
    task: Task, *, n_reshuffles: int, seed: int, watch: Callable[[int], None] = lambda _: None
) -> dict[str, Values]:
    """Return the shown metrics of every variant over reshuffles; a projection is trained once."""
    deals = deals_of(task, n_reshuffles, seed)
    found = {}
    for place, name in enumerate(VARIANTS):
        entrant = Entrant(name, seed, train_for(name, task, seed=seed, by_group=False))
        values = []
        for deal in deals:
            calibrator = fit_quietly(entrant, task, deal.calibration)
            values.append(shown_metrics(entrant, calibrator, task, deal.test))
            watch(place * len(deals) + len(values))
        found[name] = gathered(values)
    return found


def variants_table(task: str, found: dict[str, Values]) -> Table:
    """Return variants as rows, metrics as columns."""
    rows = rows_with_the_best_bold([(VARIANTS[name], values) for name, values in found.items()])
    return Table("variants", f"{task}: variants of KCal", ("", *(metric_label(name) for name in SHOWN)), rows)
