"""One cell of the benchmark: a method on a reshuffle of a task; what is measured there, and how it is kept."""

from __future__ import annotations

import math
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal import metrics
from kcal.benchmark.entrants import Entrant
from kcal.benchmark.reshuffles import Reshuffle
from kcal.benchmark.tasks import Task
from kcal.calibrators import Calibrator, KCalBlend

BINS_SHOWN = 10
"""Of the reliability diagrams."""


@dataclass(frozen=True, order=True)
class Cell:
    """Where a number belongs: ``by_group`` tells whether whole groups were dealt out."""

    task: str
    by_group: bool
    reshuffle: int
    method: str


@dataclass(frozen=True)
class Origin:
    """What a cell's numbers depend on: data of the task, parameters of the method, code (all as hashes), packages."""

    fingerprint: str
    parameters: str
    versions: Mapping[str, str]
    code: str = ""


@dataclass(frozen=True)
class Outcome:
    """What was measured in a cell; where a method failed, only the error."""

    cell: Cell
    metrics: Mapping[str, float] = field(default_factory=dict)
    fit_seconds: float = math.nan
    predict_seconds: float = math.nan
    details: Mapping[str, Any] = field(default_factory=dict)  # what was chosen: bandwidth, temperature, …
    reliability: Mapping[str, Any] | None = None  # bins of the confidence and of every class, of the first reshuffle
    error: str | None = None
    sizes: tuple[int, int] | None = None  # samples fitted on, and measured on
    n_groups: int | None = None  # of the pool; None if it is not known which samples belong together
    train_seconds: float | None = None  # of the projection that all cells of the row share; None without one
    origin: Origin | None = None

    def as_json(self) -> dict[str, Any]:
        """Return what JSON can hold; what is not a number becomes null."""
        return {
            **asdict(self),
            "metrics": {name: value if math.isfinite(value) else None for name, value in self.metrics.items()},
            "fit_seconds": _finite(self.fit_seconds),
            "predict_seconds": _finite(self.predict_seconds),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Outcome:
        """Return the outcome that was stored."""
        return cls(
            cell=Cell(**stored["cell"]),
            metrics={name: math.nan if value is None else value for name, value in stored["metrics"].items()},
            fit_seconds=math.nan if stored["fit_seconds"] is None else stored["fit_seconds"],
            predict_seconds=math.nan if stored["predict_seconds"] is None else stored["predict_seconds"],
            details=stored["details"],
            reliability=stored["reliability"],
            error=stored["error"],
            sizes=None if stored.get("sizes") is None else (stored["sizes"][0], stored["sizes"][1]),
            n_groups=stored.get("n_groups"),
            train_seconds=stored.get("train_seconds"),
            origin=None if stored.get("origin") is None else Origin(**stored["origin"]),
        )


def measure_cell(task: Task, reshuffle: Reshuffle, entrant: Entrant, *, by_group: bool) -> Outcome:
    """Fit, predict and measure; a method that fails says so in its outcome."""
    cell = Cell(task.name, by_group, reshuffle.index, entrant.name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = time.perf_counter()
            calibrator = entrant.fit(task, reshuffle.calibration, by_group=by_group)
            fitted = time.perf_counter()
            probabilities = entrant.predict(calibrator, task, reshuffle.test)
            predicted = time.perf_counter()
            labels = task.pool.labels[reshuffle.test]
            return Outcome(
                cell,
                all_metrics(probabilities, labels),
                fitted - start,
                predicted - fitted,
                _details(calibrator),
                _reliability(probabilities, labels, task.classes) if reshuffle.index == 0 else None,
            )
    except Exception as error:  # whatever a method does, the others go on
        return Outcome(cell, error=described(error))


def described(error: Exception) -> str:
    """Return an error with where it came from."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"


def all_metrics(probs: NDArray[Any], labels: NDArray[np.int64]) -> dict[str, float]:
    """Return the paper's metrics, at both of its thresholds, and those beyond."""
    found = metrics.evaluate(probs, labels).as_dict()
    low = metrics.evaluate(probs, labels, threshold="min")
    murphy = metrics.murphy_decomposition(probs, labels)
    return found | {
        "classwise_calibration_error_min": low.classwise_calibration_error,
        "static_classwise_calibration_error_min": low.static_classwise_calibration_error,
        "published_negative_log_likelihood": metrics.negative_log_likelihood(probs, labels, clip="published"),
        "debiased_squared_calibration_error": metrics.debiased_squared_calibration_error(probs, labels),
        "marginal_calibration_error": metrics.marginal_calibration_error(probs, labels),
        "top_label_calibration_error": metrics.top_label_calibration_error(probs, labels),
        "smooth_calibration_error": metrics.smooth_calibration_error(probs, labels),
        "kde_calibration_error": metrics.kde_calibration_error(probs, labels),
        "canonical_calibration_error": metrics.canonical_calibration_error(probs, labels),
        "kernel_calibration_error": metrics.kernel_calibration_error(probs, labels, estimator="unbiased-linear").value,
        "accuracy_rejection_area": metrics.accuracy_rejection_area(probs, labels),
        "brier_reliability": murphy.reliability,
        "brier_resolution": murphy.resolution,
    }


def _details(calibrator: Calibrator) -> dict[str, Any]:
    """Return what a method chose, as far as it is a number or a word; of a blend, also the weights."""
    names = (
        "bandwidth_",
        "checkpoint_step_",
        "temperature_",
        "form_",
        "width_",
        "maps_",
        "penalty_",
        "background_",
        "group_efficiency_",
    )
    found = {name: getattr(calibrator, name, None) for name in names}
    chosen: dict[str, Any] = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in found.items()
        if isinstance(value, str | int | float | np.generic)
    }
    if isinstance(calibrator, KCalBlend):
        chosen["weights_"] = calibrator.weights_
    return chosen


def _reliability(probs: NDArray[Any], labels: NDArray[np.int64], classes: Sequence[str]) -> dict[str, Any]:
    """Return what the reliability diagrams of the confidence and of every class show."""
    events: list[Any] = ["confidence", *range(min(probs.shape[1], 20))]
    binned = {
        str(of): metrics.reliability(
            probs, labels, of=of, bins=BINS_SHOWN, adaptive=False, threshold=0.0 if of == "confidence" else "max"
        )
        for of in events
    }
    return {
        of: {
            "name": "top class" if of == "confidence" else classes[int(of)],
            "counts": bins.counts.tolist(),
            "mean_prediction": [_finite(value) for value in bins.mean_prediction.tolist()],
            "observed_frequency": [_finite(value) for value in bins.observed_frequency.tolist()],
        }
        for of, bins in binned.items()
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
