"""``kcal compress``, ``kcal export`` and ``kcal methods``."""

from __future__ import annotations

import json

import numpy as np
import pytest
from animals import blobs

import kcal
from kcal.calibrators import METHODS


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (["--size", 12], {"size": 12}),
        (["--size", "0.2"], {"size": 0.2}),
        (["--max-loss-increase", "0.5"], {"max_loss_increase": 0.5}),
        (["--size", "0.5", "--min-cluster-size", "6"], {"size": 0.5, "min_cluster_size": 6}),
    ],
)
def test_a_smaller_model_is_that_of_the_library(run, model, tmp_path, options, arguments):
    output = run("compress", model, *options, "-o", "small.kcal").stdout
    small, expected = kcal.load(tmp_path / "small.kcal"), kcal.load(model).compress(**arguments)
    rows = blobs(60, 2)["embeddings"]
    np.testing.assert_array_equal(small.predict_proba(rows), expected.predict_proba(rows))
    assert output == f"small.kcal: {small.support_size_} support points in place of 90\n"


def test_fewer_points_than_asked_for_are_a_warning(run, model):
    result = run("compress", model, "--size", 40, "--min-cluster-size", 1000, "-o", "small.kcal")
    assert result.stderr.startswith("warning: There are 3 support points, below --size 40: --min-cluster-size 1000")


@pytest.mark.usefixtures("shared_operators")
@pytest.mark.parametrize("with_data", [True, False])
def test_export_writes_a_file_that_predicts_the_same(run, model, test_set, with_data):
    onnxruntime = pytest.importorskip("onnxruntime")
    output = run("export", model, "--out", "head.onnx", *(("--data", test_set) if with_data else ())).output
    assert "head.onnx: embeddings to probabilities, evidence, verified with onnxruntime" in output
    queries = blobs(60, 2)["embeddings"].astype(np.float32)
    probs, evidence = onnxruntime.InferenceSession("head.onnx").run(None, {"embeddings": queries})
    calibrator = kcal.load(model)
    np.testing.assert_allclose(probs, calibrator.predict_proba(queries), atol=3e-6)
    np.testing.assert_allclose(evidence, calibrator.evidence(queries), atol=3e-6)


def test_methods_lists_the_registry(run):
    output = run("methods").stdout
    listed = json.loads(run("methods", "--json", "-").stdout)
    assert list(listed) == list(METHODS)
    for name, method in METHODS.items():
        assert name in output
        assert listed[name]["takes"] == method.inputs
        assert listed[name]["title"] == method.title


@pytest.mark.parametrize("name", METHODS)
def test_every_parameter_that_is_listed_can_be_set(run, calibration, name):
    """The default of each, typed again, is accepted."""
    parameters = json.loads(run("methods", name, "--json", "-").stdout)[name]["parameters"]
    assert {"progress", "head", "updates"}.isdisjoint(parameters)
    fixed = {"projection": "identity"} if "projection" in parameters else {}
    typed = {key: value for key, value in (parameters | fixed).items() if key not in ("dimension", "recipe")}
    words = [word for key, value in typed.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    if METHODS[name].cost < 6 and not METHODS[name].extra:
        run("fit", calibration, "-m", name, "-o", "m.kcal", *words)


@pytest.mark.parametrize("options", [["--size", "many"], ["--size", "0"], ["--size", "1.5"], []])
def test_the_size_is_checked_before_the_model_is_read(run, tmp_path, options):
    (tmp_path / "model.kcal").write_text("not a model")
    assert "--size" in run("compress", "model.kcal", *options, "-o", "small.kcal", code=2).output
