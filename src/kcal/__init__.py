"""Calibrated probabilities for every class of a deep classifier."""

from importlib.metadata import version as _version

from kcal.calibrators import (
    CALIBRATORS,
    BetaCalibration,
    ClassifierOutputs,
    DirichletCalibration,
    EnsembleTemperatureScaling,
    GaussianProcessCalibration,
    HistogramBinning,
    IMaxBinning,
    IsotonicRegression,
    KCal,
    KCalLogits,
    MatrixScaling,
    OrderPreservingCalibration,
    PlattScaling,
    ScalingBinning,
    SplineCalibration,
    TemperatureScaling,
    Uncalibrated,
    VectorScaling,
)
from kcal.datasets import load_example
from kcal.errors import KcalError, KcalWarning
from kcal.metrics import evaluate
from kcal.persistence import load, save
from kcal.projection import FastRecipe, PaperRecipe, TrainedProjection, train_projection

__version__ = _version("kcal")

__all__ = [
    "CALIBRATORS",
    "BetaCalibration",
    "ClassifierOutputs",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "FastRecipe",
    "GaussianProcessCalibration",
    "HistogramBinning",
    "IMaxBinning",
    "IsotonicRegression",
    "KCal",
    "KCalLogits",
    "KcalError",
    "KcalWarning",
    "MatrixScaling",
    "OrderPreservingCalibration",
    "PaperRecipe",
    "PlattScaling",
    "ScalingBinning",
    "SplineCalibration",
    "TemperatureScaling",
    "TrainedProjection",
    "Uncalibrated",
    "VectorScaling",
    "__version__",
    "evaluate",
    "load",
    "load_example",
    "save",
    "train_projection",
]
