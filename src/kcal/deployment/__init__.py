"""Calibrated networks for production: one torch module, ONNX and torch.export."""

from kcal.deployment.classifier import CalibratedClassifier
from kcal.deployment.export import (
    TOLERANCE,
    HeadPredictor,
    example_rows,
    export_program,
    metadata_of,
    write_onnx,
)

__all__ = [
    "TOLERANCE",
    "CalibratedClassifier",
    "HeadPredictor",
    "example_rows",
    "export_program",
    "metadata_of",
    "write_onnx",
]
