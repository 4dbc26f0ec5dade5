"""Every calibrator as a torch module: its probabilities and its evidence are those of the calibrator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

from kcal import METHODS, KCal, KCalBlend
from kcal.calibrators import Calibrator, fit_on, make_calibrator
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError
from kcal.kernels import KERNELS
from module_cases import cheap, first_rows, fitted, inputs_of, module_of, predicted, problem, query_rows

pytestmark = pytest.mark.usefixtures("short_solvers")
WITH_EVIDENCE = [name for name, method in METHODS.items() if method.calibrator_class.has_evidence]
ON_LOGITS = [name for name, method in METHODS.items() if method.inputs != "embeddings"]
WITH_PROBABILITIES = [name for name in ON_LOGITS if "representation" in make_calibrator(name).get_params()]


def check_same(calibrator: Calibrator, embeddings: torch.Tensor, logits: torch.Tensor, tolerance: float) -> None:
    """Check that the module predicts as the calibrator, in batches of several sizes."""
    module, inputs = calibrator.as_module(), inputs_of(calibrator, embeddings, logits)
    expected = predicted(calibrator, embeddings, logits)
    for size in (1, 2, 7, len(expected)):
        found = module(*first_rows(inputs, size))
        torch.testing.assert_close(found, expected[:size], rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_a_module_predicts_as_the_calibrator_near_and_far(name: str, dtype: torch.dtype) -> None:
    embeddings, logits = query_rows(dtype)
    for factor in (1, 10, 100, 1e8):
        check_same(fitted(name), factor * embeddings, factor * logits, 1e-12 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("mask", [-1e4, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("name", ON_LOGITS)
def test_masked_classes_are_masked(name: str, mask: float) -> None:
    embeddings, logits = query_rows(torch.float32)
    logits[:, 1] = mask
    logits[::2, 2] = mask
    check_same(fitted(name), embeddings, logits, 1e-6)


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *(
        (name, {"maps": maps})
        for name in ("platt", "beta", "isotonic", "venn-abers", "histogram")
        for maps in ("class", "shared")
    ),
    ("histogram", {"binning": "equal-mass", "bins": 1}),
    ("scaling-binning", {"maps": "class", "bins": 6}),
    ("imax", {"form": "classwise"}),
    ("imax", {"form": "top"}),
    ("spline", {"form": "rank"}),
    ("spline", {"form": "top"}),
    ("spline", {"floor": False}),
    ("iop", {"form": "diag"}),
    ("iop", {"form": "oi"}),
    *(("kcal", {"kernel": kernel, "projection": "identity"}) for kernel in KERNELS),
    ("kcal", {"kernel": "laplace", "projection": "identity", "bandwidth": 1e-3}),
    ("kcal", {"projection": "unit", "prior": [0.7, 0.2, 0.1], "smoothing": 0.01}),
    ("kcal", {"projection": "identity", "prior": [0.0, 1.0, 0.0], "bandwidth": 1e-3}),
    ("kcal-blend", {"prior": "uniform"}),
    ("kcal-blend", {"folds": 3}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_a_module_knows_the_options_of_its_method(name: str, options: dict[str, Any]) -> None:
    part = problem()
    outputs = ClassifierOutputs(part.embeddings, part.logits, part.labels)
    embeddings, logits = query_rows()
    calibrator = fit_on(cheap(name, **options), outputs)
    for factor, tolerance in ((1, 1e-11), (30, 1e-10), (1e14, 1e-6)):  # far away exponents are differences of roots
        check_same(calibrator, factor * embeddings, factor * logits, tolerance)


@pytest.mark.parametrize("name", WITH_PROBABILITIES)
def test_a_module_takes_the_representation_of_the_fit(name: str) -> None:
    part, (embeddings, logits) = problem(), query_rows()
    probs = np.exp(part.logits) / np.exp(part.logits).sum(axis=1, keepdims=True)
    outputs = ClassifierOutputs(part.embeddings, probs, part.labels)
    calibrator = cheap(name, representation="probabilities", **without_training(name))
    check_same(fit_on(calibrator, outputs), embeddings, torch.softmax(logits, dim=1), 1e-12)


@pytest.mark.parametrize(
    ("name", "representation"),
    [*((name, "logits") for name in ON_LOGITS), *((name, "probabilities") for name in WITH_PROBABILITIES)],
)
def test_one_column_is_the_second_of_two_classes(name: str, representation: str) -> None:
    part, (embeddings, logits) = problem(), query_rows()
    parameters = {"representation": representation} if name in WITH_PROBABILITIES else {}
    calibrator = cheap(name, **parameters, **without_training(name))
    column, queries = torch.from_numpy(part.logits[:, :1]), logits[:, :1]
    if representation == "probabilities":
        column, queries = torch.sigmoid(column), torch.sigmoid(queries)
    outputs = ClassifierOutputs(part.embeddings, column, (part.labels == 0).astype(int))
    check_same(fit_on(calibrator, outputs), embeddings, queries, 1e-12)


def without_training(name: str) -> dict[str, Any]:
    """Return parameters of a projection that needs no training, if the method has one."""
    if "projection" not in make_calibrator(name).get_params():
        return {}
    return {"projection": "identity"}


@pytest.mark.parametrize("name", ["kcal", "kcal-blend"])
@pytest.mark.parametrize("given", ["logits", "no logits"])
@pytest.mark.filterwarnings("ignore::kcal.errors.KcalWarning")
def test_weights_and_missing_classes_count_as_in_the_calibrator(name: str, given: str) -> None:
    part, (embeddings, logits) = problem(), query_rows()
    weights = np.random.default_rng(0).exponential(size=len(part.labels))
    weights[(part.labels == 1) | (np.arange(len(weights)) % 7 == 0)] = 0.0
    scores = part.logits if given == "logits" else None
    outputs = ClassifierOutputs(part.embeddings, scores, part.labels, weights=weights)
    calibrator = fit_on(cheap(name, **without_training(name)), outputs, classes=[0, 1, 2])
    for factor in (1, 10):
        check_same(calibrator, factor * embeddings, logits, 1e-12)


@pytest.mark.parametrize("name", WITH_EVIDENCE)
def test_the_evidence_is_that_of_the_calibrator(name: str) -> None:
    for dtype in (torch.float64, torch.float32):
        rows = query_rows(dtype)
        for factor in (1, 3, 100):
            embeddings, logits = factor * rows[0], factor * rows[1]
            found = module_of(name).evidence(*inputs_of(fitted(name), embeddings, logits))
            expected = fitted(name).evidence(logits if fitted(name).inputs == "logits" else embeddings)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_a_method_without_evidence_says_so() -> None:
    with pytest.raises(InvalidInputError, match="without evidence"):
        module_of("ts").evidence(None, query_rows()[1])


@pytest.mark.parametrize("kernel", KERNELS)
def test_single_precision_is_as_good_as_double_precision(kernel: str) -> None:
    part, (embeddings, _) = problem(), query_rows(torch.float32)
    single = KCal(kernel=kernel, projection="identity").fit(part.embeddings.astype(np.float32), part.labels)
    same = KCal(kernel=kernel, projection="identity", bandwidth=single.bandwidth_)
    double = same.fit(part.embeddings.astype(np.float32).astype(np.float64), part.labels)
    for factor in (1, 10, 100):
        rows = factor * embeddings
        expected = double.predict_proba(rows.double()).float()
        torch.testing.assert_close(single.as_module()(rows), expected, rtol=0, atol=5e-5 if kernel == "rbf" else 1e-6)


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_rows_sum_to_one(name: str, data: st.DataObject) -> None:
    magnitudes = st.floats(-1e6, 1e6, width=32)
    embeddings, logits = (
        torch.tensor(data.draw(st.lists(st.lists(magnitudes, min_size=k, max_size=k), min_size=2, max_size=2)))
        for k in (6, 3)
    )
    probabilities = module_of(name)(*inputs_of(fitted(name), embeddings, logits))
    assert (probabilities >= 0).all()
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(2), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "missing"), [("ts", "logits"), ("kcal", "embeddings"), ("kcal-blend", "logits")])
def test_a_missing_input_is_named(name: str, missing: str) -> None:
    embeddings, logits = query_rows()
    with pytest.raises(InvalidInputError, match=f"{missing} are needed"):
        module_of(name)(**{"embeddings": embeddings, "logits": logits, missing: None})


@pytest.mark.parametrize("name", METHODS)
def test_an_unfitted_calibrator_has_no_module(name: str) -> None:
    with pytest.raises(NotFittedError):
        make_calibrator(name).as_module()


def test_a_blend_without_logits_takes_none() -> None:
    part, (embeddings, logits) = problem(), query_rows()
    blend = KCalBlend().fit(part.embeddings, part.labels)
    check_same(blend, embeddings, logits, 1e-12)


def test_a_module_of_two_classes_takes_one_logit_per_row() -> None:
    generator = np.random.default_rng(0)
    embeddings, odds = generator.normal(size=(80, 20)), 2 * generator.normal(size=80)
    labels = (odds + generator.logistic(size=80) > 0).astype(int)
    blend = KCalBlend().fit(embeddings, labels, logits=odds)
    found = blend.as_module()(torch.from_numpy(embeddings + 0.1), torch.from_numpy(odds))
    np.testing.assert_allclose(found, blend.predict_proba(embeddings + 0.1, logits=odds), atol=1e-6)


def test_gradients_in_an_embedding_of_zeros_are_finite() -> None:
    generator = np.random.default_rng(0)
    embeddings, labels = generator.normal(size=(60, 20)), np.arange(60) % 3
    blend = KCalBlend().fit(embeddings, labels, logits=generator.normal(size=(60, 3)))
    rows = torch.zeros(2, 20, requires_grad=True)
    blend.as_module()(rows, torch.zeros(2, 3))[:, 0].sum().backward()
    assert rows.grad is not None
    assert rows.grad.isfinite().all()
