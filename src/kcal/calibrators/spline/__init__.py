"""Spline calibration of the cumulative accuracy."""

from kcal.calibrators.spline.estimator import SplineCalibration

__all__ = ["SplineCalibration"]
