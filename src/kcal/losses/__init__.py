"""Losses to train a network with, so that its probabilities are calibrated to begin with."""

from kcal.losses.focal import FocalLoss, focal_loss
from kcal.losses.mmce import MMCE, MMCELoss, mmce, mmce_loss

__all__ = ["MMCE", "FocalLoss", "MMCELoss", "focal_loss", "mmce", "mmce_loss"]
