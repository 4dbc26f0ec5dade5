"""ONNX and torch.export of every method and of networks: real clients run the files, and a wrong file is never kept."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_network import Trained
from torch import nn

import kcal
from calibrator_checks import fit, prediction_arguments, quick
from kcal import CalibratedClassifier, ExportError, InvalidInputError, KCal, MissingExtraError
from kcal.deployment import HeadPredictor, export, export_program, write_onnx
from kcal.persistence import load_with_network
from module_cases import WITH_OWN_MODULE
from synthetic import Problem, make_problem

onnxruntime = pytest.importorskip("onnxruntime")

NAMES = ["ant", "bee", "cat", "dog"]
OUTPUTS = {"kcal": ["embeddings"], "ts": ["logits"], "kcal-blend": ["embeddings", "logits"]}

pytestmark = pytest.mark.usefixtures("shared_operators")


@pytest.fixture(scope="module")
def models(trained: Trained) -> dict[str, CalibratedClassifier]:
    outputs = kcal.extract(trained.network, trained.calibration, progress=False)
    methods = {"kcal": KCal(projection="identity"), "ts": "ts", "kcal-blend": "kcal-blend"}
    fitted = {name: CalibratedClassifier(trained.network, method) for name, method in methods.items()}
    return {name: model.fit(outputs, classes=NAMES) for name, model in fitted.items()}


@pytest.fixture(scope="module")
def scaled(models: dict[str, CalibratedClassifier]) -> CalibratedClassifier:
    return models["ts"]


@pytest.fixture(scope="module")
def small() -> Problem:
    return make_problem(n=90, n_train=120, n_test=40)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in WITH_OWN_MODULE if name not in OUTPUTS),  # which networks below have
        *((name, torch.float64) for name in ("ts", "isotonic", "imax", "kcal-logits", "kcal-blend")),
    ],
)
def test_exports_of_every_method_equal_the_calibrator(
    name: str, dtype: torch.dtype, small: Problem, tmp_path: Path
) -> None:
    calibrator = fit(quick(name), small)
    predictor = HeadPredictor(calibrator)
    near = {"embeddings": small.test_embeddings, "logits": small.test_logits}
    parts = {part: np.concatenate([rows, 50 * rows]) for part, rows in near.items()}
    if calibrator.inputs != "embeddings" and name != "kcal-logits":  # which compares logits as they are
        parts["logits"] = np.where(np.arange(3) == np.arange(-20, 60)[:, None], -np.inf, parts["logits"])
    rows = [torch.tensor(parts[part], dtype=dtype) for part in predictor.names]
    outputs = kcal.ClassifierOutputs(*(torch.tensor(part, dtype=dtype) for part in parts.values()))
    arguments, extra = prediction_arguments(calibrator, outputs, lambda part: part)
    expected = [calibrator.predict_proba(*arguments, **extra)]
    expected += [calibrator.evidence(*arguments)] if calibrator.tags.has_evidence else []
    found = [[part.numpy() for part in export_program(predictor, [part[:5] for part in rows]).module()(*rows)]]
    if dtype == torch.float32 or name == "kcal-blend":  # which has all operators of kernels
        path = write_onnx(predictor, [part[:5] for part in rows], tmp_path / "head.onnx", metadata={})
        feeds = {part: given.numpy() for part, given in zip(predictor.names, rows, strict=True)}
        found.append(onnxruntime.InferenceSession(path).run(None, feeds))
    for results in found:
        for one, other in zip(results, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-6)


@pytest.mark.parametrize("name", ["kcal", "ts", "kcal-blend"])
def test_file_of_a_network_gives_probabilities_and_evidence(
    name: str, models: dict[str, CalibratedClassifier], trained: Trained, tmp_path: Path
) -> None:
    model = models[name]
    session = onnxruntime.InferenceSession(model.to_onnx(tmp_path / "network.onnx", trained.points[:5]))
    for n_rows in (1, 7, 256):
        for factor in (1.0, 30.0):
            points = factor * trained.points[torch.arange(n_rows) % 60]
            found = session.run(None, {"input": points.numpy()})
            np.testing.assert_allclose(found[0], model.predict_proba(points), atol=2e-6)
            for evidence in found[1:]:
                np.testing.assert_allclose(evidence, model.evidence(points), atol=2e-6)
    described = session.get_modelmeta().custom_metadata_map
    assert json.loads(described["classes"]) == NAMES
    assert (described["method"], described["kcal_version"]) == (name, kcal.__version__)
    outputs = ["probabilities"] if name == "ts" else ["probabilities", "evidence"]
    assert [entry.name for entry in session.get_outputs()] == outputs
    assert {entry.shape[0] for entry in [*session.get_inputs(), *session.get_outputs()]} == {"batch"}
    assert [path.name for path in tmp_path.iterdir()] == ["network.onnx"]


def test_exported_program_takes_any_number_of_rows(scaled: CalibratedClassifier, trained: Trained) -> None:
    program = scaled.to_exported(trained.points[:1]).module()
    for n_rows in (1, 3, 60):
        (probs,) = program(trained.points[:n_rows])
        np.testing.assert_allclose(probs.detach().numpy(), scaled.predict_proba(trained.points[:n_rows]), atol=1e-6)


@pytest.mark.parametrize("method", OUTPUTS)
def test_file_of_the_network_alone(
    method: str, models: dict[str, CalibratedClassifier], trained: Trained, tmp_path: Path
) -> None:
    session = onnxruntime.InferenceSession(models[method].network_to_onnx(tmp_path / "net.onnx", trained.points[:5]))
    names = [entry.name for entry in session.get_outputs()]
    assert names == OUTPUTS[method]
    extracted = kcal.extract(trained.network, [trained.points], progress=False)
    for n_rows in (1, 60):
        results = session.run(None, {"input": trained.points[:n_rows].numpy()})
        for name, values in zip(names, results, strict=True):
            np.testing.assert_allclose(values, getattr(extracted, name)[:n_rows], rtol=1e-5, atol=1e-5)
    described = session.get_modelmeta().custom_metadata_map
    assert json.loads(described["network"]) == load_with_network(models[method].save(tmp_path / "model.kcal"))[1]


class Decoder(nn.Module):
    """Scores every token and takes the last one that is not padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.score = nn.Embedding(30, 8), nn.Linear(8, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        scores = self.score(torch.tanh(self.embed(input_ids).cumsum(dim=1)))
        last = attention_mask.sum(dim=1) - 1
        return SimpleNamespace(logits=scores[torch.arange(scores.shape[0]), last])


@pytest.mark.filterwarnings("ignore::kcal.KcalWarning")
def test_inputs_by_name_are_integers_and_keep_their_names(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokens, lengths = torch.randint(1, 30, (40, 6)), torch.randint(1, 7, (40,))
    mask = (torch.arange(6)[None] < lengths[:, None]).long()
    batch = {"input_ids": tokens * mask, "attention_mask": mask}
    fitted = CalibratedClassifier(Decoder(), KCal(projection="identity"))
    outputs = fitted.outputs([{**batch, "labels": torch.arange(40) % 3}])
    fitted.fit(outputs)
    feeds, some = (
        {name: part[:3] for name, part in rows.items()}
        for rows in ({name: part.numpy() for name, part in batch.items()}, batch)
    )
    for write, expected in (
        (fitted.to_onnx, fitted.predict_proba(some)),
        (fitted.network_to_onnx, outputs.embeddings[:3]),
    ):
        session = onnxruntime.InferenceSession(write(tmp_path / "decoder.onnx", batch))
        assert [(entry.name, entry.type) for entry in session.get_inputs()] == [
            (name, "tensor(int64)") for name in batch
        ]
        np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-5, atol=2e-6)


class Masking(nn.Module):
    """A classifier that excludes a class, as some do with classes that a task does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.fc(points) + torch.tensor([0.0, 0.0, -torch.inf])


def test_masked_class_has_the_logit_that_the_fit_saw(tmp_path: Path) -> None:
    torch.manual_seed(0)
    points = torch.randn(60, 4)
    network, head = Masking(), (lambda inputs: (inputs, network(inputs)))
    outputs = kcal.extract(network, [(points, torch.randint(2, (60,)))], head=head, progress=False)
    model = CalibratedClassifier(network, "ts", head=head).fit(outputs)
    session = onnxruntime.InferenceSession(model.network_to_onnx(tmp_path / "net.onnx", points))
    (logits,) = session.run(None, {"input": points.numpy()})
    np.testing.assert_allclose(logits, outputs.logits, rtol=1e-5, atol=1e-5)
    assert (logits[:, 2] == np.finfo(np.float32).min).all()


def wrong_run(change: Any) -> Any:
    run = onnxruntime.InferenceSession.run
    return lambda session, names, feeds: [change(*entry) for entry in enumerate(run(session, names, feeds))]


@pytest.mark.parametrize(
    ("change", "write", "message"),
    [
        (lambda _, part: part + 0.45 * (len(part) == 7), "to_onnx", r"probabilities by 0\.45 with 7 rows"),
        (lambda _, part: part * np.float32(np.nan), "to_onnx", "probabilities by nan with 1 rows"),
        (lambda place, part: part * (1 + 0.01 * place), "to_onnx", "evidence by"),
        (lambda place, part: part * (1.001 - 0.001 * place), "network_to_onnx", "embeddings by"),
    ],
)
def test_file_that_differs_is_not_kept(
    change: Any,
    write: str,
    message: str,
    models: dict[str, CalibratedClassifier],
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "network.onnx"
    path.write_bytes(b"an older file")
    monkeypatch.setattr(onnxruntime.InferenceSession, "run", wrong_run(change))
    with pytest.raises(ExportError, match=rf"differs from torch, {message}"):
        getattr(models["kcal" if write == "to_onnx" else "kcal-blend"], write)(path, trained.points)
    assert path.read_bytes() == b"an older file"
    assert list(tmp_path.iterdir()) == [path]


def test_exported_program_that_differs_is_refused(
    scaled: CalibratedClassifier, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = torch.export.export

    def wrong(*arguments: Any, **options: Any) -> Any:
        module = traced(*arguments, **options).module()
        return SimpleNamespace(
            module=lambda: lambda rows: tuple(part + 0.1 * (len(rows) == 2) for part in module(rows))
        )

    monkeypatch.setattr(torch.export, "export", wrong)
    with pytest.raises(ExportError, match=r"differs from torch, probabilities by 0\.1 with 2 rows"):
        scaled.to_exported(trained.points)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (torch.export, "export"),
        (torch.onnx, "export"),
        (onnxruntime, "InferenceSession"),
        (onnxruntime.InferenceSession, "run"),
    ],
)
def test_errors_of_other_packages_become_export_errors(
    owner: Any,
    name: str,
    scaled: CalibratedClassifier,
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such operator\n\nand a long trace")

    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(ExportError, match=r"RuntimeError: no such operator\)") as caught:
        scaled.to_onnx(tmp_path / "network.onnx", trained.points)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert not list(tmp_path.iterdir())


def test_errors_of_the_folder_name_the_file_that_was_asked_for(
    scaled: CalibratedClassifier, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "models" / "network.onnx", torch.onnx.export
    path.parent.mkdir()

    def read_only(file: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    def vanish(*arguments: Any, **options: Any) -> None:
        write(*arguments, **options)
        shutil.rmtree(path.parent)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        with pytest.raises(PermissionError) as denied:
            scaled.to_onnx(path, trained.points)
    monkeypatch.setattr(torch.onnx, "export", vanish)
    with pytest.raises(FileNotFoundError) as vanished:
        scaled.to_onnx(path, trained.points)
    assert denied.value.filename == vanished.value.filename == str(path)
    assert not list(tmp_path.iterdir())


def files_of(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_large_tensors_go_to_a_second_file_and_the_old_files_are_valid_until_the_new_ones_are(
    scaled: CalibratedClassifier, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "EXTERNAL_BYTES", 100)
    path, feeds = tmp_path / "network.onnx", {"input": trained.points.numpy()}
    scaled.to_onnx(path, trained.points)
    assert files_of(tmp_path) == ["network.onnx", "network.onnx.data"]
    expected = onnxruntime.InferenceSession(path).run(None, feeds)[0]
    np.testing.assert_allclose(expected, scaled.predict_proba(trained.points), atol=1e-6)
    graph, replace = path.read_bytes(), Path.replace

    def stop(source: Path, target: Path) -> Path:
        if Path(target) == path:
            raise OSError(errno.ENOSPC, "No space left on device", str(source))
        return replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stop)
        with pytest.raises(OSError, match="No space left"):
            scaled.to_onnx(path, trained.points)
    assert files_of(tmp_path) == ["network.onnx", "network.onnx.data"]
    assert path.read_bytes() == graph
    scaled.to_onnx(path, trained.points)
    assert len(files_of(tmp_path)) == 2  # the new graph and its tensors
    assert not path.with_name("network.onnx.data").exists()
    np.testing.assert_array_equal(onnxruntime.InferenceSession(path).run(None, feeds)[0], expected)
    monkeypatch.setattr(export, "EXTERNAL_BYTES", 10**9)
    path.with_name("other.onnx.data").write_bytes(b"of another file")
    scaled.to_onnx(path, trained.points)
    assert files_of(tmp_path) == ["network.onnx", "other.onnx.data"]


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("example", "image"),
        ("example", torch.empty(0, 6)),
        ("example", (torch.ones(2, 6), torch.ones(3, 6))),
        ("example", [1.0, 2.0]),
        ("example", ()),
        ("path", "nowhere/network.onnx"),
        ("tolerance", 0),
    ],
)
def test_wrong_arguments_are_named(
    parameter: str, value: Any, scaled: CalibratedClassifier, trained: Trained, tmp_path: Path
) -> None:
    given = {"path": tmp_path / "network.onnx", "example": trained.points, parameter: value}
    for write in (scaled.to_onnx, scaled.network_to_onnx):
        with pytest.raises(InvalidInputError, match=rf"^{parameter}"):
            write(**given)
    assert not list(tmp_path.iterdir())


def test_missing_extra_is_named(
    scaled: CalibratedClassifier, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'kcal\[onnx\]'"):
        scaled.to_onnx(tmp_path / "network.onnx", trained.points)
