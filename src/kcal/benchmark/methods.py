"""The methods of the benchmark: every registered calibrator, two more forms, and networks trained with another loss.

A method sees the calibration rows of a split with their labels and, if it uses one, the training set; then the test
rows without labels, and nothing else. :func:`measure` compares its predictions with the labels of the test rows.
"""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal import metrics
from kcal.benchmark.results import OTHER_THRESHOLD, Result, ResultKey
from kcal.benchmark.tasks import Split, Task
from kcal.calibrators import METHODS, Calibrator, DirichletCalibration, KCal, fit_on, predict_on, train_projection_on
from kcal.calibrators.registry import SLOW, Method
from kcal.datasets import COMPANIONS
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError
from kcal.metrics.registry import PAPER_METRICS
from kcal.projection import PaperRecipe, TrainedProjection
from kcal.validation import check_choice, shown

COMPANION_CALIBRATORS = {"focal": "uncal", "mmce": "ts", "smooth": "uncal"}
"""What calibrates the logits of a companion, by the loss that its network was trained with, as in the paper."""
OTHER_RATES = ("imagenet", "isruc", "pn2017")
"""The paper's data sets on which the learning rate of its KCal is another than on the rest."""
RELIABILITY_BINS = 10
RELIABILITY_CLASSES = 8
"""Classes whose reliability is stored and drawn, at most."""
BENCHMARK_METHODS: dict[str, Method] = {
    **METHODS,
    "dircal-odir": Method(
        "dircal-odir", partial(DirichletCalibration, grid="odir"), "Dirichlet calibration with the published penalties"
    ),
    **{
        f"kcal-paper-{data_set}": Method(
            f"kcal-paper-{data_set}",
            partial(KCal.as_published, data_set),
            f"KCal as published for {data_set}",
            cost=SLOW,
        )
        for data_set in OTHER_RATES
    },
    "kcal-untrained": Method("kcal-untrained", partial(KCal, projection="identity"), "KCal without a projection"),
    **{
        loss: replace(METHODS[calibrator], name=loss, title=f"network trained with the {loss} loss")
        for loss, calibrator in COMPANION_CALIBRATORS.items()
    },
}
PAPER_METHODS = ("uncal", "ts", "dircal", "imax", "focal", "spline", "iop", "gp", "mmce", "kcal")
"""The columns of the paper's tables."""
DEFAULT_METHODS = (*PAPER_METHODS, "kcal-blend")


@dataclass(frozen=True)
class BenchmarkMethod:
    """A method by its name; if it learns a projection, with the trained one, or with the error of its training."""

    name: str
    seed: int = 0
    projection: TrainedProjection | None = None
    train_seconds: float | None = None
    error: str | None = None

    def fit(self, task: Task, rows: NDArray[np.intp], *, by_group: bool) -> Calibrator:
        """Fit on some rows of the pool."""
        calibrator = new_calibrator(self.name, seed=self.seed)
        if self.projection is not None:
            calibrator.set_params(projection=self.projection)
        if "progress" in calibrator.get_params():
            calibrator.set_params(progress=False)
        return fit_on(calibrator, pool_outputs(self.name, task, rows, by_group=by_group, labelled=True), task.train)

    def predict(self, calibrator: Calibrator, task: Task, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Return probabilities for some rows of the pool, with the columns of the logits."""
        return predict_columns(calibrator, pool_outputs(self.name, task, rows), len(task.classes))


def measure(task: Task, split: Split, method: BenchmarkMethod, by_group: bool) -> Result:
    """Fit, predict and measure; if the method fails, or its training did, the result holds the error."""
    result = Result(
        ResultKey(task.name, by_group, split.index, method.name),
        error=method.error,
        sizes=(len(split.calibration), len(split.test)),
        train_seconds=method.train_seconds,
    )
    if result.error is not None:
        return result
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = time.perf_counter()
            calibrator: Any = method.fit(task, split.calibration, by_group=by_group)
            fitted = time.perf_counter()
            probs = method.predict(calibrator, task, split.test)
            predicted = time.perf_counter()
            labels = task.pool.labels[split.test]
            curve = None if calibrator.tags.recipe is None else calibrator.training_curve_
            other = {OTHER_THRESHOLD: PAPER_METRICS[OTHER_THRESHOLD](probs, labels)}
            return replace(
                result,
                metrics=metrics.evaluate(probs, labels, protocol="paper").as_dict() | other,
                fit_seconds=fitted - start,
                predict_seconds=predicted - fitted,
                details={} if curve is None else {"checkpoint_step_": int(curve.chosen_step)},
                reliability=_reliability_of(probs, labels, task.classes) if split.index == 0 else None,
            )
    except Exception as error:  # whatever fails in one method, the others go on
        return replace(result, error=describe(error))


def describe(error: Exception) -> str:
    """Return an error with the function and line that raised it."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"


def _reliability_of(probs: NDArray[Any], labels: NDArray[np.int64], classes: Sequence[str]) -> dict[str, Any]:
    """Return the bins of the reliability diagrams of the confidence and of the first classes."""
    events: dict[Any, str] = {"confidence": "top class"} | dict(enumerate(classes[:RELIABILITY_CLASSES]))
    stored = {}
    for event, name in events.items():
        bins = metrics.reliability(probs, labels, of=event, bins=RELIABILITY_BINS, adaptive=False)
        arrays = {part: getattr(bins, part).tolist() for part in ("counts", "mean_prediction", "observed_frequency")}
        stored[str(event)] = {"name": name} | arrays
    return stored


def predict_columns(calibrator: Calibrator, outputs: ClassifierOutputs, n_classes: int) -> NDArray[Any]:
    """Return probabilities with a column for every class; a class that the calibrator does not know has 0."""
    probs = predict_on(calibrator, outputs)
    every: NDArray[Any] = np.zeros((len(probs), n_classes), dtype=probs.dtype)
    every[:, calibrator.classes_] = probs
    return every


def pool_outputs(
    name: str, task: Task, rows: NDArray[np.intp], *, by_group: bool = False, labelled: bool = False
) -> ClassifierOutputs:
    """Return what a method may see of some rows of the pool."""
    pool = task.pool
    logits = task.companions[name] if name in COMPANIONS else pool.logits
    groups = pool.groups[rows] if by_group and pool.groups is not None else None
    return ClassifierOutputs(pool.embeddings[rows], logits[rows], pool.labels[rows] if labelled else None, groups)


def new_calibrator(name: str, *, seed: int) -> Calibrator:
    """Return the unfitted calibrator of a method."""
    return BENCHMARK_METHODS[name].factory(seed=seed)


def projection_key(name: str, *, seed: int) -> str | None:
    """Return a text that is equal for methods that learn the same projection; None for methods that learn none."""
    calibrator = new_calibrator(name, seed=seed)
    tags, parameters = calibrator.tags, calibrator.get_params()
    if tags.recipe is None or not tags.uses_training_set:
        return None
    return repr((calibrator.inputs, parameters["projection"], parameters["dimension"], tags.recipe))


def train_for(name: str, task: Task, *, seed: int, by_group: bool, **changes: Any) -> TrainedProjection | None:
    """Train the projection of a method on the training data; None for methods that learn none.

    ``changes`` replace parameters of the method: ``dimension``, ``recipe``. All splits share the projection: the
    calibration set that the paper's recipe monitors is that of the first split.
    """
    calibrator = new_calibrator(name, seed=seed).set_params(**changes)
    recipe, monitored = calibrator.tags.recipe, None
    if isinstance(recipe, PaperRecipe) and recipe.monitor == "calibration":
        rows = task.splits(1, seed, by_group=by_group)[0].calibration
        monitored = pool_outputs(name, task, rows, labelled=True)
    train = task.train if by_group else replace(task.train, groups=None)
    return train_projection_on(calibrator, train, monitored)


def check_methods(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names with "uncal" among them, whose accuracy is the reference; raise for unknown or repeated ones."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise InvalidInputError("methods", "must be a sequence of names", got=shown(names))
    for name in names:
        check_choice(name, "methods", tuple(BENCHMARK_METHODS))
        if names.count(name) > 1:
            raise InvalidInputError("methods", "must be different names", got=f"{name} {names.count(name)} times")
    return tuple(names) if "uncal" in names else ("uncal", *names)
