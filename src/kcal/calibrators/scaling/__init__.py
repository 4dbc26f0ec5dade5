"""Temperature, ensemble temperature, vector, matrix and structured matrix scaling."""

from kcal.calibrators.scaling.ensemble_temperature import EnsembleTemperatureScaling
from kcal.calibrators.scaling.linear import (
    LinearModel,
    MatrixScaling,
    StructuredMatrixScaling,
    VectorScaling,
    fit_structured_matrix,
)
from kcal.calibrators.scaling.temperature import TemperatureModel, TemperatureScaling, fit_temperature

__all__ = [
    "EnsembleTemperatureScaling",
    "LinearModel",
    "MatrixScaling",
    "StructuredMatrixScaling",
    "TemperatureModel",
    "TemperatureScaling",
    "VectorScaling",
    "fit_structured_matrix",
    "fit_temperature",
]
