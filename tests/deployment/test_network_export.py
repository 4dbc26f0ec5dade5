"""The network alone as ONNX: its outputs are those that a calibrator is fitted on, and a wrong file is never kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_network import Trained
from torch import nn

import kcal
from kcal import CalibratedClassifier, ExportError, InvalidInputError, KCal, NetworkWarning
from kcal.persistence import load_with_network

onnxruntime = pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.usefixtures("shared_operators")

OUTPUTS = {"kcal": ["embeddings"], "ts": ["logits"], "kcal-blend": ["embeddings", "logits"]}
METHODS = {"kcal": KCal(projection="identity"), "ts": "ts", "kcal-blend": "kcal-blend"}


@pytest.fixture(scope="module")
def models(trained: Trained) -> dict[str, CalibratedClassifier]:
    outputs = kcal.extract(trained.network, trained.calibration, progress=False)
    return {name: CalibratedClassifier(trained.network, method).fit(outputs) for name, method in METHODS.items()}


@pytest.mark.parametrize("method", OUTPUTS)
def test_the_file_gives_the_outputs_that_the_calibrator_takes_and_names_its_network(
    method: str, models: dict[str, CalibratedClassifier], trained: Trained, tmp_path: Path
) -> None:
    path = models[method].network_to_onnx(tmp_path / "net.onnx", trained.points[:5])
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]
    session = onnxruntime.InferenceSession(path)
    names = [entry.name for entry in session.get_outputs()]
    assert names == OUTPUTS[method]
    extracted = kcal.extract(trained.network, [trained.points], progress=False)
    for n_rows in (1, 60):
        results = session.run(None, {"input": trained.points[:n_rows].numpy()})
        for name, values in zip(names, results, strict=True):
            np.testing.assert_allclose(values, getattr(extracted, name)[:n_rows], rtol=1e-5, atol=1e-5)
    described = session.get_modelmeta().custom_metadata_map
    assert json.loads(described["network"]) == load_with_network(models[method].save(tmp_path / "model.kcal"))[1]
    assert described["kcal_version"] == kcal.__version__


class Tokens(nn.Module):
    """A classifier of sequences of token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.fc = nn.Embedding(50, 8), nn.Linear(8, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        words = self.words(input_ids) * attention_mask[..., None]
        return self.fc(words.sum(1) / attention_mask.sum(1, keepdim=True))


def test_inputs_by_name_are_integers_and_keep_their_names(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ids, labels = torch.randint(50, (90, 6)), torch.randint(3, (90,))
    batch: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    network = Tokens()
    outputs = kcal.extract(network, [{**batch, "labels": labels}], progress=False)
    model = CalibratedClassifier(network, METHODS["kcal"]).fit(outputs)
    session = onnxruntime.InferenceSession(model.network_to_onnx(tmp_path / "text.onnx", batch))
    assert [(entry.name, entry.type) for entry in session.get_inputs()] == [
        ("input_ids", "tensor(int64)"),
        ("attention_mask", "tensor(int64)"),
    ]
    (embeddings,) = session.run(None, {name: part.numpy()[:7] for name, part in batch.items()})
    np.testing.assert_allclose(embeddings, outputs.embeddings[:7], rtol=1e-5, atol=1e-6)


class Masking(nn.Module):
    """A classifier that excludes a class, as some do with classes that a task does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.fc(points) + torch.tensor([0.0, 0.0, -torch.inf])


def test_a_class_that_is_masked_out_has_the_logit_that_the_fit_saw(tmp_path: Path) -> None:
    torch.manual_seed(0)
    points = torch.randn(60, 4)
    network, head = Masking(), (lambda inputs: (inputs, network(inputs)))
    outputs = kcal.extract(network, [(points, torch.randint(2, (60,)))], head=head, progress=False)
    model = CalibratedClassifier(network, "ts", head=head).fit(outputs)
    session = onnxruntime.InferenceSession(model.network_to_onnx(tmp_path / "net.onnx", points))
    (logits,) = session.run(None, {"input": points.numpy()})
    np.testing.assert_allclose(logits, outputs.logits, rtol=1e-5, atol=1e-5)
    assert (logits[:, 2] == np.finfo(np.float32).min).all()


@pytest.mark.parametrize("output", OUTPUTS["kcal-blend"])
def test_a_file_whose_outputs_differ_is_not_kept(
    output: str,
    models: dict[str, CalibratedClassifier],
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = onnxruntime.InferenceSession.run

    def wrong(session: Any, names: Any, feeds: Any) -> Any:
        place = OUTPUTS["kcal-blend"].index(output)
        return [part * (1.001 if one == place else 1) for one, part in enumerate(run(session, names, feeds))]

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", wrong)
    with pytest.raises(ExportError, match=f"differs from torch, {output} by"):
        models["kcal-blend"].network_to_onnx(tmp_path / "net.onnx", trained.points)
    assert not list(tmp_path.iterdir())


def test_a_network_that_has_changed_since_the_fit_warns(
    models: dict[str, CalibratedClassifier], trained: Trained, tmp_path: Path
) -> None:
    bias = trained.network.fc.bias
    before = bias.detach().clone()
    try:
        bias.data += 1.0
        with pytest.warns(NetworkWarning, match="have changed since the fit"):
            models["ts"].network_to_onnx(tmp_path / "net.onnx", trained.points[:4])
    finally:
        bias.data.copy_(before)


def test_an_example_that_is_no_tensor_is_refused(models: dict[str, CalibratedClassifier], tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="must be 2 tensor"):
        models["ts"].network_to_onnx(tmp_path / "net.onnx", [1.0, 2.0])
    assert not list(tmp_path.iterdir())
