"""What a calibrated classifier refuses, and that a refusal changes nothing."""

from __future__ import annotations

import copy
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_network import N_CLASSES, Network, Trained
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import kcal
from kcal import CalibratedClassifier, InvalidInputError, NetworkWarning


@pytest.fixture(scope="module")
def model(trained: Trained) -> CalibratedClassifier:
    return CalibratedClassifier(trained.network).fit(trained.calibration)


class Switching(nn.Module):
    """Gives the scores of another layer where they are large."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = nn.Linear(6, N_CLASSES), nn.Linear(6, N_CLASSES)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        near, far = self.near(points), self.far(points)
        return torch.where(far.abs().amax(dim=1, keepdim=True) > 50, far, near)


def test_a_head_that_no_longer_gives_the_logits_is_refused_everywhere(trained: Trained, tmp_path: Path) -> None:
    torch.manual_seed(0)
    fitted = CalibratedClassifier(Switching(), kcal.KCal(projection="identity")).fit(trained.calibration)
    far = trained.points[:3] * 500
    calls: list[Any] = [fitted, fitted.with_evidence, fitted.predict_proba, fitted.evidence]
    if find_spec("onnxruntime"):
        calls.append(lambda points: fitted.to_onnx(tmp_path / "network.onnx", points))
    for call in calls:
        with pytest.raises(InvalidInputError, match="head must give the logits of every batch; got near"):
            call(far)
    assert not list(tmp_path.iterdir())


def test_a_head_of_another_width_is_refused(model: CalibratedClassifier, trained: Trained, tmp_path: Path) -> None:
    path = model.save(tmp_path / "model.kcal")
    loaded = CalibratedClassifier.load(path, trained.network, head="body.0")
    with pytest.warns(NetworkWarning, match=r"body\.0 is not the last"):
        loaded.locate_head(trained.points)
    for call in (loaded, loaded.with_evidence):
        with pytest.raises(InvalidInputError, match=r"embeddings with the 16 columns of the fit; got 6.*head="):
            call(trained.points)


def test_positional_and_keyword_inputs_can_be_mixed() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, points: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.fc(points * mask)
            return logits

    torch.manual_seed(0)
    points, mask = torch.randn(60, 4), (torch.rand(60, 4) > 0.3).float()
    batch = {"points": points, "mask": mask, "labels": torch.arange(60) % 3}
    model = CalibratedClassifier(Masked(), "uncal").fit([batch])
    torch.testing.assert_close(model(points, mask=mask), model(points, mask), rtol=0, atol=0)
    with pytest.raises(InvalidInputError, match="inputs must be arguments of the network, each once; got 1 positional"):
        model(points, points=points)


def test_an_error_of_the_network_names_the_batch(trained: Trained) -> None:
    wrong = [trained.points[:4], trained.points[:4, :-1]]
    with pytest.raises(RuntimeError) as raised:
        kcal.extract(trained.network, wrong)
    assert raised.value.__notes__ == ["The network was run on batch 1 of the loader."]


def test_logits_of_another_width_are_refused(trained: Trained) -> None:
    outputs = kcal.extract(trained.network, trained.calibration)
    pairs = {"ts": kcal.TemperatureScaling().fit(outputs.logits, outputs.labels), "blend": kcal.KCalBlend()}
    pairs["blend"].fit(outputs.embeddings, outputs.labels, logits=outputs.logits)

    def head(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return trained.network.body(points), trained.network(points)[:, :3]

    for calibrator in pairs.values():
        wrong = CalibratedClassifier(trained.network, head=head)
        wrong.calibrator, wrong.calibrated_head = calibrator, calibrator.as_module()
        with pytest.raises(InvalidInputError, match="logits with the 4 columns of the fit; got 3"):
            wrong(trained.points)


@pytest.mark.parametrize("call", ["forward", "with_evidence"])
def test_inputs_are_tensors_with_samples(call: str, model: CalibratedClassifier, trained: Trained) -> None:
    run = getattr(model, call)
    with pytest.raises(InvalidInputError, match=r"inputs must be tensors; got .*torch\.from_numpy"):
        run(trained.points.numpy())
    with pytest.raises(InvalidInputError, match="inputs must be tensors"):
        run(points=trained.points.numpy())
    for predict in (run, model.predict_proba):
        with pytest.raises(InvalidInputError, match="must hold at least one sample; got none"):
            predict(trained.points[:0])


def test_arrays_and_tuples_of_batches_are_read(model: CalibratedClassifier, trained: Trained) -> None:
    expected = model.predict_proba(trained.points)
    points, labels = trained.points.numpy(), trained.labels.numpy()
    halves = ((trained.points[:25], trained.labels[:25]), [trained.points[25:], trained.labels[25:]])
    by_name = ({"points": trained.points[:25]}, {"points": trained.points[25:]})
    for data in (points, [points, labels], (points, labels), (points, labels.tolist()), halves, by_name, iter(halves)):
        np.testing.assert_allclose(model.predict_proba(data), expected, atol=1e-6)
    batches = tuple(trained.calibration)
    again = CalibratedClassifier(trained.network).fit(batches)
    np.testing.assert_array_equal(again.predict_proba(trained.points), expected)


def test_the_order_matters_to_predictions_and_to_the_evidence(model: CalibratedClassifier, trained: Trained) -> None:
    data = TensorDataset(trained.points, trained.labels)
    shuffled = DataLoader(data, batch_size=60, shuffle=True)
    for predict in (model.predict_proba, model.predict, model.evidence):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            predict(shuffled)
        assert [str(entry.message)[:19] for entry in caught] == ["The loader shuffles"]


class Wide(nn.Module):
    """The same names as the small network, more features."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 24))
        self.fc = nn.Linear(24, N_CLASSES)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(points))


@pytest.mark.parametrize("strict", [True, False])
def test_a_refused_state_changes_nothing(strict: bool, model: CalibratedClassifier, trained: Trained) -> None:
    torch.manual_seed(5)
    other = CalibratedClassifier(Wide(), kcal.KCal(projection="identity")).fit(trained.calibration)
    before = copy.deepcopy(dict(other.network.state_dict()))
    probs, predicted = other(trained.points), other.predict_proba(trained.points)
    with pytest.raises(
        InvalidInputError, match=r"state_dict must hold the tensors of this network, a Wide.*fc\.weight"
    ):
        other.load_state_dict(model.state_dict(), strict=strict)
    torch.testing.assert_close(dict(other.network.state_dict()), before, rtol=0, atol=0)
    torch.testing.assert_close(other(trained.points), probs, rtol=0, atol=0)
    np.testing.assert_array_equal(other.predict_proba(trained.points), predicted)


def test_the_state_of_an_unfitted_classifier_unfits(model: CalibratedClassifier, trained: Trained) -> None:
    restored = copy.deepcopy(model)
    restored.load_state_dict(CalibratedClassifier(Network()).state_dict())
    assert restored.calibrator is None
    assert restored.calibrated_head is None
    restored.load_state_dict(model.state_dict())
    torch.testing.assert_close(restored(trained.points), model(trained.points), rtol=0, atol=0)


def test_outputs_of_a_layer_with_computed_weights_are_known(trained: Trained) -> None:
    network = copy.deepcopy(trained.network)
    nn.utils.parametrizations.weight_norm(network.fc)
    fitted = CalibratedClassifier(network, "ts").fit(kcal.extract(network, trained.calibration))
    np.testing.assert_allclose(fitted(trained.points).detach().sum(dim=1), 1, atol=1e-5)


def test_a_head_may_be_named_as_in_a_wrapper(model: CalibratedClassifier, trained: Trained) -> None:
    named = CalibratedClassifier(nn.DataParallel(trained.network), head="module.fc").fit(trained.calibration)
    np.testing.assert_array_equal(named.predict_proba(trained.points), model.predict_proba(trained.points))
    with pytest.raises(InvalidInputError, match="head must be a layer of the network; got 'nowhere'"):
        CalibratedClassifier(trained.network, head="nowhere")


@pytest.mark.parametrize("method", ["kcal-blend", kcal.KCal(projection="identity")])
def test_probabilities_and_evidence_share_their_sums(method: Any, trained: Trained) -> None:
    fitted = CalibratedClassifier(trained.network, method).fit(trained.calibration)
    assert fitted.calibrated_head is not None
    probs, evidence = fitted(trained.points), fitted.evidence(trained.points)
    sums = [part for part in fitted.calibrated_head.modules() if type(part).__name__ == "EstimateModule"]
    assert sums
    runs: list[int] = []
    for part in sums:
        part.register_forward_hook(lambda *_: runs.append(1))
    found = fitted.with_evidence(trained.points)
    assert len(runs) == len(sums)
    torch.testing.assert_close(found[0], probs, rtol=0, atol=0)
    np.testing.assert_allclose(found[1].detach().numpy(), evidence, atol=1e-6)
