"""Binary methods applied to each class against the rest."""

from kcal.calibrators.binary.binning import HistogramBinning, ScalingBinning
from kcal.calibrators.binary.isotonic import IsotonicCalibration
from kcal.calibrators.binary.logistic import BetaCalibration, PlattScaling

__all__ = ["BetaCalibration", "HistogramBinning", "IsotonicCalibration", "PlattScaling", "ScalingBinning"]
