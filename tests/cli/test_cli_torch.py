"""Folders of extracted outputs as data, and calibrators as ONNX files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from animals import blobs

import kcal

onnxruntime = pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.usefixtures("shared_operators")


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    points, labels = torch.randn(120, 5), torch.arange(120) % 3
    points[:, 0] += labels
    kcal.extract(network, [(points[:50], labels[:50]), (points[50:], labels[50:])], to=tmp_path / "outputs")
    return tmp_path / "outputs"


@pytest.mark.filterwarnings("ignore::kcal.KcalWarning")
def test_a_folder_of_extracted_outputs_is_data(run, folder):
    run("fit", folder, "--out", "model.kcal")
    outputs = kcal.read_outputs(folder)
    expected = kcal.fit_on(kcal.KCalBlend(), outputs)
    rows = outputs.embeddings + 1
    np.testing.assert_allclose(
        kcal.load("model.kcal").predict_proba(rows, logits=outputs.logits),
        expected.predict_proba(rows, logits=outputs.logits),
        atol=1e-7,
    )
    run("evaluate", "model.kcal", folder, "--allow-overlap")


def test_a_folder_that_is_not_complete_is_refused(run, folder):
    record = folder / "outputs.json"
    record.write_text(record.read_text().replace("true", "false"))
    assert "stopped after 120 rows" in run("fit", folder, "--out", "model.kcal", code=1).output


def test_export_writes_a_file_that_predicts_the_same(run, model, test_set):
    output = run("export", model, "--out", "head.onnx", "--data", test_set).output
    assert "head.onnx: embeddings to probabilities, evidence, verified with onnxruntime" in output
    queries = blobs(60, 2)["embeddings"].astype(np.float32)
    probs, evidence = onnxruntime.InferenceSession("head.onnx").run(None, {"embeddings": queries})
    calibrator = kcal.load(model)
    np.testing.assert_allclose(probs, calibrator.predict_proba(queries), atol=3e-6)
    np.testing.assert_allclose(evidence, calibrator.evidence(queries), atol=3e-6)


def test_export_makes_up_rows_without_data(run, model):
    output = run("export", model, "--out", "head.onnx").output
    assert "head.onnx: embeddings to probabilities, evidence, verified with onnxruntime" in output


def test_export_refuses_other_suffixes_and_its_own_model(run, model, tmp_path):
    assert "--out must end in .onnx" in run("export", model, "--out", "head.txt", code=2).output
    assert "nowhere.kcal is not a file" in run("export", "nowhere.kcal", "--out", "head.onnx", code=1).output
    assert not (tmp_path / "head.onnx").exists()
