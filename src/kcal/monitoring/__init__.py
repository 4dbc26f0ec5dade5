"""Watching calibrated predictions: class frequencies, expected performance, alarms with labels and without."""

from kcal.monitoring.drift import DriftMonitor, DriftReport, MeanEmbeddingTest, mean_embedding_test, river_alarms
from kcal.monitoring.label_shift import PriorEstimate, adjust_prior, estimate_prior
from kcal.monitoring.monitor import CalibrationMonitor, MonitorReport, Part
from kcal.monitoring.performance import Estimate, PerformanceEstimate, estimate_performance

__all__ = [
    "CalibrationMonitor",
    "DriftMonitor",
    "DriftReport",
    "Estimate",
    "MeanEmbeddingTest",
    "MonitorReport",
    "Part",
    "PerformanceEstimate",
    "PriorEstimate",
    "adjust_prior",
    "estimate_performance",
    "estimate_prior",
    "mean_embedding_test",
    "river_alarms",
]
