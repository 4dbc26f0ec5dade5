"""Intra order-preserving calibration functions."""
