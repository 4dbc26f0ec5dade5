"""I-Max binning: bins that keep the mutual information between label and binned score."""

from kcal.calibrators.imax.estimator import IMaxBinning

__all__ = ["IMaxBinning"]
