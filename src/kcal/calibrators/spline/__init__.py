"""Spline calibration of the cumulative accuracy."""
