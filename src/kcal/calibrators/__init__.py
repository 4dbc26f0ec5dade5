"""Calibrators: one file per family of methods, one contract, one table of methods."""

from kcal.calibrators.base import CalibrationModel, Calibrator, PredictionModule, Tags, accuracy_of
from kcal.calibrators.blend import KCalBlend
from kcal.calibrators.dirichlet import DirichletCalibration
from kcal.calibrators.explain import Explanation
from kcal.calibrators.fit_warnings import was_fitted_on
from kcal.calibrators.gp import GaussianProcessCalibration
from kcal.calibrators.imax import IMaxBinning
from kcal.calibrators.kcal import KCal, KCalLogits
from kcal.calibrators.neighbors import DensityAwareCalibration, KNNInterpolation
from kcal.calibrators.one_vs_rest import (
    BetaCalibration,
    HistogramBinning,
    IsotonicCalibration,
    PlattScaling,
    ScalingBinning,
    VennAbers,
)
from kcal.calibrators.online import (
    BandwidthRecord,
    OnlineState,
    Updates,
    online_ids,
    online_samples,
    online_state,
)
from kcal.calibrators.order_preserving import OrderPreservingCalibration
from kcal.calibrators.outputs import columns_of_fit, fit_on, in_order_of_fit, predict_on, train_projection_on, update_on
from kcal.calibrators.refit import LastLayerRefit
from kcal.calibrators.registry import METHODS, Method, calibrator_from_state, calibrator_state, make_calibrator
from kcal.calibrators.scaling import (
    EnsembleTemperatureScaling,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
    Uncalibrated,
    VectorScaling,
)
from kcal.calibrators.spline import SplineCalibration
from kcal.calibrators.state import CalibratorState

__all__ = [
    "METHODS",
    "BandwidthRecord",
    "BetaCalibration",
    "CalibrationModel",
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
    "MatrixScaling",
    "Method",
    "OnlineState",
    "OrderPreservingCalibration",
    "PlattScaling",
    "PredictionModule",
    "ScalingBinning",
    "SplineCalibration",
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "Tags",
    "TemperatureScaling",
    "Uncalibrated",
    "Updates",
    "VectorScaling",
    "VennAbers",
    "accuracy_of",
    "calibrator_from_state",
    "calibrator_state",
    "columns_of_fit",
    "fit_on",
    "in_order_of_fit",
    "make_calibrator",
    "online_ids",
    "online_samples",
    "online_state",
    "predict_on",
    "train_projection_on",
    "update_on",
    "was_fitted_on",
]
