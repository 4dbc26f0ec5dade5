"""What all methods on logits share: the state of their models, the meaning of weights, the border."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from kcal.calibrators.logit_base import LogitCalibrator, to_log_probs

from calibrator_checks import quick
from kcal.calibrators.base import REPRESENTATIONS
from kcal.calibrators.registry import METHODS
from kcal.errors import FileFormatError, InvalidInputError

pytestmark = pytest.mark.usefixtures("short_solvers")
NAMES = [name for name, method in METHODS.items() if issubclass(method.calibrator_class, LogitCalibrator)]
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
def fitted(request: pytest.FixtureRequest, problem: Any) -> LogitCalibrator:
    name, parameters = request.param
    calibrator = quick(name).set_params(**parameters)
    assert isinstance(calibrator, LogitCalibrator)
    return calibrator.fit(problem.logits, problem.labels)


def test_a_model_comes_back_from_its_state(fitted: LogitCalibrator, problem: Any) -> None:
    again = type(fitted).from_state(fitted.state())
    np.testing.assert_array_equal(again.predict_proba(problem.test_logits), fitted.predict_proba(problem.test_logits))
    assert again.summary() == fitted.summary()
    for name in (name for name in dir(type(fitted)) if name.endswith("_") and not name.startswith("_")):
        values, stored = getattr(fitted, name), getattr(again, name)
        pairs = zip(values, stored, strict=True) if isinstance(values, list) else [(values, stored)]
        assert all(np.array_equal(value, other) for value, other in pairs), name


def test_tensors_of_another_type_or_shape_are_refused(fitted: LogitCalibrator) -> None:
    state = fitted.state()
    for name, tensor in state.tensors.items():
        damages = [tensor.float(), tensor[None]]
        if name not in ("search", "tried", "fingerprints"):  # fewer of these are as good
            damages.append(tensor[:-1])
        for damaged in damages:
            with pytest.raises(FileFormatError, match="stored"):
                type(fitted).from_state(replace(state, tensors=state.tensors | {name: damaged}))
        if name != "fingerprints":
            rest = {other: value for other, value in state.tensors.items() if other != name}
            with pytest.raises(FileFormatError, match=f"no {name.removeprefix('order_map.')}"):
                type(fitted).from_state(replace(state, tensors=rest))


def test_values_of_another_type_are_refused(fitted: LogitCalibrator) -> None:
    state = fitted.state()
    for name in state.values.keys() - {"classes", "feature_names"}:
        for damaged in (1.5 if isinstance(state.values[name], str) else "nonsense", None, [], {}):
            with pytest.raises(FileFormatError, match="stored"):
                type(fitted).from_state(replace(state, values=state.values | {name: damaged}))
    with pytest.raises(FileFormatError, match="4 columns are stored for 3 classes"):
        type(fitted).from_state(replace(state, values=state.values | {"n_features": 4}))


TOLERANCES = {"vector": 1e-4, "matrix": 1e-4, "sms": 1e-4, "platt": 1e-5, "beta": 1e-5, "gp": 1e-4}


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=str)
def test_in_the_fit_itself_integer_weights_equal_repetition(name: str, parameters: Any, problem: Any) -> None:
    """Before they are scaled to mean 1; folds, and a spline's knots, depend on the number of rows."""
    if name in ("dircal", "iop", "spline"):
        return
    weights = np.random.default_rng(0).integers(1, 4, len(problem.labels))
    log_probs = torch.log_softmax(torch.from_numpy(problem.logits), dim=1)
    calibrator: Any = quick(name).set_params(**parameters)
    weighted = calibrator._fit_log_probs(log_probs, problem.labels, weights.astype(float))
    repeated = calibrator._fit_log_probs(
        log_probs.repeat_interleave(torch.from_numpy(weights), dim=0),
        np.repeat(problem.labels, weights),
        np.ones(weights.sum()),
    )
    queries = torch.log_softmax(torch.from_numpy(problem.test_logits), dim=1)
    np.testing.assert_allclose(
        weighted.log_probs(queries).exp(), repeated.log_probs(queries).exp(), atol=TOLERANCES.get(name, 1e-9)
    )


def test_probabilities_are_accepted_only_when_named(problem: Any) -> None:
    logits = torch.from_numpy(problem.logits)
    probs = torch.softmax(logits, dim=1)
    torch.testing.assert_close(
        to_log_probs(probs, "probabilities"), to_log_probs(logits, "logits").clamp_min(np.log(1e-12))
    )
    calibrator = quick("ts").set_params(representation="probabilities").fit(probs, problem.labels)
    for wrong in (logits, probs - 0.1, 2 * probs, 1.002 * probs):
        for use in (partial(calibrator.fit, y=problem.labels), calibrator.predict_proba):
            with pytest.raises(InvalidInputError, match=r"^X must hold probabilities that sum to 1.*row 0") as caught:
                use(wrong)
            assert caught.value.parameter == "X"
            calibrator.fit(probs, problem.labels)
    assert np.isfinite(calibrator.predict_proba(probs.bfloat16()).numpy()).all()


@pytest.mark.parametrize("representation", REPRESENTATIONS)
def test_log_probabilities_that_ignore_the_order_of_classes_permute_to_the_last_bit(representation: str) -> None:
    logits = torch.randn(200, 17, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = logits if representation == "logits" else torch.softmax(logits, dim=1)
    columns = torch.randperm(17, generator=torch.Generator().manual_seed(1))
    plain = to_log_probs(rows, representation, ignore_order=True)
    assert torch.equal(to_log_probs(rows[:, columns], representation, ignore_order=True), plain[:, columns])
    torch.testing.assert_close(plain, to_log_probs(rows, representation))


def test_one_column_has_two_classes() -> None:
    with pytest.raises(InvalidInputError, match=r"^y must be column indices from 0 to 1; got 2 at row 3"):
        quick("ts").fit(np.zeros((4, 1)), [0, 1, 0, 2])


def test_a_table_of_pyarrow_is_a_table() -> None:
    table = pyarrow.table({"cat": [2.0, 0.0, 1.0, 0.5], "dog": [0.0, 1.0, 0.0, 1.0]})
    fitted = quick("ts").fit(table, ["cat", "dog", "cat", "cat"])
    assert fitted.feature_names_in_.tolist() == fitted.classes_.tolist() == ["cat", "dog"]
    with pytest.raises(InvalidInputError, match="columns of the fit"):
        fitted.predict_proba(table.rename_columns(["dog", "cat"]))
