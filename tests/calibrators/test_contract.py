"""Every calibrator of the table keeps the contract."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibrator_checks
from calibrator_checks import quick, unlearned
from kcal import METHODS, load, save
from kcal.calibrators import Calibrator, fit_on, make_calibrator
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError
from synthetic import make_problem

pytestmark = pytest.mark.usefixtures("short_solvers")


@pytest.mark.parametrize("check", calibrator_checks.CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", METHODS)
def test_contract(name: str, check: Any, problem: Any, tmp_path: Path) -> None:
    given = {
        "make": lambda: lambda: quick(name),
        "fitted": lambda: fitted_on_the_problem(name),
        "plain": lambda: fitted_without_training(name),
        "problem": lambda: problem,
        "folder": lambda: tmp_path,
        "other": lambda: make_problem(seed=1),
    }
    check(**{parameter: given[parameter]() for parameter in inspect.signature(check).parameters})


@cache
def fitted_on_the_problem(name: str) -> Calibrator:
    """Fit each method once for all promises that share the fit."""
    return calibrator_checks.fit(quick(name), make_problem())


@cache
def fitted_without_training(name: str) -> Calibrator:
    """Fit each method once without a trained projection."""
    calibrator, problem = quick(name), make_problem()
    if not calibrator.tags.uses_training_set:
        return fitted_on_the_problem(name)
    return fit_on(unlearned(calibrator), ClassifierOutputs(problem.embeddings, problem.logits, problem.labels))


@pytest.mark.parametrize("name", METHODS)
def test_every_name_constructs_with_no_arguments_and_accepts_a_seed(name: str) -> None:
    assert METHODS[name].factory().inputs in ("embeddings", "logits", "both")
    assert METHODS[name].factory(seed=3).get_params()["seed"] == 3


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match="'uncal', 'ts'"):
        make_calibrator("nope")


@pytest.mark.parametrize("name", METHODS)
def test_numbers_of_numpy_as_parameters_survive_the_file(name: str, problem: Any, tmp_path: Path) -> None:
    calibrator = quick(name).set_params(seed=1)
    numbers = {
        parameter: np.int64(value) if isinstance(value, int) else np.float32(value)
        for parameter, value in calibrator.get_params(deep=False).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    calibrator.set_params(**numbers)
    fitted = fit_on(unlearned(calibrator), ClassifierOutputs(problem.embeddings, problem.logits, problem.labels))
    loaded = load(save(fitted, tmp_path / "model.kcal"))
    for parameter, value in numbers.items():
        assert type(getattr(loaded, parameter)) is type(value.item())
        assert getattr(loaded, parameter) == value


@pytest.mark.parametrize("name", METHODS)
def test_an_invalid_seed_is_refused_by_name(name: str, problem: Any) -> None:
    for seed in (-1, 2**64, 1.5, "a", None, True, np.array([1, 2])):
        calibrator = quick(name).set_params(seed=seed)
        with pytest.raises(InvalidInputError, match=r"^seed "):
            fit_on(calibrator, ClassifierOutputs(problem.embeddings, problem.logits, problem.labels))


@pytest.mark.parametrize("name", METHODS)
def test_an_invalid_word_is_refused_by_name(name: str, problem: Any) -> None:
    for word in {"representation", "form", "maps", "binning", "training"} & set(quick(name).get_params()):
        for value in (np.array(["logits", "shared"]), np.array([1, 2]), 3, None, "nope"):
            with pytest.raises(InvalidInputError, match=f"^{word} "):
                quick(name).set_params(**{word: value}).fit(problem.logits, problem.labels)


@pytest.mark.parametrize("name", METHODS)
def test_a_count_out_of_bounds_is_refused_by_name(name: str, problem: Any) -> None:
    outputs = ClassifierOutputs(problem.embeddings, problem.logits, problem.labels)
    counts = {"bins", "knots", "folds", "epochs", "samples", "inducing_points", "width"} & set(quick(name).get_params())
    for count in counts:
        for value in (-1, 10**9, 10**30, 1.5, "many", None, True):
            if value is None and getattr(METHODS[name].factory(), count) is None:
                continue
            with pytest.raises(InvalidInputError, match=f"^{count} "):
                fit_on(quick(name).set_params(**{count: value}), outputs)


def test_invalid_parameters_are_not_saved(problem: Any, tmp_path: Path) -> None:
    fitted = make_calibrator("ts").fit(problem.logits, problem.labels).set_params(representation="nonsense")
    with pytest.raises(InvalidInputError, match=r"^representation "):
        save(fitted, tmp_path / "model.kcal")
