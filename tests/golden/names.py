"""Every name of the library that a restructuring may change; porting the golden cases means editing this file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kcal.calibrators import METHODS as REGISTERED
from kcal.calibrators import fit_on, predict_on
from kcal.cli import app
from kcal.embeddings import ClassifierOutputs
from kcal.errors import KcalWarning

__all__ = ["REGISTERED", "ClassifierOutputs", "KcalWarning", "app", "fit_on", "predict_on"]

# fields of frozen results of the metrics: neutral name → attribute
RELIABILITY = {"counts": "counts", "predicted": "mean_prediction", "observed": "observed_frequency", "edges": "edges"}
CANONICAL = {"counts": "counts", "predicted": "mean_prediction", "observed": "observed_frequency"}
CLASS_ERRORS = {
    "positives": "positives",
    "predicted": "mean_prediction",
    "observed": "frequency",
    "error": "error",
    "over": "overconfidence",
    "under": "underconfidence",
}
MURPHY = ("brier", "reliability", "resolution", "uncertainty", "within_bins")
EVALUATION = (
    "accuracy",
    "expected_calibration_error",
    "classwise_calibration_error",
    "static_expected_calibration_error",
    "static_classwise_calibration_error",
    "top_label_brier_loss",
    "multiclass_brier_loss",
    "negative_log_likelihood",
)
REJECTION = {"rejected": "rejected", "accuracies": "accuracies", "thresholds": "thresholds"}

# flags of the command line
FIT = ("fit",)
PREDICT = ("predict",)
EVALUATE = ("evaluate",)
COMPARE = ("compare",)
BENCH = ("bench",)
OUT, METHOD, METHODS, SET, EVIDENCE = "--out", "--method", "--methods", "--set", "--evidence"
PROJECTION, BANDWIDTH, PRIOR, SMOOTHING = "--projection", "--bandwidth", "--prior", "--smoothing"
RESAMPLES, NO_INTERVALS, JSON, LABELS = "--resamples", "--no-intervals", "--json", "--labels"
SPLITS, JOBS, FOLDS = "--splits", "--jobs", "--folds"


def log_densities(calibrator: Any, rows: Any) -> Any:
    """The log density of rows under the support of a fitted KCal or blend."""
    return calibrator.log_evidence(rows)


KCAL_FITTED: dict[str, Callable[[Any], Any]] = {
    "bandwidth": lambda kcal: kcal.bandwidth_,
    "leave_one_out": lambda kcal: np.asarray(kcal.leave_one_out_proba_),
}
BLEND_FITTED: dict[str, Callable[[Any], Any]] = {
    "weights": lambda blend: list(blend.weights_.values()),
    "shares": lambda blend: list(blend.shares_.values()),
    "temperature": lambda blend: blend.temperature_,
    "bandwidth": lambda blend: blend.bandwidth_,
    "frequencies": lambda blend: blend.frequencies_,
    "background": lambda blend: blend.background_,
}
