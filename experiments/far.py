"""How sure methods are of inputs that belong to no class, and who can tell them from the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from kcal import metrics
from kcal.benchmark.entrants import new_calibrator, outputs_of, train_for
from kcal.benchmark.studies.measuring import deals_of
from kcal.benchmark.studies.study import Line, Panel, Study, StudyWatch, counted, unwatched
from kcal.benchmark.tables import ABSENT, Entry, Table
from kcal.benchmark.tasks import Task
from kcal.calibrators import Calibrator, ClassifierOutputs, KCal, KCalBlend, fit_on, predict_on
from kcal.projection import TrainedProjection

NO_HAND_OVER = "kcal-blend without hand-over"
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "uncal": ("uncal", {}),
    "ts": ("ts", {}),
    "kcal": ("kcal", {}),
    NO_HAND_OVER: ("kcal-blend", {"fallback_quantile": 0.0}),
    "kcal-blend": ("kcal-blend", {}),
    "kcal-blend, fallback_quantile=0.05": ("kcal-blend", {"fallback_quantile": 0.05}),
}
"""What tables call a method, its name and its parameters."""
SURE = 0.9
"""Confidence above which a method counts as sure."""
LEVELS = np.linspace(0.0, 1.0, 101)
"""Confidences that the figure is drawn for."""
LOSS = "loss"
MEASURES = {
    "inside": "confidence on the test part, %",
    "outside": "confidence out of scope, %",
    "sure": f"out of scope, sure (above {SURE:g}), %",
    "by_confidence": "AUROC by confidence, %",
    "by_evidence": "AUROC by evidence, %",
    LOSS: "NLL on the test part",
}
ABOUT = (
    "How sure methods are of inputs that belong to none of the classes (out of scope), beside the test part of the "
    "pool; no method was fitted with such inputs, but the default of fallback_quantile, and how steep the gate is,"
    " were chosen with its confidence on those of CLINC150 in view: there it is flattered. Lower confidence out of "
    "scope is better, if that on the test part stays. AUROC is the probability that a test input has more confidence,"
    " or more evidence, than one out of scope: 50% is chance. The evidence is kcal's log_evidence, the log density of"
    " the calibration set there, and kcal-blend's evidence, by which it hands over to the network where no "
    "calibration samples are near; without it, it is the same everywhere. fallback_quantile is the share of calibration"
    " samples with too little of it; the NLL tells what caution costs. The figure shows the share of inputs with more"
    " than so much confidence."
)


@dataclass(frozen=True, eq=False)
class Far:
    """A task's measures by method, (n_reshuffles,), and the shares of inputs above every level of confidence."""

    task: str
    values: dict[str, dict[str, NDArray[np.float64]]]
    above: dict[str, dict[str, NDArray[np.float64]]]  # by "test" and "out of scope", then by method: (n_levels,)

    def table(self) -> Table:
        """Return methods as rows, measures as columns."""
        rows = tuple(
            (Entry(method), *(_entry(found[measure], measure) for measure in MEASURES))
            for method, found in self.values.items()
        )
        note = f"Mean ± standard deviation over reshuffles; {ABSENT} where a method has no evidence that differs."
        return Table("far", f"{self.task}: inputs of no class", ("", *MEASURES.values()), rows, note)

    def panels(self) -> tuple[Panel, ...]:
        """Return the share of inputs above every confidence, on the test part and out of scope."""
        return tuple(
            Panel(
                f"{self.task}, {where}",
                "confidence",
                "inputs with more confidence, %",
                tuple(
                    Line(method, tuple(LEVELS.tolist()), tuple((100 * shares).tolist()), plain=True)
                    for method, shares in found.items()
                ),
            )
            for where, found in self.above.items()
        )


def study_far(tasks: Iterable[Task], *, reshuffles: int = 10, seed: int = 0, watch: StudyWatch = unwatched) -> Study:
    """Measure confidence on inputs of no class, on the tasks that have some."""
    found, without = [], []
    for task in tasks:
        if task.out_of_scope is None:
            without.append(task.name)
            continue
        found.append(
            measure_far(
                task,
                n_reshuffles=reshuffles,
                seed=seed,
                watch=lambda done, name=task.name: watch(name, done, reshuffles * len(METHODS)),  # type: ignore[misc]
            )
        )
    absent = f" No out-of-scope inputs, and so not shown: {', '.join(without)}." if without else ""
    return Study(
        "far",
        "Far from the calibration set",
        counted(ABOUT + absent, reshuffles),
        tuple(each.table() for each in found),
        tuple(panel for each in found for panel in each.panels()),
        2,
    )


def measure_far(task: Task, *, n_reshuffles: int, seed: int, watch: Callable[[int], None] = lambda _: None) -> Far:
    """Return the measures of every method over reshuffles; the projection is trained once."""
    assert task.out_of_scope is not None
    trained = train_for("kcal", task, seed=seed, by_group=False)
    deals = deals_of(task, n_reshuffles, seed)
    values: dict[str, dict[str, NDArray[np.float64]]] = {}
    above: dict[str, dict[str, NDArray[np.float64]]] = {"test": {}, "out of scope": {}}
    done = 0
    for title in METHODS:
        measured, shares = [], []
        for deal in deals:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of rows that a pool holds twice
                calibrator = _fit(title, task, deal.calibration, trained, seed)
                parts = (outputs_of("kcal-blend", task, deal.test), task.out_of_scope)
                inside, outside = (predict_on(calibrator, part) for part in parts)
                confidences = [inside.max(axis=1), outside.max(axis=1)]
                measured.append(_measured(confidences, [_evidence(calibrator, part) for part in parts]))
                measured[-1][LOSS] = metrics.negative_log_likelihood(inside, task.pool.labels[deal.test])
            shares.append([(each[:, None] > LEVELS).mean(axis=0) for each in confidences])
            done += 1
            watch(done)
        values[title] = {name: np.array([each[name] for each in measured]) for name in MEASURES}
        for where, found in zip(above.values(), np.mean(shares, axis=0), strict=True):
            where[title] = found
    return Far(task.name, values, above)


def _fit(title: str, task: Task, rows: NDArray[np.intp], trained: TrainedProjection | None, seed: int) -> Calibrator:
    method, parameters = METHODS[title]
    calibrator = new_calibrator(method, seed=seed)
    given = {"projection": trained, "progress": False, **parameters}
    known = calibrator.get_params()
    calibrator.set_params(**{name: value for name, value in given.items() if name in known})
    return fit_on(calibrator, outputs_of(method, task, rows, labelled=True))


def _evidence(calibrator: Calibrator, part: ClassifierOutputs) -> NDArray[np.float64] | None:
    """Return what a calibrator says of how much it knows about some inputs, if it says so."""
    if isinstance(calibrator, KCalBlend):
        return np.asarray(calibrator.evidence(part.embeddings), dtype=np.float64)
    if isinstance(calibrator, KCal):
        return np.asarray(calibrator.log_evidence(part.embeddings), dtype=np.float64)
    return None


def _measured(confidences: list[NDArray[Any]], evidence: list[NDArray[np.float64] | None]) -> dict[str, float]:
    inside, outside = confidences
    known = [each for each in evidence if each is not None]
    differs = len(known) == len(evidence) and np.ptp(np.concatenate(known)) > 0
    return {
        "inside": float(inside.mean()),
        "outside": float(outside.mean()),
        "sure": float((outside > SURE).mean()),
        "by_confidence": _separation(inside, outside),
        "by_evidence": _separation(known[0], known[1]) if differs else float("nan"),
    }


def _separation(inside: NDArray[Any], outside: NDArray[Any]) -> float:
    """Return the probability that an input from inside has the larger value, ties counting half."""
    is_inside = np.concatenate([np.ones(len(inside)), np.zeros(len(outside))])
    return float(roc_auc_score(is_inside, np.concatenate([inside, outside])))


def _entry(values: NDArray[np.float64], measure: str) -> Entry:
    if np.isnan(values).any():
        return Entry(ABSENT)
    scale, digits = (1, 4) if measure == LOSS else (100, 2)
    spread = f"±{scale * values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return Entry(f"{scale * values.mean():.{digits}f}{spread}")
