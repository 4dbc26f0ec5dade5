"""Dirichlet calibration with off-diagonal and intercept regularisation."""
