"""Who takes part: every calibrator, and networks that were trained to be calibrated, on equal terms.

An entrant sees the calibration rows of a reshuffle with their labels, then the test rows without: nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kcal.benchmark.tasks import Task
from kcal.calibrators import METHODS, Calibrator, ClassifierOutputs, KCal, fit_on, make_calibrator, predict_on
from kcal.errors import InvalidInputError
from kcal.projection import Recipe, TrainedProjection, get_recipe, needs_training, train_projection

TRAINED = {"focal": "uncal", "mmce": "ts", "smooth": "uncal"}
"""Networks trained with another loss, which companions of a task bring, and what calibrates them, as in the paper."""
VARIANTS: dict[str, Callable[..., Calibrator]] = {"kcal-untrained": partial(KCal, projection="identity")}
"""KCal without what makes it KCal: the kernel over the embeddings as they are."""
PAPER = ("uncal", "ts", "dircal", "imax", "focal", "spline", "iop", "gp", "mmce", "kcal")
"""The columns of the paper's tables."""
DEFAULT = (*PAPER, "kcal-blend")
"""What takes part unless told otherwise."""
ENTRANTS = (*METHODS, *VARIANTS, *TRAINED)


@dataclass(frozen=True)
class Entrant:
    """A method of the table, or a companion; with the projection that it was given, if it learns one."""

    name: str
    seed: int = 0
    projection: TrainedProjection | nn.Module | None = None

    def fit(self, task: Task, rows: NDArray[np.intp], *, by_group: bool) -> Calibrator:
        """Fit on some rows of the pool."""
        calibrator = new_calibrator(self.name, seed=self.seed)
        if self.projection is not None:
            calibrator.set_params(projection=self.projection)
        if "progress" in calibrator.get_params():
            calibrator.set_params(progress=False)
        return fit_on(calibrator, outputs_of(self.name, task, rows, by_group=by_group, labelled=True))

    def predict(self, calibrator: Calibrator, task: Task, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Return probabilities of some rows of the pool, columns as the logits'."""
        probabilities: NDArray[Any] = predict_on(calibrator, outputs_of(self.name, task, rows))
        if len(calibrator.classes_) == len(task.classes):
            return probabilities
        every = np.zeros((len(rows), len(task.classes)), dtype=probabilities.dtype)
        every[:, calibrator.classes_] = probabilities  # a class that nobody has seen is not expected
        return every


def outputs_of(
    name: str, task: Task, rows: NDArray[np.intp], *, by_group: bool = False, labelled: bool = False
) -> ClassifierOutputs:
    """Return what an entrant may see of some rows of the pool."""
    pool = task.pool
    logits = task.companions[name] if name in TRAINED else pool.logits
    groups = pool.groups[rows] if by_group and pool.groups is not None else None
    return ClassifierOutputs(pool.embeddings[rows], logits[rows], pool.labels[rows] if labelled else None, groups)


def new_calibrator(name: str, *, seed: int) -> Calibrator:
    """Return the unfitted calibrator of an entrant."""
    if name in VARIANTS:
        return VARIANTS[name](seed=seed)
    return make_calibrator(TRAINED.get(name, name), seed=seed)


def parameters_of(name: str, *, seed: int) -> str:
    """Return a short hash of all that an entrant's calibrator is made with, its recipe number by number."""
    calibrator = new_calibrator(name, seed=seed)
    parameters = {key: value for key, value in calibrator.get_params().items() if key != "progress"}
    if "recipe" in parameters:
        parameters["recipe"] = _recipe_of(calibrator)
    text = repr((type(calibrator).__name__, sorted(parameters.items())))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _recipe_of(calibrator: Calibrator) -> Recipe:
    if isinstance(calibrator, KCal):
        return calibrator.training_recipe()
    return get_recipe(calibrator.get_params()["recipe"])


def takes_part(name: str, task: Task) -> bool:
    """Say whether a task has what an entrant needs."""
    return name not in TRAINED or name in task.companions


def training_of(name: str, *, seed: int) -> str | None:
    """Return in words how an entrant's projection is learned: the same words, the same projection. None without one."""
    calibrator = new_calibrator(name, seed=seed)
    parameters = calibrator.get_params()
    if not needs_training(parameters.get("projection")):
        return None
    of = "embeddings" if calibrator.inputs == "both" else calibrator.inputs
    return repr((of, parameters["projection"], parameters["dimension"], _recipe_of(calibrator)))


def train_for(name: str, task: Task, *, seed: int, by_group: bool, **changes: Any) -> TrainedProjection | None:
    """Train the projection of an entrant that learns one, on training data alone; None for all others.

    ``changes`` are parameters in place of the entrant's own: ``dimension``, ``recipe``.
    """
    calibrator = new_calibrator(name, seed=seed).set_params(**changes)
    parameters = calibrator.get_params()
    if not needs_training(parameters.get("projection")):
        return None
    rows = torch.from_numpy(task.train.matrix(calibrator.inputs))
    return train_projection(
        calibrator.as_embeddings(rows) if isinstance(calibrator, KCal) else rows,  # of logits, their log-softmax
        task.train.labels,
        projection=parameters["projection"],
        dimension=parameters["dimension"],
        recipe=_recipe_of(calibrator),
        groups=task.train.groups if by_group else None,
        seed=seed,
        progress=False,
    )


def check_entrants(names: list[str]) -> list[str]:
    """Refuse what does not take part, or takes part twice."""
    for name in names:
        if name not in ENTRANTS:
            raise InvalidInputError(f"methods must be among {', '.join(ENTRANTS)}; got {name!r}.")
        if names.count(name) > 1:
            raise InvalidInputError(f"methods names {name} more than once.")
    if "uncal" not in names:
        return ["uncal", *names]  # whose accuracy is to be kept
    return names
