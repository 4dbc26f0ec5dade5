"""One rule for every wrong argument: an error of kcal that names the argument, or a correct answer."""

from __future__ import annotations

import re
import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest

from fuzz.targets import TARGETS, Target
from fuzz.values import ARRAYS, EQUIVALENTS, SCALARS
from kcal.errors import InvalidInputError, KcalError

PAIRED = {
    "X": "y|logits",
    "logits": "y",
    "probs": "labels|groups|prior",
    "y": "classes",
    "path": "not a file",
    "calibration_probs": "calibration_labels",
    "reference": "X",
}
"""Arguments that only disagree with another one (in length, say) may be reported by the name of the other."""


def names_argument(error: KcalError, argument: str) -> bool:
    """Return whether an error says which argument is wrong."""
    names = f"({argument}|{PAIRED.get(argument, argument)})"
    if isinstance(error, InvalidInputError):
        return re.fullmatch(rf"{names}(\[.*\])?", error.parameter) is not None
    return re.search(rf"\b{names}\b", str(error)) is not None


def is_valid(result: Any) -> bool:
    """Return whether a result can be right: probabilities where there is a matrix, and nothing that is not a number."""
    if isinstance(result, np.ndarray) and result.ndim == 2:
        return bool((result >= 0).all() and np.allclose(result.sum(axis=1), 1.0, atol=1e-5))
    if isinstance(result, float):
        return bool(np.isfinite(result))
    return True


def outcome(target: Target, argument: str, value: Any) -> str | None:
    """Return what is wrong with the answer to a call with one argument replaced, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = target.call(**(target.good | {argument: value}))
    except KcalError as error:
        return None if names_argument(error, argument) else f"does not name the argument: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None if is_valid(result) else f"answers {result!r}"[:200]


pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_wrong_argument_is_named_or_answered_correctly(target: Target) -> None:
    cases = [*product(target.scalars, SCALARS.items()), *product(target.arrays, (SCALARS | ARRAYS).items())]
    wrong = {}
    for argument, (kind, make) in cases:
        trouble = outcome(target, argument, make(target.good[argument]))
        if trouble is not None:
            wrong[f"{argument} = {kind}"] = trouble
    assert not wrong, "\n".join(f"{case}: {trouble}" for case, trouble in wrong.items())


@pytest.mark.parametrize("target", [target for target in TARGETS if target.arrays], ids=lambda target: target.name)
def test_same_numbers_in_another_container_give_the_same_result(target: Target) -> None:
    expected = _numbers(target.call(**target.good))
    wrong = []
    for argument, (kind, make) in product(target.arrays, EQUIVALENTS.items()):
        given = make(target.good[argument])
        try:
            result = _numbers(target.call(**(target.good | {argument: given})))
            right = np.allclose(result, expected, rtol=1e-9, atol=1e-12, equal_nan=True)
        except KcalError as error:
            right = names_argument(error, argument)
        if not right:
            wrong.append(f"{argument} = {kind}")
    assert not wrong


def _numbers(result: Any) -> Any:
    """Return the numbers of a result that is an array, a number or a record of them."""
    if isinstance(result, np.ndarray | float):
        return result
    fields = [value for value in getattr(result, "__dict__", {}).values() if isinstance(value, float | np.ndarray)]
    return np.concatenate([np.ravel(np.asarray(value, dtype=float)) for value in fields]) if fields else np.zeros(1)
