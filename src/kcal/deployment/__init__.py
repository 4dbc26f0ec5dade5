"""Calibrated networks for production: one torch module, ONNX and torch.export."""

from kcal.deployment.classifier import CalibratedClassifier
from kcal.deployment.export import export_program, metadata_of, write_onnx
from kcal.deployment.predictors import HeadPredictor
from kcal.deployment.verification import TOLERANCE

__all__ = [
    "TOLERANCE",
    "CalibratedClassifier",
    "HeadPredictor",
    "export_program",
    "metadata_of",
    "write_onnx",
]
