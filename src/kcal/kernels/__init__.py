"""The mathematics: mother kernels, class sums in log space, leave-out losses, bandwidth search."""

from kcal.kernels.bandwidth import (
    INTERVAL,
    MIN_PROB,
    BandwidthCurve,
    BandwidthLaw,
    fit_bandwidth_law,
    search_bandwidth,
    search_near,
    search_published,
    size_of_rarest_class,
)
from kcal.kernels.leave_out import (
    MAX_PREDICTED,
    LeaveOutLoss,
    PredictedLoss,
    leave_out_loss,
    leave_out_posteriors,
    mean_log_loss,
    sampled_positions,
)
from kcal.kernels.mother import KERNELS, MotherKernel, get_kernel
from kcal.kernels.sums import (
    RESOLUTION,
    ClassSums,
    Contributions,
    PreparedSupport,
    add_sums,
    class_posteriors,
    largest_contributions,
)
from kcal.kernels.support import LeaveOut, SortedSupport, in_double, leave_out_rule, sort_support, sum_of_points

__all__ = [
    "INTERVAL",
    "KERNELS",
    "MAX_PREDICTED",
    "MIN_PROB",
    "RESOLUTION",
    "BandwidthCurve",
    "BandwidthLaw",
    "ClassSums",
    "Contributions",
    "LeaveOut",
    "LeaveOutLoss",
    "MotherKernel",
    "PredictedLoss",
    "PreparedSupport",
    "SortedSupport",
    "add_sums",
    "class_posteriors",
    "fit_bandwidth_law",
    "get_kernel",
    "in_double",
    "largest_contributions",
    "leave_out_loss",
    "leave_out_posteriors",
    "leave_out_rule",
    "mean_log_loss",
    "sampled_positions",
    "search_bandwidth",
    "search_near",
    "search_published",
    "size_of_rarest_class",
    "sort_support",
    "sum_of_points",
]
