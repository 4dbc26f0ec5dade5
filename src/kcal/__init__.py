"""Calibrated probabilities for every class of a deep classifier.

Names are loaded when they are first used, so that ``import kcal.metrics`` waits for nothing that metrics do not need.
"""

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING

from kcal.errors import KcalError, KcalWarning

if TYPE_CHECKING:
    from kcal.calibrators import (
        METHODS,
        BetaCalibration,
        ClassifierOutputs,
        DirichletCalibration,
        EnsembleTemperatureScaling,
        GaussianProcessCalibration,
        HistogramBinning,
        IMaxBinning,
        IsotonicCalibration,
        KCal,
        KCalBlend,
        KCalLogits,
        MatrixScaling,
        OrderPreservingCalibration,
        PlattScaling,
        ScalingBinning,
        SplineCalibration,
        StructuredMatrixScaling,
        TemperatureScaling,
        Uncalibrated,
        VectorScaling,
    )
    from kcal.datasets import load_example
    from kcal.metrics import evaluate
    from kcal.persistence import load, save
    from kcal.projection import FastRecipe, PaperRecipe, TrainedProjection, train_projection

__version__ = _version("kcal")

__all__ = [
    "METHODS",
    "BetaCalibration",
    "ClassifierOutputs",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "FastRecipe",
    "GaussianProcessCalibration",
    "HistogramBinning",
    "IMaxBinning",
    "IsotonicCalibration",
    "KCal",
    "KCalBlend",
    "KCalLogits",
    "KcalError",
    "KcalWarning",
    "MatrixScaling",
    "Method",
    "OrderPreservingCalibration",
    "PaperRecipe",
    "PlattScaling",
    "ScalingBinning",
    "SplineCalibration",
    "StructuredMatrixScaling",
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

_HOMES = ("kcal.metrics", "kcal.projection", "kcal.calibrators", "kcal.persistence", "kcal.datasets")
"""Where the names live; what loads fastest comes first."""


def __getattr__(name: str) -> object:
    if name in __all__:
        home = next(module for module in map(_import_module, _HOMES) if name in module.__all__)
        value = globals()[name] = getattr(home, name)
        return value
    if not name.startswith("_") and _find_spec(f"kcal.{name}") is not None:
        return _import_module(f"kcal.{name}")
    raise AttributeError(f"module 'kcal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
