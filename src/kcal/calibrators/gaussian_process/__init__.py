"""Gaussian-process calibration of the logits."""

from kcal.calibrators.gaussian_process.estimator import GaussianProcessCalibration

__all__ = ["GaussianProcessCalibration"]
