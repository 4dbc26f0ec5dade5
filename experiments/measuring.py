"""What several studies measure: the shown metrics of a reshuffle, and the leave-one-out loss of a calibration set."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from kcal import metrics
from kcal.benchmark.entrants import Entrant
from kcal.benchmark.reshuffles import Reshuffle, reshuffles_by_group, reshuffles_by_row
from kcal.benchmark.results import MEASURES, Row
from kcal.benchmark.studies.study import SHOWN, mean_entry
from kcal.benchmark.tables import Entry
from kcal.benchmark.tasks import Task, can_be_dealt_by_group
from kcal.calibrators import Calibrator, KCal
from kcal.projection import FastRecipe, PaperRecipe, TrainedProjection, train_projection

Values = dict[str, NDArray[np.float64]]
"""A metric's values over reshuffles, by metric."""


def deals_of(task: Task, n_reshuffles: int, seed: int, *, by_group: bool = False) -> list[Reshuffle]:
    """Return the reshuffles of a task's pool, by rows or by whole groups: the same ones in every study."""
    if by_group:
        return reshuffles_by_group(task.pool.groups, task.calibration_share, n_reshuffles, seed)
    return reshuffles_by_row(len(task.pool.labels), task.calibration_share, n_reshuffles, seed)


def classes_are_equally_frequent(task: Task) -> bool:
    """Say whether a task's training set holds as many samples of every class that it has."""
    return len(set(np.unique(task.train.labels, return_counts=True)[1].tolist())) == 1


def ways_to_deal(task: Task) -> tuple[Row, ...]:
    """Return a task by rows and, where it has enough groups, by whole groups."""
    ways = (False, True) if can_be_dealt_by_group(task) else (False,)
    return tuple(Row(task.name, by_group) for by_group in ways)


def fit_quietly(entrant: Entrant, task: Task, rows: NDArray[np.intp], *, by_group: bool = False) -> Calibrator:
    """Fit on some rows of the pool, without warnings of what a study does on purpose: small parts miss classes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return entrant.fit(task, rows, by_group=by_group)


def predict_quietly(entrant: Entrant, calibrator: Calibrator, task: Task, rows: NDArray[np.intp]) -> NDArray[Any]:
    """Return probabilities of some rows of the pool, without warnings: a pool may hold a row twice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return entrant.predict(calibrator, task, rows)


def shown_metrics(entrant: Entrant, calibrator: Calibrator, task: Task, rows: NDArray[np.intp]) -> dict[str, float]:
    """Return the shown metrics of a fitted entrant on some rows of the pool."""
    found = metrics.evaluate(predict_quietly(entrant, calibrator, task, rows), task.pool.labels[rows]).as_dict()
    return {name: found[name] for name in SHOWN}


def gathered(found: Sequence[dict[str, float]]) -> Values:
    """Return metrics of several reshuffles as arrays."""
    return {name: np.array([each[name] for each in found]) for name in SHOWN}


def leave_one_out_loss(
    task: Task, rows: NDArray[np.intp], projection: TrainedProjection | nn.Module, *, seed: int = 0
) -> float:
    """Return the leave-one-out log-loss of some rows of the pool, at the bandwidth that is best for them.

    Of a trained projection with checkpoints, the best checkpoint's.
    """
    calibrator = fit_quietly(Entrant("kcal", seed, projection), task, rows)
    assert isinstance(calibrator, KCal)
    assert calibrator.bandwidth_curve_ is not None
    return float(calibrator.bandwidth_curve_.loss)


def rows_with_the_best_bold(named: Sequence[tuple[str, Values]]) -> tuple[tuple[Entry, ...], ...]:
    """Return a table's rows of names and shown metrics; the best mean of each metric is bold."""
    signs = {name: -1.0 if MEASURES[name].better == "higher" else 1.0 for name in SHOWN}
    best = {name: min(signs[name] * values[name].mean() for _, values in named) for name in SHOWN}
    return tuple(
        (
            Entry(title),
            *(
                mean_entry(values[name], name)._replace(bold=bool(signs[name] * values[name].mean() <= best[name]))
                for name in SHOWN
            ),
        )
        for title, values in named
    )


def warm_up() -> None:
    """Train on next to nothing with each recipe, so that what is loaded at the first step counts for nobody's time."""
    points = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    for recipe in (FastRecipe(steps=1), PaperRecipe(epochs=1, batches_per_epoch=1)):
        train_projection(points, np.arange(16) % 2, recipe=recipe, progress=False)
