"""Binary methods applied to each class against the rest."""

from kcal.calibrators.binary.beta import BetaCalibration
from kcal.calibrators.binary.histogram import HistogramBinning
from kcal.calibrators.binary.isotonic import IsotonicCalibration
from kcal.calibrators.binary.platt import PlattScaling
from kcal.calibrators.binary.scaling_binning import ScalingBinning

__all__ = ["BetaCalibration", "HistogramBinning", "IsotonicCalibration", "PlattScaling", "ScalingBinning"]
