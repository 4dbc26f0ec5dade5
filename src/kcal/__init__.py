"""Calibrated probabilities for every class of a deep classifier.

Names are imported on first use: ``import kcal`` is quick and ``import kcal.metrics`` does not import torch.
"""

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING

from kcal.errors import (
    BandwidthWarning,
    ConvergenceWarning,
    ExportError,
    FewSamplesWarning,
    FileFormatError,
    IdentifiabilityWarning,
    InvalidInputError,
    KcalError,
    KcalWarning,
    LeakageWarning,
    LoaderWarning,
    MissingClassWarning,
    MissingExtraError,
    NetworkWarning,
    RepresentationWarning,
)

if TYPE_CHECKING:
    from kcal.calibrators import (
        METHODS,
        BetaCalibration,
        DensityAwareCalibration,
        DirichletCalibration,
        EnsembleTemperatureScaling,
        GaussianProcessCalibration,
        HistogramBinning,
        IMaxBinning,
        IsotonicCalibration,
        KCal,
        KCalBlend,
        KCalLogits,
        KNNInterpolation,
        LastLayerRefit,
        MatrixScaling,
        Method,
        OrderPreservingCalibration,
        PlattScaling,
        ScalingBinning,
        SplineCalibration,
        StructuredMatrixScaling,
        StructuredVectorScaling,
        TemperatureScaling,
        Uncalibrated,
        Updates,
        VectorScaling,
        VennAbers,
        fit_on,
        predict_on,
    )
    from kcal.datasets import load_example
    from kcal.deployment import CalibratedClassifier
    from kcal.embeddings import ClassifierOutputs, extract, read_outputs
    from kcal.metrics import evaluate
    from kcal.monitoring import CalibrationMonitor, estimate_performance, estimate_prior
    from kcal.persistence import CalibrationStore, load, save
    from kcal.projection import FastRecipe, PaperRecipe, TrainedProjection, train_projection

__version__ = _version("kcal")

__all__ = [
    "METHODS",
    "BandwidthWarning",
    "BetaCalibration",
    "CalibratedClassifier",
    "CalibrationMonitor",
    "CalibrationStore",
    "ClassifierOutputs",
    "ConvergenceWarning",
    "DensityAwareCalibration",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "ExportError",
    "FastRecipe",
    "FewSamplesWarning",
    "FileFormatError",
    "GaussianProcessCalibration",
    "HistogramBinning",
    "IMaxBinning",
    "IdentifiabilityWarning",
    "InvalidInputError",
    "IsotonicCalibration",
    "KCal",
    "KCalBlend",
    "KCalLogits",
    "KNNInterpolation",
    "KcalError",
    "KcalWarning",
    "LastLayerRefit",
    "LeakageWarning",
    "LoaderWarning",
    "MatrixScaling",
    "Method",
    "MissingClassWarning",
    "MissingExtraError",
    "NetworkWarning",
    "OrderPreservingCalibration",
    "PaperRecipe",
    "PlattScaling",
    "RepresentationWarning",
    "ScalingBinning",
    "SplineCalibration",
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "TemperatureScaling",
    "TrainedProjection",
    "Uncalibrated",
    "Updates",
    "VectorScaling",
    "VennAbers",
    "__version__",
    "estimate_performance",
    "estimate_prior",
    "evaluate",
    "extract",
    "fit_on",
    "load",
    "load_example",
    "predict_on",
    "read_outputs",
    "save",
    "train_projection",
]

_MODULES = (
    "kcal.metrics",
    "kcal.monitoring",
    "kcal.embeddings",
    "kcal.projection",
    "kcal.calibrators",
    "kcal.persistence",
    "kcal.datasets",
    "kcal.deployment",
)
"""Modules that define the names above, the quickest to import first."""


def __getattr__(name: str) -> object:
    if name in __all__:
        module = next(module for module in map(_import_module, _MODULES) if name in module.__all__)
        value = globals()[name] = getattr(module, name)
        return value
    if not name.startswith("_") and _find_spec(f"kcal.{name}") is not None:
        return _import_module(f"kcal.{name}")
    raise AttributeError(f"module 'kcal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "metrics", "monitoring", "plots"})
