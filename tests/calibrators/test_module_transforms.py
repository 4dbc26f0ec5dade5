"""Modules of calibrators are compiled, exported, copied, moved and differentiated."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from kcal.calibrators.modules import PredictionModule
from module_cases import WITH_OWN_MODULE, first_rows, fitted, inputs_of, module_of, query_rows

STEPS = ("histogram", "scaling-binning", "imax", "venn-abers")
"""Methods whose probabilities are step functions."""


class Evidence(nn.Module):
    """The evidence as the output of a module, as exporters want it."""

    def __init__(self, module: PredictionModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, embeddings: torch.Tensor | None, logits: torch.Tensor | None) -> torch.Tensor:
        return self.module.evidence(embeddings, logits)


MODULES = [*((name, False) for name in WITH_OWN_MODULE), ("kcal-logits", True), ("kcal-blend", True)]
"""Names of methods, and whether it is their evidence."""


def module_or_evidence(name: str, evidence: bool) -> nn.Module:
    return Evidence(module_of(name)) if evidence else module_of(name)


@pytest.mark.parametrize(("name", "evidence"), MODULES)
def test_a_module_compiles_as_one_graph(name: str, evidence: bool) -> None:
    module, inputs = module_or_evidence(name, evidence), inputs_of(fitted(name), *query_rows(torch.float32))
    torch.compiler.reset()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*first_rows(inputs, 7)), module(*first_rows(inputs, 7)))


@pytest.mark.parametrize(
    ("name", "evidence"),
    [
        ("ts", False),
        ("histogram", False),  # places among the bounds of each class
        ("kcal", False),
        ("kcal-logits", True),
        ("kcal-blend", False),
        ("kcal-blend", True),
    ],
)
def test_a_module_exports_with_any_number_of_rows(name: str, evidence: bool) -> None:
    """One method per kind of inputs and of bounds: the ONNX files of all are exported with any number of rows too."""
    module, inputs = module_or_evidence(name, evidence), inputs_of(fitted(name), *query_rows(torch.float32))
    shapes = tuple(None if part is None else {0: torch.export.Dim("rows", min=1)} for part in inputs)
    program = torch.export.export(module, first_rows(inputs, 7), dynamic_shapes=shapes).module()
    for size in (1, 2, 256):
        torch.testing.assert_close(program(*first_rows(inputs, size)), module(*first_rows(inputs, size)))


@pytest.mark.parametrize("name", WITH_OWN_MODULE)
def test_its_tensors_survive_copies_states_and_precisions(name: str) -> None:
    module, inputs = fitted(name).as_module(), inputs_of(fitted(name), *query_rows())
    expected, state = module(*inputs), {key: value.clone() for key, value in module.state_dict().items()}
    blank = deepcopy(module)
    for tensor in blank.state_dict().values():
        tensor.zero_()
    blank.load_state_dict(state)
    for other in (deepcopy(module), blank, nn.Sequential(module).half().to("cpu").train()[0]):
        assert torch.equal(other(*inputs), expected)
        assert not other.training
        assert not any(parameter.requires_grad for parameter in other.parameters())
        assert {key: value.dtype for key, value in other.state_dict().items()} == {
            key: value.dtype for key, value in state.items()
        }


@pytest.mark.parametrize("name", WITH_OWN_MODULE)
def test_replaced_tensors_count_at_once(name: str) -> None:
    module, inputs = fitted(name).as_module(), inputs_of(fitted(name), *query_rows())
    expected = module(*inputs)
    changed = {key: 1.1 * value if value.is_floating_point() else value for key, value in module.state_dict().items()}
    through_call = torch.func.functional_call(module, changed, inputs)
    assert torch.equal(module(*inputs), expected)
    module.load_state_dict(changed)
    torch.testing.assert_close(module(*inputs), through_call, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", WITH_OWN_MODULE)
def test_a_module_moves_to_a_device_as_a_whole(name: str) -> None:
    meta = [rows.to("meta") for rows in query_rows()]
    module = deepcopy(module_of(name)).to("meta")
    assert module(*inputs_of(fitted(name), *meta)).device.type == "meta"
    if fitted(name).has_evidence:
        assert module.evidence(*inputs_of(fitted(name), *meta)).device.type == "meta"


@pytest.mark.parametrize("name", WITH_OWN_MODULE)
def test_a_module_has_tensors_of_its_own(name: str) -> None:
    calibrator = fitted(name)
    inputs, module = inputs_of(calibrator, *query_rows()), calibrator.as_module()
    expected = module(*inputs)
    for tensor in module.state_dict().values():
        tensor.zero_()
    assert torch.equal(calibrator.as_module()(*inputs), expected)


@pytest.mark.parametrize("name", WITH_OWN_MODULE)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_single_precision(name: str, dtype: torch.dtype) -> None:
    half = tuple(rows.to(dtype) for rows in query_rows())
    found = module_of(name)(*inputs_of(fitted(name), *half))
    assert torch.equal(found, module_of(name)(*inputs_of(fitted(name), *(rows.float() for rows in half))))


@pytest.mark.parametrize("name", WITH_OWN_MODULE)
def test_gradients_flow_to_the_inputs(name: str) -> None:
    rows = tuple(part[:5].requires_grad_() for part in query_rows())
    inputs = inputs_of(fitted(name), *rows)
    probabilities = module_of(name)(*inputs)
    own = [part for part in inputs if part is not None]
    if name in STEPS:  # constant between the steps
        nudged = module_of(name)(*inputs_of(fitted(name), *(part + 1e-9 for part in rows)))
        torch.testing.assert_close(nudged, probabilities, rtol=0, atol=1e-7)
        network = fitted(name).network_  # the only part with a gradient
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
