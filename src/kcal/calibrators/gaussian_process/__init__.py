"""Gaussian-process calibration of the logits."""
