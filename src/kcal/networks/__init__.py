"""Base networks whose probabilities are calibrated; they know no data set and no calibrator."""

from kcal.networks.small_cnn import SmallCNN

__all__ = ["SmallCNN"]
