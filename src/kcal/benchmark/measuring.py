"""Fit a method on the calibration rows of a split and measure it on the test rows."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal import metrics
from kcal.benchmark.methods import BenchmarkMethod
from kcal.benchmark.results import Result, ResultKey, finite_or_none
from kcal.benchmark.tasks import Split, Task
from kcal.calibrators import Calibrator
from kcal.metrics.registry import METRICS

OTHER_THRESHOLD = "classwise_calibration_error_min"
"""Measured besides the paper's metrics: the class-wise error at its other threshold."""
RELIABILITY_BINS = 10
RELIABILITY_CLASSES = 20
"""Classes whose reliability is stored, at most."""


def measure(task: Task, split: Split, method: BenchmarkMethod, by_group: bool) -> Result:
    """Fit, predict and measure; if the method fails, or its training did, the result holds the error."""
    result = Result(
        ResultKey(task.name, by_group, split.index, method.name),
        error=method.error,
        sizes=(len(split.calibration), len(split.test)),
        n_groups=task.n_groups,
        train_seconds=method.train_seconds,
    )
    if result.error is not None:
        return result
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = time.perf_counter()
            calibrator = method.fit(task, split.calibration, by_group=by_group)
            fitted = time.perf_counter()
            probs = method.predict(calibrator, task, split.test)
            predicted = time.perf_counter()
            labels = task.pool.labels[split.test]
            return replace(
                result,
                metrics=metrics.evaluate(probs, labels).as_dict()
                | {OTHER_THRESHOLD: METRICS[OTHER_THRESHOLD](probs, labels)},
                fit_seconds=fitted - start,
                predict_seconds=predicted - fitted,
                details=details_of(calibrator),
                reliability=reliability_of(probs, labels, task.classes) if split.index == 0 else None,
            )
    except Exception as error:  # whatever fails in one method, the others go on
        return replace(result, error=describe(error))


def describe(error: Exception) -> str:
    """Return an error with the function and line that raised it."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"


def details_of(calibrator: Calibrator) -> dict[str, int]:
    """Return the training step of the checkpoint that the calibration set chose, if the method learns a projection."""
    step = getattr(calibrator, "checkpoint_step_", None)
    return {} if step is None else {"checkpoint_step_": int(step)}


def reliability_of(probs: NDArray[Any], labels: NDArray[np.int64], classes: Sequence[str]) -> dict[str, Any]:
    """Return the bins of the reliability diagrams of the confidence and of the first classes."""
    events: dict[Any, str] = {"confidence": "top class"} | dict(enumerate(classes[:RELIABILITY_CLASSES]))
    stored = {}
    for event, name in events.items():
        bins = metrics.reliability(probs, labels, of=event, bins=RELIABILITY_BINS, adaptive=False)
        stored[str(event)] = {
            "name": name,
            "counts": bins.counts.tolist(),
            "mean_prediction": [finite_or_none(value) for value in bins.mean_prediction.tolist()],
            "observed_frequency": [finite_or_none(value) for value in bins.observed_frequency.tolist()],
        }
    return stored
