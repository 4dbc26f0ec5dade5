"""Confidence on inputs that belong to no class, and which methods can tell them apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from experiments.lines import Line, Panel
from experiments.output import LOG_LOSS, floats, number_entry
from experiments.study import Fitted, Measurements, Study, StudyOutput, TaskSetting, Values, Variant, by_row
from kcal.benchmark import Task
from kcal.benchmark.methods import pool_outputs
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tables import NO_VALUE
from kcal.benchmark.tasks import Split
from kcal.calibrators import Calibrator, predict_on
from kcal.embeddings import ClassifierOutputs

METHODS = ("uncal", "ts", "kcal", "kcal-blend")
HIGH = 0.9
"""Confidence that counts as high."""
LEVELS = np.linspace(0.0, 1.0, 101)
"""Confidences that the figure is drawn for."""
MEASURES = {
    "inside": "confidence on the test part, %",
    "outside": "confidence out of scope, %",
    "high": f"out of scope above {HIGH:g}, %",
    "by_confidence": "AUROC by confidence, %",
    "by_evidence": "AUROC by evidence, %",
}


def settings(tasks: Iterable[Task], seed: int) -> Iterator[TaskSetting]:
    """Yield the tasks that have inputs of no class."""
    yield from by_row((task for task in tasks if task.out_of_scope is not None), seed)


def variants(setting: TaskSetting) -> Mapping[str, Variant]:
    measure = partial(inside_and_outside, setting.task)
    return {method: setting.variant(method, measure=measure) for method in METHODS}


def inside_and_outside(task: Task, fitted: Fitted, split: Split) -> Values:
    """Return confidence and evidence on the test part and out of scope, and how well each tells them apart."""
    assert task.out_of_scope is not None
    parts = (pool_outputs("", task, split.test), task.out_of_scope)
    inside, outside = (predict_on(fitted.calibrator, part).max(axis=1) for part in parts)
    return {
        "inside": float(inside.mean()),
        "outside": float(outside.mean()),
        "high": float((outside > HIGH).mean()),
        "by_confidence": separation(inside, outside),
        "by_evidence": separation(*(log_evidence(fitted.calibrator, part) for part in parts)),
        LOG_LOSS: fitted.metrics()[LOG_LOSS],
        "test": (inside[:, None] > LEVELS).mean(axis=0).tolist(),
        "out of scope": (outside[:, None] > LEVELS).mean(axis=0).tolist(),
    }


def log_evidence(calibrator: Calibrator, part: ClassifierOutputs) -> NDArray[np.float64]:
    """Return the log density of the calibration set at every input; empty if the method has none."""
    evidence = getattr(calibrator, "log_evidence", None)
    return np.empty(0) if evidence is None else np.asarray(evidence(part.embeddings), dtype=np.float64)


def separation(inside: NDArray[Any], outside: NDArray[Any]) -> float:
    """Return the probability that an input from inside has the larger value, ties counting half (AUROC)."""
    if len(inside) == 0:
        return float("nan")
    is_inside = np.concatenate([np.ones(len(inside)), np.zeros(len(outside))])
    return float(roc_auc_score(is_inside, np.concatenate([inside, outside])))


def show(measured: Measurements) -> StudyOutput:
    """Return a table per task, and the share of inputs above every confidence."""
    tables, panels = [], []
    for label, by_method in measured.items():
        rows = tuple(
            (
                Entry(name),
                *(
                    Entry(NO_VALUE)
                    if np.isnan(values[measure]).any()
                    else number_entry(values[measure], scale=100, digits=2)
                    for measure in MEASURES
                ),
                number_entry(values[LOG_LOSS]),
            )
            for name, values in by_method.items()
        )
        heading = ("", *MEASURES.values(), "NLL on the test part")
        note = f"Mean ± standard deviation over splits; {NO_VALUE} if a method has no evidence."
        tables.append(Table("far", f"{label}: inputs of no class", heading, rows, note))
        for part in ("test", "out of scope"):
            lines = tuple(
                Line(name, floats(LEVELS), floats(100 * values[part].mean(axis=0)), plain=True)
                for name, values in by_method.items()
            )
            panels.append(Panel(f"{label}, {part}", "confidence", "inputs with more confidence, %", lines))
    return StudyOutput(tuple(tables), tuple(panels), 2)


STUDY = Study("far", "Far from the calibration set", variants, show, settings)
