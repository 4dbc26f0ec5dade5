"""Losses that train a network to be calibrated: focal loss and MMCE."""

from kcal.losses.focal import FocalLoss, focal_loss
from kcal.losses.mmce import MMCE, MMCELoss, mmce, mmce_loss

__all__ = ["MMCE", "FocalLoss", "MMCELoss", "focal_loss", "mmce", "mmce_loss"]
