"""Every calibrator as a torch module: its probabilities, evidence and gradients, copies, compilation and export."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kcal import METHODS, KCalBlend
from kcal.calibrators import Calibrator, PredictionModule, fit_on, make_calibrator
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError
from kcal.kernels import KERNELS
from module_cases import WITH_OWN_MODULE, cheap, first_rows, fitted, inputs_of, module_of, problem, query_rows

pytestmark = pytest.mark.usefixtures("short_solvers")
WITH_EVIDENCE = [name for name, method in METHODS.items() if method.factory().tags.has_evidence]
ON_LOGITS = [name for name, method in METHODS.items() if method.inputs != "embeddings"]
WITH_PROBABILITIES = [name for name in ON_LOGITS if "representation" in make_calibrator(name).get_params()]
STEPS = ("histogram", "imax", "venn-abers")
"""Methods whose probabilities are step functions."""
HOLDING_SAMPLES = ("kcal", "kcal-blend", "knn")


def check_same(calibrator: Calibrator, embeddings: torch.Tensor, logits: torch.Tensor) -> None:
    """Check that the module predicts as the calibrator, in batches of several sizes."""
    module, inputs = calibrator.as_module(), inputs_of(calibrator, embeddings, logits)
    rows, scores = inputs
    extra = {"logits": scores} if rows is not None and scores is not None else {}
    expected = calibrator.predict_proba(scores if rows is None else rows, **extra)
    tolerance = 1e-12 if expected.dtype == torch.float64 else 1e-6
    for size in (1, 7, len(expected)):
        found = module(*first_rows(inputs, size))
        torch.testing.assert_close(found, expected[:size], rtol=0, atol=tolerance)


# The same numbers as the calibrator


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_module_equals_predict_proba_near_and_far(name: str, dtype: torch.dtype) -> None:
    embeddings, logits = query_rows(dtype)
    for factor in (1, 10, 1e8):
        check_same(fitted(name), factor * embeddings, factor * logits)
    for mask in (-1e4, torch.finfo(torch.float32).min):
        masked = logits.clone()
        masked[:, 1] = masked[::2, 2] = mask
        check_same(fitted(name), embeddings, masked)


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *(("kcal", {"kernel": kernel, "projection": "identity"}) for kernel in KERNELS),
    ("kcal", {"kernel": "laplace", "projection": "identity", "bandwidth": 1e-3}),
    ("kcal", {"projection": "unit", "prior": [0.7, 0.2, 0.1], "smoothing": 0.01}),
    ("kcal", {"projection": "identity", "prior": [0.0, 1.0, 0.0], "bandwidth": 1e-3}),
    ("kcal-blend", {"prior": "uniform"}),
    ("kcal-blend", {"head": (np.ones((3, 6)), None)}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_kernels_priors_and_heads_are_those_of_the_calibrator(name: str, options: dict[str, Any]) -> None:
    part, (embeddings, logits) = problem(), query_rows()
    calibrator = fit_on(cheap(name, **options), ClassifierOutputs(part.embeddings, part.logits, part.labels))
    for factor in (1, 30, 1e14):
        check_same(calibrator, factor * embeddings, factor * logits)


@pytest.mark.parametrize("n_columns", [1, 3])
@pytest.mark.parametrize(
    ("name", "representation"),
    [*((name, "logits") for name in ON_LOGITS), *((name, "probabilities") for name in WITH_PROBABILITIES)],
)
def test_representation_and_single_columns_are_those_of_the_fit(name: str, representation: str, n_columns: int) -> None:
    part, (embeddings, queries) = problem(), query_rows()
    rows, labels = torch.from_numpy(part.logits), part.labels
    if n_columns == 1:  # of the second of two classes
        rows, queries, labels = rows[:, :1], queries[:, :1], (labels == 0).astype(int)
    if representation == "probabilities":
        rows, queries = ((torch.sigmoid(x) if n_columns == 1 else torch.softmax(x, dim=1)) for x in (rows, queries))
    options = {"representation": representation, "projection": "identity"}
    own = {key: value for key, value in options.items() if key in make_calibrator(name).get_params()}
    check_same(fit_on(cheap(name, **own), ClassifierOutputs(part.embeddings, rows, labels)), embeddings, queries)


@pytest.mark.filterwarnings("ignore:No logits were given")
def test_blend_without_logits_takes_none_and_one_of_two_classes_takes_log_odds() -> None:
    part, (embeddings, logits) = problem(), query_rows()
    check_same(KCalBlend().fit(part.embeddings, part.labels), embeddings, logits)
    odds, labels = part.logits[:, 0], part.labels == 0
    check_same(KCalBlend().fit(part.embeddings, labels, logits=odds), embeddings, logits[:, 0])


@pytest.mark.parametrize("name", WITH_EVIDENCE)
def test_evidence_is_that_of_the_calibrator(name: str) -> None:
    for dtype in (torch.float64, torch.float32):
        for factor in (1, 3, 100):
            embeddings, logits = (factor * rows for rows in query_rows(dtype))
            inputs = inputs_of(fitted(name), embeddings, logits)
            expected = fitted(name).evidence(logits if fitted(name).inputs == "logits" else embeddings)
            torch.testing.assert_close(module_of(name).evidence(*inputs), expected, rtol=0, atol=1e-6)
            probs, evidence = module_of(name).with_evidence(*inputs)
            torch.testing.assert_close(probs, module_of(name)(*inputs), rtol=0, atol=1e-6)
            torch.testing.assert_close(evidence, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=15)
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


@pytest.mark.parametrize("name", WITH_OWN_MODULE)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_single_precision(name: str, dtype: torch.dtype) -> None:
    half = tuple(rows.to(dtype) for rows in query_rows())
    found = module_of(name)(*inputs_of(fitted(name), *half))
    assert torch.equal(found, module_of(name)(*inputs_of(fitted(name), *(rows.float() for rows in half))))


# Errors


def test_method_without_evidence_raises() -> None:
    with pytest.raises(InvalidInputError, match="evidence"):
        module_of("ts").evidence(None, query_rows()[1])


# A module as torch knows them


@pytest.mark.parametrize("name", WITH_OWN_MODULE)
def test_copies_pickles_states_devices_and_precisions_keep_every_bit(name: str) -> None:
    module, inputs = fitted(name).as_module(), inputs_of(fitted(name), *query_rows())
    expected, state = module(*inputs), {key: value.clone() for key, value in module.state_dict().items()}
    cast = nn.Sequential(deepcopy(module)).half().to("cpu").train()[0]
    for other in (deepcopy(module), pickle.loads(pickle.dumps(module)), cast):
        assert torch.equal(other(*inputs), expected)
        assert not other.training
        assert not any(parameter.requires_grad for parameter in other.parameters())
        assert {key: value.dtype for key, value in other.state_dict().items()} == {
            key: value.dtype for key, value in state.items()
        }
    for tensor in module.state_dict().values():
        tensor.zero_()
    assert torch.equal(fitted(name).as_module()(*inputs), expected)  # tensors of its own
    module.load_state_dict(state)
    assert torch.equal(module(*inputs), expected)


@pytest.mark.parametrize("name", WITH_OWN_MODULE)
def test_loaded_tensors_count_at_once(name: str) -> None:
    module, inputs = fitted(name).as_module(), inputs_of(fitted(name), *query_rows())
    before, fresh = module(*inputs), fitted(name).as_module()
    changed = {key: 1.1 * value if value.is_floating_point() else value for key, value in module.state_dict().items()}
    module.load_state_dict(changed)
    fresh.load_state_dict(changed)
    found, expected = module.model(*inputs), deepcopy(fresh).model(*inputs)  # such tensors may lead to NaN
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert name == "uncal" or not torch.equal(found.exp().to(before), before)


@pytest.mark.parametrize("name", HOLDING_SAMPLES)
def test_state_holds_the_calibration_set_once(name: str) -> None:
    n, state = len(problem().labels), module_of(name).state_dict()
    assert sum(len(tensor) == n for tensor in state.values() if tensor.ndim == 2) == 1


@pytest.mark.parametrize("name", WITH_OWN_MODULE)
def test_module_moves_to_a_device_as_a_whole(name: str) -> None:
    module = fitted(name).as_module().to("meta")
    assert all(tensor.is_meta for tensor in module.state_dict().values())
    if not fitted(name).tags.has_evidence:  # kernel sums look at the numbers
        assert module(*inputs_of(fitted(name), *(rows.to("meta") for rows in query_rows()))).is_meta


class Evidence(nn.Module):
    """The evidence as the output of a module, as exporters want it."""

    def __init__(self, module: PredictionModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, embeddings: torch.Tensor | None, logits: torch.Tensor | None) -> torch.Tensor:
        return self.module.evidence(embeddings, logits)


MODULES = [*((name, False) for name in WITH_OWN_MODULE), ("kcal-logits", True), ("kcal-blend", True)]
"""Names of methods, and whether it is their evidence."""


@pytest.mark.parametrize(("name", "evidence"), MODULES)
def test_module_compiles_as_one_graph(name: str, evidence: bool) -> None:
    module: nn.Module = Evidence(module_of(name)) if evidence else module_of(name)
    inputs = inputs_of(fitted(name), *query_rows(torch.float32))
    torch.compiler.reset()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*first_rows(inputs, 7)), module(*first_rows(inputs, 7)))


@pytest.mark.parametrize("name", WITH_OWN_MODULE)
def test_gradients_flow_to_the_inputs(name: str) -> None:
    rows = tuple(part[:5].requires_grad_() for part in query_rows())
    inputs = inputs_of(fitted(name), *rows)
    probabilities = module_of(name)(*inputs)
    own = [part for part in inputs if part is not None]
    if name in STEPS:  # constant between the steps
        nudged = module_of(name)(*inputs_of(fitted(name), *(part + 1e-9 for part in rows)))
        torch.testing.assert_close(nudged, probabilities, rtol=0, atol=1e-7)
        network: Any = fitted(name).model_  # the only part with a gradient
        scaled = network.network_share * torch.softmax(own[0].double() / network.network_temperature, dim=1)
        found, expected = (torch.autograd.grad(part[:, 0].sum(), own)[0] for part in (probabilities, scaled))
        torch.testing.assert_close(found, expected)
        return
    gradients = torch.autograd.grad(probabilities[:, 0].log().sum(), own)
    for part, gradient in zip(own, gradients, strict=True):
        assert torch.isfinite(gradient).all()
        step = 1e-6 * torch.sign(gradient)
        moved = [other + step if other is part else other for other in rows]
        rise = module_of(name)(*inputs_of(fitted(name), *moved))[:, 0].log().sum() - probabilities[:, 0].log().sum()
        assert float(rise.detach()) == pytest.approx(float((gradient * step).sum()), rel=1e-2)


def test_gradients_at_an_embedding_of_zeros_are_finite() -> None:
    generator = np.random.default_rng(0)
    embeddings, labels = generator.normal(size=(60, 20)), np.arange(60) % 3
    blend = KCalBlend().fit(embeddings, labels, logits=generator.normal(size=(60, 3)))
    rows = torch.zeros(2, 20, requires_grad=True)
    blend.as_module()(rows, torch.zeros(2, 3))[:, 0].sum().backward()
    assert rows.grad is not None
    assert rows.grad.isfinite().all()


@pytest.mark.parametrize("name", ["kcal", "kcal-blend"])
def test_a_pickle_holds_the_calibration_set_once(name: str) -> None:
    calibrator = deepcopy(fitted(name))
    points = calibrator.model_.points.numpy().tobytes()
    assert pickle.dumps(calibrator).count(points) == 1


def test_a_blend_of_weighted_samples_is_exported() -> None:
    data = problem()
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(data.labels))
    blend = KCalBlend().fit(data.embeddings, data.labels, logits=data.logits, sample_weight=weights)
    module = blend.as_module()
    inputs = tuple(torch.from_numpy(part[:2] + 0.1) for part in (data.embeddings, data.logits))
    program = torch.export.export(module, inputs, strict=False)
    torch.testing.assert_close(program.module()(*inputs), module(*inputs))
