"""Calibrators that live on: samples arrive, are corrected and are forgotten after the fit."""

from kcal.calibrators.online.updates import BandwidthRecord, Updates

__all__ = ["BandwidthRecord", "Updates"]
