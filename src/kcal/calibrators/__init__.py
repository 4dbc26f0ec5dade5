"""Calibrators: one package per method, one contract, one table of methods."""

from kcal.calibrators.base import Calibrator, CalibratorState
from kcal.calibrators.binary.binning import HistogramBinning, ScalingBinning
from kcal.calibrators.binary.isotonic import IsotonicCalibration
from kcal.calibrators.binary.logistic import BetaCalibration, PlattScaling
from kcal.calibrators.binary.venn_abers import VennAbers
from kcal.calibrators.blend.estimator import KCalBlend
from kcal.calibrators.dirichlet.estimator import DirichletCalibration
from kcal.calibrators.explanation import Explanation, LogOdds
from kcal.calibrators.gaussian_process.estimator import GaussianProcessCalibration
from kcal.calibrators.imax.estimator import IMaxBinning
from kcal.calibrators.kcal.estimator import KCal
from kcal.calibrators.kcal.logits import KCalLogits
from kcal.calibrators.modules import PredictionModule
from kcal.calibrators.online import BandwidthRecord, Updates
from kcal.calibrators.order_preserving.estimator import OrderPreservingCalibration
from kcal.calibrators.outputs import fit_on, predict_on, update_on
from kcal.calibrators.registry import METHODS, Method, calibrator_class, make_calibrator
from kcal.calibrators.scaling.ensemble_temperature import EnsembleTemperatureScaling
from kcal.calibrators.scaling.linear import (
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    VectorScaling,
)
from kcal.calibrators.scaling.temperature import TemperatureScaling
from kcal.calibrators.spline.estimator import SplineCalibration
from kcal.calibrators.uncalibrated import Uncalibrated
from kcal.calibrators.with_embeddings.dac import DensityAwareCalibration
from kcal.calibrators.with_embeddings.knn import KNNInterpolation
from kcal.calibrators.with_embeddings.refit import LastLayerRefit

__all__ = [
    "METHODS",
    "BandwidthRecord",
    "BetaCalibration",
    "Calibrator",
    "CalibratorState",
    "DensityAwareCalibration",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "Explanation",
    "GaussianProcessCalibration",
    "HistogramBinning",
    "IMaxBinning",
    "IsotonicCalibration",
    "KCal",
    "KCalBlend",
    "KCalLogits",
    "KNNInterpolation",
    "LastLayerRefit",
    "LogOdds",
    "MatrixScaling",
    "Method",
    "OrderPreservingCalibration",
    "PlattScaling",
    "PredictionModule",
    "ScalingBinning",
    "SplineCalibration",
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "TemperatureScaling",
    "Uncalibrated",
    "Updates",
    "VectorScaling",
    "VennAbers",
    "calibrator_class",
    "fit_on",
    "make_calibrator",
    "predict_on",
    "update_on",
]
