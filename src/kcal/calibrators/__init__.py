"""Calibrators: one file a method, one contract, one table of names."""

from kcal.calibrators.base import Calibrator, CalibratorState
from kcal.calibrators.beta import BetaCalibration
from kcal.calibrators.blend import KCalBlend
from kcal.calibrators.dirichlet import DirichletCalibration
from kcal.calibrators.ensemble_temperature import EnsembleTemperatureScaling
from kcal.calibrators.gaussian_process import GaussianProcessCalibration
from kcal.calibrators.histogram import HistogramBinning
from kcal.calibrators.imax import IMaxBinning
from kcal.calibrators.isotonic import IsotonicRegression
from kcal.calibrators.kcal import KCal
from kcal.calibrators.kcal_logits import KCalLogits
from kcal.calibrators.order_preserving import OrderPreservingCalibration
from kcal.calibrators.outputs import ClassifierOutputs, fit_on, predict_on
from kcal.calibrators.platt import PlattScaling
from kcal.calibrators.scaling import MatrixScaling, VectorScaling
from kcal.calibrators.scaling_binning import ScalingBinning
from kcal.calibrators.spline import SplineCalibration
from kcal.calibrators.structured_scaling import StructuredMatrixScaling
from kcal.calibrators.table import CALIBRATORS, class_of, make_calibrator
from kcal.calibrators.temperature import TemperatureScaling
from kcal.calibrators.uncalibrated import Uncalibrated

__all__ = [
    "CALIBRATORS",
    "BetaCalibration",
    "Calibrator",
    "CalibratorState",
    "ClassifierOutputs",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "GaussianProcessCalibration",
    "HistogramBinning",
    "IMaxBinning",
    "IsotonicRegression",
    "KCal",
    "KCalBlend",
    "KCalLogits",
    "MatrixScaling",
    "OrderPreservingCalibration",
    "PlattScaling",
    "ScalingBinning",
    "SplineCalibration",
    "StructuredMatrixScaling",
    "TemperatureScaling",
    "Uncalibrated",
    "VectorScaling",
    "class_of",
    "fit_on",
    "make_calibrator",
    "predict_on",
]
