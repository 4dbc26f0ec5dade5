"""Calibrators that are quick to fit, and what their modules take."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from calibrator_checks import fit, quick
from kcal.calibrators import METHODS, Calibrator, PredictionModule
from synthetic import Problem, make_problem

CHEAP: dict[str, dict[str, Any]] = {
    "dircal": {"grid": [(1.0, 0.01, 1.0)], "folds": 2},
    "iop": {"form": "op", "width": 2, "epochs": 1, "folds": 2},
}
"""Parameters beyond those of ``quick``."""

OF_OTHERS = ("svs", "sms", "beta", "scaling-binning", "kcal-linear", "kcal-paper")
WITH_OWN_MODULE = [name for name in METHODS if name not in OF_OTHERS]
"""Methods whose module is not that of another, which differs in its fit alone."""

Inputs = tuple[torch.Tensor | None, torch.Tensor | None]


@cache
def problem() -> Problem:
    return make_problem(n=90, n_train=120, n_test=256)


def cheap(name: str, **parameters: Any) -> Calibrator:
    calibrator: Calibrator = quick(name).set_params(**CHEAP.get(name, {}) | parameters)
    return calibrator


@cache
def fitted(name: str) -> Calibrator:
    """Fit each method once for all tests that share the fit."""
    return fit(cheap(name), problem())


@cache
def module_of(name: str) -> PredictionModule:
    return fitted(name).as_module()


def query_rows(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Return embeddings and logits of the test part."""
    return torch.tensor(problem().test_embeddings, dtype=dtype), torch.tensor(problem().test_logits, dtype=dtype)


def inputs_of(calibrator: Calibrator, embeddings: torch.Tensor, logits: torch.Tensor) -> Inputs:
    """Return the arguments of the module: None for what the method does not use."""
    return (None if calibrator.inputs == "logits" else embeddings), (logits if calibrator.tags.needs_logits else None)


def first_rows(inputs: Inputs, size: int) -> Inputs:
    rows, scores = (None if part is None else part[:size] for part in inputs)
    return rows, scores
