"""ONNX and torch.export: real clients run the files, and a wrong file is never kept."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import warnings
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_network import N_CLASSES, Trained
from torch import nn

import kcal
from kcal import CalibratedClassifier, ExportError, InvalidInputError, MissingExtraError
from kcal.calibrators import Calibrator
from kcal.deployment import HeadPredictor, export, metadata_of, write_onnx
from kcal.deployment.export import MAX_ROWS

onnxruntime = pytest.importorskip("onnxruntime")

NAMES = ["ant", "bee", "cat", "dog"]

pytestmark = pytest.mark.usefixtures("shared_operators")


@pytest.fixture(scope="module")
def blend(trained: Trained) -> CalibratedClassifier:
    return CalibratedClassifier(trained.network).fit(trained.calibration, classes=NAMES)


@pytest.fixture(scope="module")
def scaled(trained: Trained) -> CalibratedClassifier:
    return CalibratedClassifier(trained.network, "ts").fit(trained.calibration)


@pytest.fixture(scope="module")
def blend_file(blend: CalibratedClassifier, trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return blend.to_onnx(tmp_path_factory.mktemp("onnx") / "network.onnx", trained.points[:5])


@pytest.mark.parametrize("n_rows", [1, 2, 7, 256])
@pytest.mark.parametrize("factor", [1.0, 30.0])
def test_onnxruntime_gives_the_probabilities_and_the_evidence(
    n_rows: int, factor: float, blend: CalibratedClassifier, blend_file: Path, trained: Trained
) -> None:
    points = factor * trained.points[torch.arange(n_rows) % 60]
    probs, evidence = onnxruntime.InferenceSession(blend_file).run(None, {"input": points.numpy()})
    np.testing.assert_allclose(probs, blend.predict_proba(points), atol=2e-6)
    np.testing.assert_allclose(evidence, blend.evidence(points), atol=2e-6)


def test_the_file_describes_itself(blend_file: Path) -> None:
    session = onnxruntime.InferenceSession(blend_file)
    described = session.get_modelmeta().custom_metadata_map
    assert json.loads(described["classes"]) == NAMES
    assert described["method"] == "kcal-blend"
    assert described["kcal_version"] == kcal.__version__
    assert [entry.name for entry in session.get_outputs()] == ["probabilities", "evidence"]
    assert [path.name for path in blend_file.parent.iterdir()] == ["network.onnx"]


def test_an_exported_program_takes_any_number_of_rows(scaled: CalibratedClassifier, trained: Trained) -> None:
    program = scaled.to_exported(trained.points[:1]).module()
    for n_rows in (1, 3, 60):
        (probs,) = program(trained.points[:n_rows])
        np.testing.assert_allclose(probs.detach().numpy(), scaled.predict_proba(trained.points[:n_rows]), atol=1e-6)


def test_a_file_that_differs_is_not_kept(
    scaled: CalibratedClassifier, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "network.onnx"
    path.write_bytes(b"an older file")
    run = onnxruntime.InferenceSession.run

    def wrong(session: Any, names: Any, feeds: Any) -> Any:
        return [output + 0.45 * (len(output) == 7) for output in run(session, names, feeds)]

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", wrong)
    with pytest.raises(ExportError, match=r"differs from torch, probabilities by 0\.45 with 7 rows"):
        scaled.to_onnx(path, trained.points)
    assert path.read_bytes() == b"an older file"
    assert list(tmp_path.iterdir()) == [path]


def test_numbers_that_are_not_finite_are_a_difference(scaled: CalibratedClassifier, trained: Trained) -> None:
    predictor = HeadPredictor(fitted_calibrator(scaled))
    session = SimpleNamespace(run=lambda *_: [np.full((1, N_CLASSES), np.nan, dtype=np.float32)])
    with pytest.raises(ExportError, match="probabilities by nan with 1 rows"):
        verify_onnx(session, predictor, [torch.randn(5, N_CLASSES)], 1e-5)


def fitted_calibrator(classifier: CalibratedClassifier) -> Calibrator:
    assert classifier.calibrator is not None
    return classifier.calibrator


def test_a_module_that_does_not_predict_as_its_calibrator_is_refused(
    blend: CalibratedClassifier, trained: Trained, tmp_path: Path
) -> None:
    changed = deepcopy(blend)
    changed.get_buffer("calibrated_head.formula.exponents")[0] += 0.5
    message = "the module to export does not predict as its calibrator, probabilities by"
    with pytest.raises(ExportError, match=message):
        changed.to_onnx(tmp_path / "network.onnx", trained.points)
    with pytest.raises(ExportError, match=message):
        changed.to_exported(trained.points)
    head = HeadPredictor(fitted_calibrator(blend))
    head.get_buffer("head.estimate.reference.log_densities").sub_(1.0)
    outputs = blend.outputs(trained.points)
    example = [torch.from_numpy(part) for part in (outputs.embeddings, outputs.logits)]
    with pytest.raises(ExportError, match="as its calibrator, evidence by"):
        write_onnx(head, example, tmp_path / "head.onnx", metadata={})
    assert not list(tmp_path.iterdir())


def test_an_exported_program_that_differs_is_refused(
    scaled: CalibratedClassifier, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = torch.export.export

    def wrong(*arguments: Any, **options: Any) -> Any:
        module = traced(*arguments, **options).module()
        return SimpleNamespace(
            module=lambda: lambda rows: tuple(part + 0.1 * (len(rows) == 2) for part in module(rows))
        )

    monkeypatch.setattr(torch.export, "export", wrong)
    with pytest.raises(ExportError, match=r"torch\.export differs from torch, probabilities by 0\.1 with 2 rows"):
        scaled.to_exported(trained.points)


@pytest.mark.parametrize(
    ("owner", "name", "message"),
    [
        (torch.export, "export", r"torch\.export does not follow the computation \(RuntimeError: no such operator\)"),
        (torch.onnx, "export", r"torch\.onnx does not write the file \(RuntimeError: no such operator\)\. Replace"),
        (onnxruntime, "InferenceSession", r"does not load the file \(RuntimeError: no such operator\)\. Try"),
        (onnxruntime.InferenceSession, "run", r"does not run the file \(RuntimeError: no such operator\)\. Try"),
    ],
)
def test_errors_of_other_packages_say_what_to_do(
    owner: Any,
    name: str,
    message: str,
    scaled: CalibratedClassifier,
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such operator\n\nand a long trace")

    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(ExportError, match=message) as caught:
        scaled.to_onnx(tmp_path / "network.onnx", trained.points)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert not list(tmp_path.iterdir())


def test_errors_of_the_folder_name_the_file_that_was_asked_for(
    scaled: CalibratedClassifier, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "models" / "network.onnx"
    path.parent.mkdir()

    def read_only(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path.parent / ".1234.onnx"))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        with pytest.raises(PermissionError) as denied:
            scaled.to_onnx(path, trained.points)
    write = torch.onnx.export

    def vanish(*arguments: Any, **options: Any) -> None:
        write(*arguments, **options)
        shutil.rmtree(path.parent)

    monkeypatch.setattr(torch.onnx, "export", vanish)
    with pytest.raises(FileNotFoundError) as vanished:
        scaled.to_onnx(path, trained.points)
    assert denied.value.filename == vanished.value.filename == str(path)
    assert not list(tmp_path.iterdir())


def test_a_large_example_is_cut_for_the_verification() -> None:
    assert max(len(rows) for (rows,) in verification_batches([torch.zeros(10 * MAX_ROWS, 2)])) == MAX_ROWS


def test_large_tensors_go_to_a_second_file(
    scaled: CalibratedClassifier, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "EXTERNAL_BYTES", 100)
    path = scaled.to_onnx(tmp_path / "network.onnx", trained.points)
    assert files_of(tmp_path) == ["network.onnx", "network.onnx.data"]
    (probs,) = onnxruntime.InferenceSession(path).run(None, {"input": trained.points.numpy()})
    np.testing.assert_allclose(probs, scaled.predict_proba(trained.points), atol=1e-6)


def files_of(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_the_old_file_is_valid_until_the_new_one_is_complete(
    scaled: CalibratedClassifier, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "EXTERNAL_BYTES", 100)
    path, feeds = tmp_path / "network.onnx", {"input": trained.points.numpy()}
    scaled.to_onnx(path, trained.points)
    expected = onnxruntime.InferenceSession(path).run(None, feeds)[0]
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


def test_a_network_with_named_inputs_and_a_selected_token(tmp_path: Path) -> None:
    class Decoder(nn.Module):
        """Scores every token and takes the last one that is not padding."""

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(30, 8)
            self.score = nn.Linear(8, 3)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
            scores = self.score(torch.tanh(self.embed(input_ids).cumsum(dim=1)))
            last = attention_mask.sum(dim=1) - 1
            return SimpleNamespace(logits=scores[torch.arange(scores.shape[0]), last])

    torch.manual_seed(0)
    tokens, lengths = torch.randint(1, 30, (40, 6)), torch.randint(1, 7, (40,))
    mask = (torch.arange(6)[None] < lengths[:, None]).long()
    batch = {"input_ids": tokens * mask, "attention_mask": mask}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kcal.KcalWarning)
        fitted = CalibratedClassifier(Decoder(), kcal.KCal(projection="identity")).fit(
            [{**batch, "labels": torch.arange(40) % 3}]
        )
        session = onnxruntime.InferenceSession(fitted.to_onnx(tmp_path / "decoder.onnx", batch))
        feeds = {name: part[:3].numpy() for name, part in batch.items()}
        expected = fitted.predict_proba({name: part[:3] for name, part in batch.items()})
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, atol=2e-6)


@pytest.mark.parametrize("method", ["isotonic", "kcal"])
def test_made_up_rows_verify_a_head_alone(method: str, trained: Trained, tmp_path: Path) -> None:
    outputs = kcal.extract(trained.network, trained.calibration)
    calibrator = kcal.KCal(recipe=kcal.FastRecipe(steps=2)) if method == "kcal" else kcal.IsotonicCalibration()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kcal.HeldOutWarning)
        kcal.fit_on(calibrator, outputs)
    predictor, rows = HeadPredictor(calibrator), calibrator.example_inputs(9)
    example = [rows[name] for name in predictor.names]
    path = write_onnx(predictor, example, tmp_path / "head.onnx", metadata=metadata_of(calibrator))
    queries = outputs.embeddings + 0.5 if method == "kcal" else outputs.logits + 0.5
    found = onnxruntime.InferenceSession(path).run(None, {predictor.names[0]: queries})
    np.testing.assert_allclose(found[0], calibrator.predict_proba(queries), atol=2e-6)
    if method == "kcal":
        np.testing.assert_allclose(found[1], calibrator.evidence(queries), atol=2e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"example": "image"}, r"example must be 1 tensor\(s\) with the same number of rows: input"),
        ({"example": torch.empty(0, 6)}, "example must be 1 tensor"),
        ({"example": (torch.ones(2, 6), torch.ones(3, 6))}, r"2 tensor\(s\) with the same number of rows: input_0"),
        ({"path": "nowhere/network.onnx"}, "path must be in an existing folder"),
        ({"tolerance": 0}, "tolerance must be a number greater than 0"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: dict[str, Any], message: str, scaled: CalibratedClassifier, trained: Trained, tmp_path: Path
) -> None:
    given = {"path": tmp_path / "network.onnx", "example": trained.points, **arguments}
    with pytest.raises(InvalidInputError, match=message):
        scaled.to_onnx(**given)
    assert not list(tmp_path.iterdir())


def test_without_the_packages_the_extra_is_named(
    scaled: CalibratedClassifier, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'kcal\[onnx\]'"):
        scaled.to_onnx(tmp_path / "network.onnx", trained.points)
