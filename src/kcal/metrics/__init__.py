"""Metrics of predicted probabilities: calibration errors, proper scores, intervals and comparisons.

Every metric takes ``probs`` (n_samples, n_classes), whose rows sum to 1, ``labels`` that are column indices, and
``sample_weight``, the relative importance of each sample. ``METRICS`` is the table of all metrics,
``PAPER_METRICS`` that of the KCal paper's definitions.
"""

from kcal.metrics.binning import ReliabilityBins
from kcal.metrics.calibration import (
    CanonicalCells,
    ClassErrors,
    MurphyDecomposition,
    canonical_calibration_error,
    canonical_cells,
    class_errors,
    classwise_calibration_error,
    debiased_squared_calibration_error,
    expected_calibration_error,
    marginal_calibration_error,
    murphy_decomposition,
    reliability,
    top_label_calibration_error,
)
from kcal.metrics.comparison import (
    AverageRank,
    AverageRanks,
    ComparisonMarks,
    MethodComparison,
    SplitSummary,
    average_ranks,
    compare_methods,
    corrected_resampled_t_test,
    overall_ranks,
    pooled_t_test,
)
from kcal.metrics.evaluation import Evaluation, confidence_interval, evaluate
from kcal.metrics.kernel_errors import (
    KernelCalibrationError,
    kde_calibration_error,
    kernel_calibration_error,
    smooth_calibration_error,
)
from kcal.metrics.registry import METRICS, PAPER_METRICS, Metric
from kcal.metrics.resampling import Interval
from kcal.metrics.scores import (
    RejectionCurve,
    accuracy,
    accuracy_rejection,
    accuracy_rejection_area,
    brier_score,
    multiclass_brier_loss,
    negative_log_likelihood,
    top_label_brier_loss,
)
from kcal.metrics.subgroups import SubgroupEvaluation

__all__ = [
    "METRICS",
    "PAPER_METRICS",
    "AverageRank",
    "AverageRanks",
    "CanonicalCells",
    "ClassErrors",
    "ComparisonMarks",
    "Evaluation",
    "Interval",
    "KernelCalibrationError",
    "MethodComparison",
    "Metric",
    "MurphyDecomposition",
    "RejectionCurve",
    "ReliabilityBins",
    "SplitSummary",
    "SubgroupEvaluation",
    "accuracy",
    "accuracy_rejection",
    "accuracy_rejection_area",
    "average_ranks",
    "brier_score",
    "canonical_calibration_error",
    "canonical_cells",
    "class_errors",
    "classwise_calibration_error",
    "compare_methods",
    "confidence_interval",
    "corrected_resampled_t_test",
    "debiased_squared_calibration_error",
    "evaluate",
    "expected_calibration_error",
    "kde_calibration_error",
    "kernel_calibration_error",
    "marginal_calibration_error",
    "multiclass_brier_loss",
    "murphy_decomposition",
    "negative_log_likelihood",
    "overall_ranks",
    "pooled_t_test",
    "reliability",
    "smooth_calibration_error",
    "top_label_brier_loss",
    "top_label_calibration_error",
]
