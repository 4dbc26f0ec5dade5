"""Watching calibrated predictions: class frequencies, expected performance, alarms with labels and without."""

from kcal.monitoring.label_shift import PriorEstimate, adjust_prior, estimate_prior
from kcal.monitoring.monitor import CalibrationMonitor
from kcal.monitoring.performance import Estimate, PerformanceEstimate, estimate_performance
from kcal.monitoring.reports import MonitorReport, Part

__all__ = [
    "CalibrationMonitor",
    "Estimate",
    "MonitorReport",
    "Part",
    "PerformanceEstimate",
    "PriorEstimate",
    "adjust_prior",
    "estimate_performance",
    "estimate_prior",
]
