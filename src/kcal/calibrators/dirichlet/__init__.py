"""Dirichlet calibration with off-diagonal and intercept regularisation."""

from kcal.calibrators.dirichlet.estimator import DirichletCalibration

__all__ = ["DirichletCalibration"]
