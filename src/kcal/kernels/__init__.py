"""The mathematics: mother kernels, class sums in log space, leave-out losses, bandwidth search."""

from kcal.kernels.addition import add_sums
from kcal.kernels.bandwidth import (
    INTERVAL,
    BandwidthCurve,
    BandwidthLaw,
    fit_bandwidth_law,
    search_bandwidth,
    search_near,
    size_of_rarest_class,
)
from kcal.kernels.contributions import Contributions, largest_contributions
from kcal.kernels.direct import DirectSums
from kcal.kernels.golden_section import LEAST_PROB, search_published
from kcal.kernels.leave_out import (
    MAX_PREDICTED,
    LeaveOutLoss,
    PredictedLoss,
    SampledLeaveOutLoss,
    leave_out_loss,
    leave_out_posteriors,
    mean_log_loss,
    sampled_positions,
)
from kcal.kernels.mother import KERNELS, MotherKernel, get_kernel
from kcal.kernels.numerics import in_double
from kcal.kernels.sums import ClassSums, PreparedSupport, class_posteriors
from kcal.kernels.support import LeaveOut, SortedSupport, leave_out_rule, sort_support, sum_of_points

__all__ = [
    "INTERVAL",
    "KERNELS",
    "LEAST_PROB",
    "MAX_PREDICTED",
    "BandwidthCurve",
    "BandwidthLaw",
    "ClassSums",
    "Contributions",
    "DirectSums",
    "LeaveOut",
    "LeaveOutLoss",
    "MotherKernel",
    "PredictedLoss",
    "PreparedSupport",
    "SampledLeaveOutLoss",
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
