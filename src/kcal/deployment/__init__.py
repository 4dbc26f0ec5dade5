"""Calibrated networks for production: one torch module, ONNX and torch.export."""

from kcal.deployment.classifier import CalibratedClassifier

__all__ = ["CalibratedClassifier"]
