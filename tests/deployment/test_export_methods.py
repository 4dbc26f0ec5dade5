"""Every method as an ONNX file, fitted in double precision: operators must exist in onnxruntime in both precisions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from kcal.calibrators import METHODS
from kcal.datasets import load_example
from kcal.deployment import HeadPredictor, metadata_of, write_onnx
from module_cases import WITH_OWN_MODULE, fitted, inputs_of, query_rows

onnxruntime = pytest.importorskip("onnxruntime")

WITH_KERNELS = ("kcal-logits", "kcal-blend")
"""Methods whose files have, together, every operator of the methods with kernels."""

pytestmark = pytest.mark.usefixtures("shared_operators")


def check_file(name: str, dtype: torch.dtype, path: Path) -> None:
    """Check that the file of a method predicts as its calibrator."""
    calibrator = fitted(name)
    inputs = inputs_of(calibrator, *query_rows(dtype))
    example = [part[:5] for part in inputs if part is not None]
    predictor = HeadPredictor(calibrator)
    write_onnx(predictor, example, path, metadata=metadata_of(calibrator))
    queries = [part[5:40] for part in inputs if part is not None]
    feeds = {key: part.numpy() for key, part in zip(predictor.names, queries, strict=True)}
    found = onnxruntime.InferenceSession(path).run(None, feeds)
    extra = {"logits": queries[1]} if len(queries) > 1 else {}
    np.testing.assert_allclose(found[0], calibrator.predict_proba(queries[0], **extra), atol=2e-6)
    if calibrator.has_evidence:
        np.testing.assert_allclose(found[1], calibrator.evidence(queries[0]), atol=2e-6)


@pytest.mark.parametrize("name", WITH_OWN_MODULE)
def test_a_file_predicts_as_its_calibrator(name: str, tmp_path: Path) -> None:
    check_file(name, torch.float32, tmp_path / "head.onnx")


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_a_file_of_double_precision_predicts_as_its_calibrator(name: str, tmp_path: Path) -> None:
    check_file(name, torch.float64, tmp_path / "head.onnx")


@pytest.mark.parametrize("name", ["platt", "isotonic", "imax"])
def test_a_file_of_logits_far_apart_predicts_as_its_calibrator(name: str, tmp_path: Path) -> None:
    example = load_example()
    calibrator = METHODS[name].factory().fit(example.calibration.logits[:400], example.calibration.labels[:400])
    rows = 50 * torch.from_numpy(example.test.logits[:40])  # probabilities that single sums of exponentials lose
    path = write_onnx(HeadPredictor(calibrator), [rows], tmp_path / "head.onnx", metadata=metadata_of(calibrator))
    found = onnxruntime.InferenceSession(path).run(None, {"logits": rows.numpy()})[0]
    np.testing.assert_allclose(found, calibrator.predict_proba(rows.numpy()), atol=2e-6)
