"""Calibrated networks for production: one torch module, ONNX and torch.export."""

from kcal.deployment.classifier import CalibratedClassifier
from kcal.deployment.export import TOLERANCE, HeadPredictor, export_program, metadata_of, write_onnx

__all__ = [
    "TOLERANCE",
    "CalibratedClassifier",
    "HeadPredictor",
    "export_program",
    "metadata_of",
    "write_onnx",
]
