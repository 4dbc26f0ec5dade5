"""Intra order-preserving calibration functions."""

from kcal.calibrators.order_preserving.estimator import OrderPreservingCalibration

__all__ = ["OrderPreservingCalibration"]
