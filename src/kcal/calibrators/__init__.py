"""Calibrators: one file a method, one contract, one table of names."""

from kcal.calibrators.base import Calibrator, CalibratorState
from kcal.calibrators.kcal import KCal
from kcal.calibrators.kcal_logits import KCalLogits
from kcal.calibrators.outputs import ClassifierOutputs, fit_on, predict_on
from kcal.calibrators.table import CALIBRATORS, class_of, make_calibrator
from kcal.calibrators.temperature import TemperatureScaling
from kcal.calibrators.uncalibrated import Uncalibrated

__all__ = [
    "CALIBRATORS",
    "Calibrator",
    "CalibratorState",
    "ClassifierOutputs",
    "KCal",
    "KCalLogits",
    "TemperatureScaling",
    "Uncalibrated",
    "class_of",
    "fit_on",
    "make_calibrator",
    "predict_on",
]
