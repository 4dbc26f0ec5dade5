"""The mathematics: mother kernels, class sums in log space, leave-out losses, bandwidth search."""

from kcal.kernels.bandwidth import INTERVAL, BandwidthCurve, scaled_bandwidth, search_bandwidth
from kcal.kernels.leave_out import MEMORY_BUDGET, LeaveOutLoss, leave_out_posteriors, mean_log_loss
from kcal.kernels.mother import KERNELS, MotherKernel, get_kernel
from kcal.kernels.posteriors import class_posteriors, log_densities
from kcal.kernels.scales import log_class_sums, scaled_class_sums
from kcal.kernels.sums import ClassSums, class_sums, in_double
from kcal.kernels.support import SortedSupport, sort_support

__all__ = [
    "INTERVAL",
    "KERNELS",
    "MEMORY_BUDGET",
    "BandwidthCurve",
    "ClassSums",
    "LeaveOutLoss",
    "MotherKernel",
    "SortedSupport",
    "class_posteriors",
    "class_sums",
    "get_kernel",
    "in_double",
    "leave_out_posteriors",
    "log_class_sums",
    "log_densities",
    "mean_log_loss",
    "scaled_bandwidth",
    "scaled_class_sums",
    "search_bandwidth",
    "sort_support",
]
