"""KCalBlend: kernel density estimates pooled with the calibrated logits of the network."""

from kcal.calibrators.blend.estimator import KCalBlend
from kcal.calibrators.blend.model import BlendModel

__all__ = ["BlendModel", "KCalBlend"]
