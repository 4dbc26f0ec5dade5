"""KCal: a learned projection of the embedding and a kernel density estimate over the calibration set."""

from kcal.calibrators.kcal.estimator import KCal
from kcal.calibrators.kcal.logits import KCalLogits
from kcal.calibrators.kcal.model import KCalModel

__all__ = ["KCal", "KCalLogits", "KCalModel"]
