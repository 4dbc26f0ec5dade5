"""Calibrated probabilities for every class of a deep classifier."""

from importlib.metadata import version as _version

from kcal.calibrators import (
    CALIBRATORS,
    ClassifierOutputs,
    KCal,
    KCalLogits,
    TemperatureScaling,
    Uncalibrated,
)
from kcal.datasets import load_example
from kcal.errors import KcalError, KcalWarning
from kcal.metrics import evaluate
from kcal.persistence import load, save
from kcal.projection import FastRecipe, PaperRecipe, TrainedProjection, train_projection

__version__ = _version("kcal")

__all__ = [
    "CALIBRATORS",
    "ClassifierOutputs",
    "FastRecipe",
    "KCal",
    "KCalLogits",
    "KcalError",
    "KcalWarning",
    "PaperRecipe",
    "TemperatureScaling",
    "TrainedProjection",
    "Uncalibrated",
    "__version__",
    "evaluate",
    "load",
    "load_example",
    "save",
    "train_projection",
]
