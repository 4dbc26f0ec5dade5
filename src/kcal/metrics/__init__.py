"""What predicted probabilities are worth: calibration errors, proper scores and the bins that pictures show.

Every function takes probabilities (n_samples, n_classes) whose rows sum to 1,
and labels that are column indices.
"""

from kcal.metrics.binning import ReliabilityBins
from kcal.metrics.calibration import classwise_calibration_error, expected_calibration_error, reliability
from kcal.metrics.evaluation import Evaluation, evaluate
from kcal.metrics.scores import (
    accuracy,
    multiclass_brier_loss,
    negative_log_likelihood,
    top_label_brier_loss,
)

__all__ = [
    "Evaluation",
    "ReliabilityBins",
    "accuracy",
    "classwise_calibration_error",
    "evaluate",
    "expected_calibration_error",
    "multiclass_brier_loss",
    "negative_log_likelihood",
    "reliability",
    "top_label_brier_loss",
]
