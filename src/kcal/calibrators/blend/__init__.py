"""KCalBlend: the network, its refitted last layer and the calibration samples nearby, in one prediction."""

from kcal.calibrators.blend.estimator import KCalBlend
from kcal.calibrators.blend.model import BlendModel

__all__ = ["BlendModel", "KCalBlend"]
