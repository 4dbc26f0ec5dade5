"""Every calibrator of the table keeps the contract."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import calibrator_checks
from kcal import CALIBRATORS, FastRecipe
from kcal.calibrators import Calibrator, make_calibrator
from kcal.errors import InvalidInputError
from synthetic import make_problem


def quick(name: str) -> Calibrator:
    calibrator = make_calibrator(name)
    if "recipe" in calibrator.get_params():
        calibrator.set_params(recipe=FastRecipe(steps=12, batch_size=120, checkpoints=3))
    if name == "iop":
        calibrator.set_params(width=4, epochs=10, folds=3)
    return calibrator


@pytest.mark.parametrize("check", calibrator_checks.CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", CALIBRATORS)
def test_contract(name: str, check: Any, problem: Any, tmp_path: Path) -> None:
    given = {"make": lambda: quick(name), "problem": problem, "folder": tmp_path, "other": None}
    wanted = inspect.signature(check).parameters
    if "other" in wanted:
        given["other"] = make_problem(seed=1)
    check(**{parameter: given[parameter] for parameter in wanted})


@pytest.mark.parametrize("name", CALIBRATORS)
def test_every_name_constructs_with_no_arguments_and_accepts_a_seed(name: str) -> None:
    assert CALIBRATORS[name]().inputs in ("embeddings", "logits", "both")
    assert CALIBRATORS[name](seed=3).get_params()["seed"] == 3


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match=r"uncal, ts, .*kcal.*got 'nope'"):
        make_calibrator("nope")


@pytest.mark.parametrize("name", ["ts", "uncal"])
def test_a_keyword_that_a_method_does_not_use_is_an_error(name: str, problem: Any) -> None:
    with pytest.raises(TypeError, match="train_embeddings"):
        make_calibrator(name).fit(problem.logits, problem.labels, train_embeddings=problem.train_embeddings)
