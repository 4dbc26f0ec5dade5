"""What all methods on logits share: their state in files, the meaning of weights, the border."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch

from calibrator_checks import quick
from kcal.calibrators import METHODS, Calibrator
from kcal.errors import FileFormatError, InvalidInputError

pytestmark = pytest.mark.usefixtures("short_solvers")
NAMES = [name for name, method in METHODS.items() if method.inputs == "logits" and name != "kcal-logits"]
PER_CLASS = ("platt", "beta", "isotonic", "venn-abers", "histogram", "scaling-binning")
VARIANTS: dict[str, dict[str, list[Any]]] = {
    **{name: {"maps": ["class", "shared"]} for name in PER_CLASS},
    "imax": {"form": ["shared", "classwise", "top"]},
    "spline": {"form": ["one-versus-rest", "rank", "top"]},
    "iop": {"form": ["diag", "oi", "op"]},
}
CASES = [
    (name, {parameter: value})
    for name in NAMES
    for parameter, values in VARIANTS.get(name, {"seed": [0]}).items()
    for value in values
]


@pytest.fixture(scope="module", params=CASES, ids=str)
def fitted(request: pytest.FixtureRequest, problem: Any) -> Calibrator:
    name, parameters = request.param
    return quick(name).set_params(**parameters).fit(problem.logits, problem.labels)


def test_calibrator_comes_back_from_its_state(fitted: Calibrator, problem: Any) -> None:
    again = type(fitted).from_state(fitted.state())
    np.testing.assert_array_equal(again.predict_proba(problem.test_logits), fitted.predict_proba(problem.test_logits))
    assert again.summary() == fitted.summary()
    for name in (name for name in dir(type(fitted)) if name.endswith("_") and not name.startswith("_")):
        values, stored = getattr(fitted, name), getattr(again, name)
        pairs = zip(values, stored, strict=True) if isinstance(values, list) else [(values, stored)]
        assert all(np.array_equal(value, other) for value, other in pairs), name


def test_damaged_state_is_refused(fitted: Calibrator) -> None:
    state = fitted.state()
    for name, tensor in state.tensors.items():
        damages = [tensor.to(torch.int32), tensor[None] if tensor.ndim else tensor.expand(2)]
        if name != "fingerprints":
            damages.append(tensor[:-1] if tensor.ndim else tensor.expand(1, 1))
            rest = {other: value for other, value in state.tensors.items() if other != name}
            with pytest.raises(FileFormatError, match=name.rpartition(".")[2]):
                type(fitted).from_state(replace(state, tensors=rest))
        for damaged in damages:
            with pytest.raises(FileFormatError, match="stored"):
                type(fitted).from_state(replace(state, tensors=state.tensors | {name: damaged}))
    for n_features in (4, 1.5, "nonsense", None):
        with pytest.raises(FileFormatError, match="stored"):
            type(fitted).from_state(replace(state, values=state.values | {"n_features": n_features}))


TOLERANCES = {"vector": 1e-4, "matrix": 1e-4, "sms": 1e-4, "svs": 1e-4, "platt": 1e-5, "beta": 1e-5, "gp": 1e-4}
BY_NUMBER = ("dircal", "iop", "spline")
"""Methods whose folds or knots depend on the number of rows."""


@pytest.mark.parametrize(("name", "parameters"), [case for case in CASES if case[0] not in BY_NUMBER], ids=str)
def test_weight_can_move_between_copies_of_a_sample(name: str, parameters: Any, problem: Any) -> None:
    rows, labels = np.repeat(problem.logits, 2, axis=0), np.repeat(problem.labels, 2)
    first = np.random.default_rng(0).uniform(0.1, 1.9, len(problem.labels))
    weights = np.stack([first, 2 - first], axis=1).ravel()
    plain, weighted = (
        quick(name).set_params(**parameters).fit(rows, labels, sample_weight=given).predict_proba(problem.test_logits)
        for given in (None, weights)
    )
    np.testing.assert_allclose(weighted, plain, atol=TOLERANCES.get(name, 1e-9))


def test_probabilities_are_accepted_only_when_named(problem: Any) -> None:
    logits = torch.from_numpy(problem.logits)
    probs = torch.softmax(logits, dim=1)
    calibrator = quick("ts").set_params(representation="probabilities").fit(probs, problem.labels)
    from_logits = quick("ts").fit(logits, problem.labels)
    torch.testing.assert_close(calibrator.predict_proba(probs), from_logits.predict_proba(logits), rtol=0, atol=1e-6)
    for wrong in (logits, probs - 0.1, 2 * probs, 1.002 * probs):
        for use in (partial(calibrator.fit, y=problem.labels), calibrator.predict_proba):
            with pytest.raises(InvalidInputError, match=r"^X .*row 0"):
                use(wrong)
            calibrator.fit(probs, problem.labels)
    assert np.isfinite(calibrator.predict_proba(probs.bfloat16()).numpy()).all()


def test_one_column_has_two_classes() -> None:
    with pytest.raises(InvalidInputError, match=r"^y .*got 2 at row 3"):
        quick("ts").fit(np.zeros((4, 1)), [0, 1, 0, 2])


def test_pyarrow_table_names_the_classes() -> None:
    table = pyarrow.table({"cat": [2.0, 0.0, 1.0, 0.5], "dog": [0.0, 1.0, 0.0, 1.0]})
    fitted = quick("ts").fit(table, ["cat", "dog", "cat", "cat"])
    assert fitted.feature_names_in_.tolist() == fitted.classes_.tolist() == ["cat", "dog"]
    with pytest.raises(InvalidInputError, match=r"^X .*columns of the fit"):
        fitted.predict_proba(table.rename_columns(["dog", "cat"]))
