"""KCalBlend: kernel density estimates pooled with the calibrated logits of the network."""

from kcal.calibrators.blend.estimator import KCalBlend

__all__ = ["KCalBlend"]
