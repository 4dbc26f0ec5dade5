"""Temperature, ensemble temperature, vector, matrix and structured matrix scaling."""

from kcal.calibrators.scaling.ensemble_temperature import EnsembleTemperatureScaling
from kcal.calibrators.scaling.linear import MatrixScaling, VectorScaling
from kcal.calibrators.scaling.structured import StructuredMatrixScaling
from kcal.calibrators.scaling.temperature import TemperatureScaling

__all__ = [
    "EnsembleTemperatureScaling",
    "MatrixScaling",
    "StructuredMatrixScaling",
    "TemperatureScaling",
    "VectorScaling",
]
